"""``TrainState``: the arrays that a training step reads and writes, as one pytree."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from flax_linattn.fitted_variable import FittedVariable
from flax_linattn.training.metrics import Metrics, zero_metrics

GROWTH_STEPS = 2000
"""Number of steps without overflow after which the loss scale is doubled."""

NO_BAD_STEP = -1
"""Value of ``first_bad_step`` while all steps were finite or skipped."""


def split_model(model: nnx.Module) -> tuple[nnx.GraphDef[Any], nnx.State, nnx.State]:
    """Returns a model's structure, its parameters (``nnx.Param``) and its other variables.

    A model without parameters is accepted if it has a ``FittedVariable``, fitted after training.
    """
    graphdef, params, *others = nnx.split(model, nnx.Param, ...)
    if not jax.tree.leaves((params, nnx.filter_state(others[0], FittedVariable))):
        raise ValueError(
            f"expected a model with nnx.Param variables to train, got a {type(model).__name__} "
            "without any; pass the model itself, made with rngs."
        )
    return graphdef, params, others[0]


class LossScale(NamedTuple):
    """Dynamic loss scale, which keeps small float16 gradients from underflow.

    Attributes:
        value: Factor of the loss, a float32 scalar.
        steps: Number of steps since it last changed, an int32 scalar.
    """

    value: jax.Array
    steps: jax.Array

    @classmethod
    def start(cls, value: float) -> LossScale:
        """The scale before the first step."""
        return cls(jnp.asarray(value, jnp.float32), jnp.zeros((), jnp.int32))

    def adjust(self, finite: jax.Array) -> LossScale:
        """Halves the scale after an overflow, doubles it after 2,000 finite steps; at least 1."""
        grows = finite & (self.steps + 1 >= GROWTH_STEPS)
        value = jnp.where(finite, jnp.where(grows, 2 * self.value, self.value), self.value / 2)
        steps = jnp.where(finite & ~grows, self.steps + 1, 0)
        return LossScale(jnp.maximum(value, 1), steps)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The whole state of training on the devices.

    In the state of several runs every array except ``done`` has a leading axis of R runs. The state
    of a single model has no such axis, so that its parameters can be sharded over devices, and its
    checkpoints hold the model's own shapes.

    Args:
        step: Number of training steps done, an int32 scalar.
        params: The model's ``nnx.Param`` variables, which are trained.
        model_state: The model's other variables, such as buffers or batch statistics.
        opt_state: The optimizer's state.
        metrics: Sums of this period's training metrics: name -> (weighted sum, weight).
        first_bad_step: The first step whose loss, gradient or new parameters were not finite, an
            int32 scalar; -1 if none. From that step on nothing else changes, so that the parameters
            stay the last finite ones.
        skipped: Number of updates skipped because they were not finite, an int32 scalar.
        loss_scale: The loss scale, for float16; None for no scaling.
        best: Parameters and other variables of each run at its best monitored value. None for a
            single model, whose best is a checkpoint.
        active: Boolean array of shape [R]; ``True`` marks runs that train. The state of a run that
            has failed or is out of patience does not change. None for a single model.
        done: Number of training steps done by the active runs, an int32 scalar. None for a single
            model.
    """

    step: jax.Array
    params: nnx.State
    model_state: nnx.State
    opt_state: Any
    metrics: Metrics
    first_bad_step: jax.Array
    skipped: jax.Array
    loss_scale: LossScale | None = None
    best: tuple[nnx.State, nnx.State] | None = None
    active: jax.Array | None = None
    done: jax.Array | None = None

    @classmethod
    def create(
        cls,
        params: nnx.State,
        model_state: nnx.State,
        optimizer: optax.GradientTransformation,
        metric_names: Iterable[str],
        loss_scale: float | None = None,
        opt_state: Any = None,
    ) -> Self:
        """Returns the state of one model before the first step, in arrays of its own.

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
            opt_state=optimizer.init(params) if opt_state is None else opt_state,
            metrics=zero_metrics(metric_names),
            first_bad_step=jnp.full((), NO_BAD_STEP, jnp.int32),
            skipped=jnp.zeros((), jnp.int32),
            loss_scale=None if loss_scale is None else LossScale.start(loss_scale),
        )
        return jax.tree.map(jnp.copy, state)

    @classmethod
    def stack(cls, states: Sequence[Self]) -> Self:
        """Returns the state of several runs before the first step, from the state of each."""
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        return dataclasses.replace(
            stacked,
            best=jax.tree.map(jnp.copy, (stacked.params, stacked.model_state)),
            active=jnp.ones(len(states), bool),
            done=jnp.zeros((), jnp.int32),
        )

    @property
    def is_stacked(self) -> bool:
        """Whether the arrays have the axis of runs in front."""
        return self.active is not None

    @property
    def steps_done(self) -> int:
        """Number of training steps done, as a Python integer."""
        return int(self.step if self.done is None else self.done)

    @property
    def runs(self) -> Self:
        """The state that a training step updates: without ``best``, ``active`` and ``done``."""
        return dataclasses.replace(self, best=None, active=None, done=None)

    def run(self, index: int) -> Self:
        """The state of one run, without the axis of runs."""
        return jax.tree.map(lambda x: x[index], self.runs) if self.is_stacked else self

    @property
    def active_runs(self) -> list[int]:
        """The indices of the runs that train."""
        return [0] if self.active is None else np.flatnonzero(np.asarray(self.active)).tolist()

    @property
    def bad_steps(self) -> list[int]:
        """``first_bad_step`` of each run, as Python integers."""
        return [int(step) for step in np.atleast_1d(self.first_bad_step)]

    def items(self) -> dict[str, tuple[Any, ...]]:
        """The content of a checkpoint: item -> pytrees.

        "model" holds the parameters and other variables of a single model, or the best ones of
        each of several runs; "training" holds the rest.
        """
        names = ["step", "opt_state", "metrics", "first_bad_step", "skipped", "loss_scale"]
        model = (self.params, self.model_state)
        if self.best is not None:
            model = self.best
            names += ["params", "model_state", "active", "done"]
        return {"model": model, "training": ({name: getattr(self, name) for name in names},)}

    def with_items(self, model: tuple[Any, ...], training: tuple[Any, ...]) -> Self:
        """Returns a copy of the state with the pytrees of ``items``."""
        params, model_state = model
        if self.best is not None:
            return dataclasses.replace(self, best=(params, model_state), **training[0])
        return dataclasses.replace(self, params=params, model_state=model_state, **training[0])


def select_runs(chosen: jax.Array, then: Any, otherwise: Any) -> Any:
    """Selects each run's arrays from ``then`` where ``chosen``, bool [R], else ``otherwise``."""

    def select(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(chosen.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(select, then, otherwise)
