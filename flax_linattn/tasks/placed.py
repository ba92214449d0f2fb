"""The layers of a run's model, on its devices."""

from __future__ import annotations

import dataclasses

from flax_linattn import training
from flax_linattn.models import Layers


def placed_layers(layers: Layers, placement: training.Placement) -> Layers:
    """Layers whose mechanisms compute where a run does.

    Args:
        layers: the run's options.
        placement: the devices that it is to compute on.

    Raises:
        ValueError: an unknown mechanism, or one that cannot be placed so.
    """
    try:
        mechanisms = layers.mechanisms
    except TypeError as error:  # in a configuration a hyperparameter is a value
        raise ValueError(str(error)) from None
    return dataclasses.replace(layers, mechanism=tuple(map(placement.mechanism, mechanisms)))
