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
        ValueError: a mechanism that cannot be placed so.
    """
    placed = tuple(map(placement.mechanism, layers.mechanisms))
    return layers if placed == layers.mechanisms else dataclasses.replace(layers, mechanism=placed)
