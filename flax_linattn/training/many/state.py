"""The state of many runs: that of one, with an axis of runs in front."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn.training.state import TrainState

OF_ONE = tuple(field.name for field in dataclasses.fields(TrainState))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ManyState(TrainState):
    """The state of R runs: every array of a ``TrainState`` with R in front.

    Args:
        best: Each run's parameters and other variables where its monitored metric was best.
        active: bool [R], which runs train: one that has failed, or run out of patience, stays as
            it is.
        done: int32 scalar, training steps done.
    """

    best: tuple[nnx.State, nnx.State]
    active: jax.Array
    done: jax.Array

    @classmethod
    def stack(cls, states: Sequence[TrainState]) -> Self:
        """Of the states of the runs, before the first step."""
        runs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        return cls(
            **{name: getattr(runs, name) for name in OF_ONE},
            best=jax.tree.map(jnp.copy, (runs.params, runs.model_state)),
            active=jnp.ones(len(states), bool),
            done=jnp.zeros((), jnp.int32),
        )

    @property
    def steps_done(self) -> int:
        """Training steps done, on the host."""
        return int(self.done)

    @property
    def runs(self) -> TrainState:
        """The state of the runs without what this class adds."""
        return TrainState(**{name: getattr(self, name) for name in OF_ONE})

    def with_runs(self, runs: TrainState) -> Self:
        """The same with another state of the runs."""
        return dataclasses.replace(self, **{name: getattr(runs, name) for name in OF_ONE})

    def items(self) -> dict[str, tuple[Any, ...]]:
        """What a checkpoint holds; its model is the best of each run."""
        others = ("params", "model_state", "active", "done")
        training = self.without_model() | {name: getattr(self, name) for name in others}
        return {"model": self.best, "training": (training,)}

    def with_items(self, model: tuple[Any, ...], training: tuple[Any, ...]) -> Self:
        """The same from the trees that ``items`` gave."""
        params, model_state = model
        return dataclasses.replace(self, best=(params, model_state), **training[0])


def chosen(which: jax.Array, then: Any, otherwise: Any) -> Any:
    """Of each run the arrays of one of two trees: ``which`` is bool [R]."""

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(which.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, then, otherwise)
