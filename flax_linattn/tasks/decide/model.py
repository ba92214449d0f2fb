"""The model of a run on decisions and its loss."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx

from flax_linattn import models, training
from flax_linattn.tasks.decide.data import DecideSpec
from flax_linattn.tasks.decide.options import DecideConfig
from flax_linattn.typing import Array


def build_model(
    config: DecideConfig,
    problem: DecideSpec,
    placement: training.Placement = training.ONE_DEVICE,
) -> models.DecisionTransformer:
    """The freshly initialised model of a run.

    Raises:
        ValueError: an option that the model does not take.
    """
    return models.DecisionTransformer(
        problem.observation_dim,
        problem.action_dim,
        position=config.model.position,
        max_length=config.model.max_length,
        layers=config.layers.map_mechanisms(placement.mechanism),
        rngs=nnx.Rngs(config.seed),
    )


def decision_loss(
    model: models.DecisionTransformer, batch: dict[str, Array], dropout_key: Array | None
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
    """Mean squared error of the actions of real steps, in their scale of -1 ... 1."""
    told = model(batch["x"], mask=batch["mask"], dropout_key=dropout_key)
    real = jnp.where(batch["mask"], batch["weight"][:, None], 0)
    error = jnp.mean((told - batch["actions"]) ** 2, axis=-1)
    total, count = jnp.sum(jnp.where(real > 0, error, 0)), jnp.sum(real)
    return total / jnp.maximum(count, 1), {"loss": (total, count)}
