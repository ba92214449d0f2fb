"""What a training step reads and writes: one pytree of arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from flax_linattn.training.guard import NO_BAD_STEP, LossScale
from flax_linattn.training.metrics import Metrics, zero_metrics


def split_model(model: nnx.Module) -> tuple[nnx.GraphDef[Any], nnx.State, nnx.State]:
    """Returns a model's structure, its parameters (``nnx.Param``) and its other variables.

    Raises:
        ValueError: If the model has no parameters.
    """
    graphdef, params, *others = nnx.split(model, nnx.Param, ...)
    if not jax.tree.leaves(params):
        raise ValueError(
            f"The {type(model).__name__} has no nnx.Param variables, so there is nothing to train. "
            "Pass the model itself, built with rngs."
        )
    return graphdef, params, others[0]


class Saved(Protocol):
    """A state that checkpoints hold."""

    @property
    def steps_done(self) -> int:
        """Training steps done, on the host."""

    def items(self) -> dict[str, tuple[Any, ...]]:
        """Of "model" and of "training": trees of arrays."""

    def with_items(self, model: tuple[Any, ...], training: tuple[Any, ...]) -> Self:
        """The same from the trees that ``items`` gave."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The whole state of a training on the device.

    Args:
        step: int32 scalar, the training steps done.
        params: The model's ``nnx.Param`` variables; what is differentiated.
        model_state: The model's other variables, such as buffers or batch statistics.
        opt_state: The optimizer's state.
        metrics: Sums of this period's training metrics: name -> (weighted sum, weight).
        first_bad_step: int32 scalar, the first step whose loss, gradient or new parameters were
            not finite; -1 if none. From that step on nothing else changes, so that the parameters
            stay the last finite ones.
        skipped: int32 scalar, updates left out because they were not finite.
        loss_scale: The factor of the loss, for float16; None without.
    """

    step: jax.Array
    params: nnx.State
    model_state: nnx.State
    opt_state: Any
    metrics: Metrics
    first_bad_step: jax.Array
    skipped: jax.Array
    loss_scale: LossScale | None = None

    @property
    def steps_done(self) -> int:
        """Training steps done, on the host."""
        return int(self.step)

    def without_model(self) -> dict[str, Any]:
        """All but the model's variables: field -> value."""
        fields = ("step", "opt_state", "metrics", "first_bad_step", "skipped", "loss_scale")
        return {name: getattr(self, name) for name in fields}

    def items(self) -> dict[str, tuple[Any, ...]]:
        """What a checkpoint holds: the trees of each of its items."""
        return {"model": (self.params, self.model_state), "training": (self.without_model(),)}

    def with_items(self, model: tuple[Any, ...], training: tuple[Any, ...]) -> Self:
        """The same from the trees that ``items`` gave."""
        params, model_state = model
        return dataclasses.replace(self, params=params, model_state=model_state, **training[0])

    @classmethod
    def create(
        cls,
        params: nnx.State,
        model_state: nnx.State,
        optimizer: optax.GradientTransformation,
        metric_names: Iterable[str],
        loss_scale: float | None = None,
    ) -> TrainState:
        """Returns the state before the first step, in arrays of its own.

        The training step donates its state, so the model's arrays are copied: the caller's model
        stays usable.

        Example:
            >>> graphdef, params, rest = split_model(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
            >>> state = TrainState.create(params, rest, optax.sgd(0.1), ["loss"])
            >>> int(state.step), int(state.first_bad_step)
            (0, -1)
        """
        state = cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            model_state=model_state,
            opt_state=optimizer.init(params),
            metrics=zero_metrics(metric_names),
            first_bad_step=jnp.full((), NO_BAD_STEP, jnp.int32),
            skipped=jnp.zeros((), jnp.int32),
            loss_scale=None if loss_scale is None else LossScale.start(loss_scale),
        )
        return jax.tree.map(jnp.copy, state)
