"""The model of a run on decisions, its loss and its optimizer."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from flax import nnx

from flax_linattn import models, training
from flax_linattn.tasks.decide.options import DecideConfig, DecideFit
from flax_linattn.tasks.decide.problem import DecideProblem
from flax_linattn.typing import Array


def build_model(
    config: DecideConfig,
    problem: DecideProblem,
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


def make_optimizer(fit: DecideFit) -> optax.GradientTransformation:
    """AdamW on clipped gradients; the learning rate grows for ``warmup`` steps."""

    def rate(step: Array) -> Array:
        return fit.learning_rate * jnp.minimum((step + 1) / max(fit.warmup, 1), 1.0)

    return optax.chain(
        optax.clip_by_global_norm(fit.clip_norm),
        optax.adamw(rate, weight_decay=fit.weight_decay),
    )
