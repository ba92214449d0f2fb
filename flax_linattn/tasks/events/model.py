"""The model of a run on events and its loss."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx

from flax_linattn import models, training
from flax_linattn.tasks.events.data import END, EVENT, EventsSpec
from flax_linattn.tasks.events.options import EventsConfig
from flax_linattn.typing import Array

NO_EVENT = 1e-3
"""Events that a batch of survivals alone counts as, so that its mean and its sum both exist."""


def build_model(
    config: EventsConfig,
    problem: EventsSpec,
    placement: training.Placement = training.ONE_DEVICE,
) -> models.EventForecaster:
    """The freshly initialised model of a run.

    Raises:
        ValueError: an option that the model does not take.
    """
    return models.EventForecaster(
        problem.num_marks,
        kernel_size=config.model.kernel_size,
        periods=problem.all_periods,
        spread=problem.spread,
        num_components=config.model.num_components,
        layers=config.layers.map_mechanisms(placement.mechanism),
        max_length=problem.lengths[-1],
        rngs=nnx.Rngs(config.seed),
    )


def events_loss(
    model: models.EventForecaster, batch: dict[str, Array], dropout_key: Array | None
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
    """Negative log likelihood a forecast event, in natural logarithms, times in units of the scale.

    The survival of the last interval counts in the sum, and not as an event.
    """
    outputs = model(batch["observations"], mask=batch["mask"], dropout_key=dropout_key)
    following = model.next_event(outputs)
    weight = jnp.where(batch["mask"], batch["weight"][:, None], 0)
    event, end = (jnp.where(batch["asked"] == kind, weight, 0) for kind in (EVENT, END))
    gaps, marks = following.gap, following.log_marks()
    time = -jnp.sum(gaps.log_density(batch["log_gap"]) * event)
    mark = -jnp.sum(jnp.take_along_axis(marks, batch["mark"][..., None], axis=-1)[..., 0] * event)
    survival = -jnp.sum(gaps.log_survival(batch["log_gap"]) * end)
    right = jnp.argmax(marks, axis=-1) == batch["mark"]
    total, count = time + mark + survival, jnp.maximum(jnp.sum(event), NO_EVENT)
    return total / count, {
        "loss": (total, count),
        "time_nll": (time + survival, count),
        "mark_nll": (mark, count),
        "mark_accuracy": (jnp.sum(jnp.where(right, event, 0)), count),
    }
