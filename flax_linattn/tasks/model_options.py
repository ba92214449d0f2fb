"""What the models of all tasks take from a run's options."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx

from flax_linattn import ops, training
from flax_linattn.tasks.classify_config import ClassifyConfig
from flax_linattn.tasks.forecast_config import ForecastConfig


def model_options(
    config: ClassifyConfig | ForecastConfig, placement: training.Placement
) -> dict[str, Any]:
    """Keyword arguments of a run's model: its sizes, its mechanism, its dtype, its seed.

    Args:
        config: the run's options.
        placement: the devices that it is to compute on.

    Raises:
        ValueError: an unknown mechanism, or one that cannot be placed so.
    """
    try:
        mechanism = ops.get_mechanism(config.mechanism)
    except TypeError as error:  # in a configuration a hyperparameter is a value
        raise ValueError(str(error)) from None
    return {
        "features": config.features,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "hidden_features": config.hidden_features,
        "mechanism": placement.mechanism(mechanism),
        "dropout_rate": config.dropout_rate,
        "dtype": None if config.dtype == "float32" else jnp.dtype(config.dtype),
        "rngs": nnx.Rngs(config.seed),
    }
