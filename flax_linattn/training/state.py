"""What a training step reads and writes: one pytree of arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from flax_linattn.training.metrics import Metrics, zero_metrics

GROWTH_STEPS = 2000
"""Steps without an overflow after which a loss scale is doubled."""

NO_BAD_STEP = -1


def split_model(model: nnx.Module) -> tuple[nnx.GraphDef[Any], nnx.State, nnx.State]:
    """Returns a model's structure, its parameters (``nnx.Param``) and its other variables."""
    graphdef, params, *others = nnx.split(model, nnx.Param, ...)
    if not jax.tree.leaves(params):
        raise ValueError(
            f"The {type(model).__name__} has no nnx.Param variables, so there is nothing to train. "
            "Pass the model itself, built with rngs."
        )
    return graphdef, params, others[0]


class LossScale(NamedTuple):
    """A factor of the loss that lifts small float16 gradients into their range.

    ``value`` is a float32 scalar; ``steps``, int32, are those since it last changed.
    """

    value: jax.Array
    steps: jax.Array

    @classmethod
    def start(cls, value: float) -> LossScale:
        """The scale before the first step."""
        return cls(jnp.asarray(value, jnp.float32), jnp.zeros((), jnp.int32))

    def after(self, finite: jax.Array) -> LossScale:
        """Half of it after an overflow, but at least 1; twice of it after many good steps."""
        grows = finite & (self.steps + 1 >= GROWTH_STEPS)
        value = jnp.where(finite, jnp.where(grows, 2 * self.value, self.value), self.value / 2)
        steps = jnp.where(finite & ~grows, self.steps + 1, 0)
        return LossScale(jnp.maximum(value, 1), steps)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The whole state of a training on the device.

    The state of several runs has an axis of runs, R, in front of every array but ``done``. That of
    a single model has none, so that its parameters can be split over devices, and its checkpoints
    hold the model's own shapes.

    Args:
        step: int32 scalar, the training steps done.
        params: The model's ``nnx.Param`` variables; what is differentiated.
        model_state: The model's other variables, such as buffers or batch statistics.
        opt_state: The optimizer's state.
        metrics: Sums of this period's training metrics: name -> (weighted sum, weight).
        first_bad_step: int32 scalar, the first step whose loss, gradient or new parameters were
            not finite; -1 if none. From that step on nothing else changes, so that the parameters
            stay the last finite ones.
        skipped: int32 scalar, updates skipped because they were not finite.
        loss_scale: The factor of the loss, for float16; None without.
        best: Each run's parameters and other variables where its monitored metric was best. None
            for a single model, whose best is a checkpoint.
        active: bool [R], ``True`` marks the runs that train: one that has failed, or has run out
            of patience, keeps its state. None for a single model.
        done: int32 scalar, training steps done by the runs that still train. None for a single
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
        """Whether the arrays have an axis of runs in front."""
        return self.active is not None

    @property
    def steps_done(self) -> int:
        """Training steps done, on the host."""
        return int(self.step if self.done is None else self.done)

    @property
    def runs(self) -> Self:
        """The state that steps update: without ``best``, ``active`` and ``done``."""
        return dataclasses.replace(self, best=None, active=None, done=None)

    def run(self, index: int) -> Self:
        """The state of one run, without an axis of runs."""
        return jax.tree.map(lambda x: x[index], self.runs) if self.is_stacked else self

    @property
    def active_runs(self) -> list[int]:
        """The indices of the runs that train."""
        return [0] if self.active is None else np.flatnonzero(np.asarray(self.active)).tolist()

    @property
    def bad_steps(self) -> list[int]:
        """``first_bad_step`` of each run, on the host."""
        return [int(step) for step in np.atleast_1d(self.first_bad_step)]

    def items(self) -> dict[str, tuple[Any, ...]]:
        """What a checkpoint holds: the trees of each of its items.

        "model" holds the parameters and other variables of a single model, or the best ones of
        each of several runs; "training" all else.
        """
        names = ["step", "opt_state", "metrics", "first_bad_step", "skipped", "loss_scale"]
        model = (self.params, self.model_state)
        if self.best is not None:
            model = self.best
            names += ["params", "model_state", "active", "done"]
        return {"model": model, "training": ({name: getattr(self, name) for name in names},)}

    def with_items(self, model: tuple[Any, ...], training: tuple[Any, ...]) -> Self:
        """Returns a copy of the state with the trees of ``items``."""
        params, model_state = model
        if self.best is not None:
            return dataclasses.replace(self, best=(params, model_state), **training[0])
        return dataclasses.replace(self, params=params, model_state=model_state, **training[0])


def select_runs(chosen: jax.Array, then: Any, otherwise: Any) -> Any:
    """Selects, for each run, the arrays of ``then`` where ``chosen``, bool [R], else the others."""

    def select(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(chosen.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(select, then, otherwise)
