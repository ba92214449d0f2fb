"""Action spaces: how actions enter a model, how outputs are scored, and which action to take."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn.tasks.baselines import Baselines
from flax_linattn.typing import Array

# The baselines receive observations, but neither the return-to-go nor previous actions.
BASELINES = ("ridge", "behavior_cloning")


def to_float32(values: NDArray) -> NDArray[np.float32]:
    """Converts to float32; larger values become infinite, and the model's actions NaN."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


class ActionSpace(abc.ABC):
    """Action space of a data set; hashable by value, so equal spaces share compiled programs.

    Actions have the unit of the environment. Scaled actions are what a model receives, float32
    [..., A]. Outputs are what a model predicts, [..., ``num_outputs``].

    Attributes:
        metrics: Names of the metrics in a report, by their names in training.
        baselines: Baselines of the main metric, of which the first one is a constant.
        num_actions: Number of discrete actions; None if actions are continuous.
    """

    metrics: ClassVar[Mapping[str, str]]
    baselines: ClassVar[Baselines]
    num_actions: int | None = None

    @property
    @abc.abstractmethod
    def action_dim(self) -> int:
        """Size A of a scaled action."""

    @property
    @abc.abstractmethod
    def num_outputs(self) -> int:
        """Number of outputs of a model."""

    @property
    @abc.abstractmethod
    def names(self) -> list[str]:
        """Names of the columns that describe predicted actions."""

    @abc.abstractmethod
    def scale(self, actions: NDArray) -> NDArray[np.float32]:
        """Scales actions to float32 [..., A]."""

    @abc.abstractmethod
    def unscale(self, scaled: NDArray) -> NDArray:
        """Returns the actions of scaled actions [..., A]."""

    @abc.abstractmethod
    def is_valid(self, scaled: NDArray) -> bool:
        """Whether all scaled actions [..., A] are actions of this space."""

    @abc.abstractmethod
    def read(self, outputs: Array) -> Array:
        """Returns outputs from the features of a policy's last layer, [..., ``num_outputs``]."""

    @abc.abstractmethod
    def evaluate(self, outputs: Array, scaled: Array) -> dict[str, Array]:
        """Computes the metrics of each step [...], of which "loss" is minimized."""

    @abc.abstractmethod
    def choose(self, outputs: NDArray, uniforms: NDArray | None = None) -> NDArray[np.float32]:
        """Returns the scaled actions [..., A] to take; NaN where outputs are NaN.

        A discrete action is the likeliest one, or is sampled by ``uniforms`` [...] in 0 ... 1.
        """

    @abc.abstractmethod
    def columns(self, outputs: NDArray) -> list[NDArray]:
        """Describes the outputs [N, ``num_outputs``] of N steps in columns [N], see ``names``."""

    @abc.abstractmethod
    def to_vectors(self, scaled: NDArray) -> NDArray[np.float32]:
        """Returns the targets [N, ``num_outputs``] of a linear regression."""

    @abc.abstractmethod
    def score(self, outputs: NDArray, scaled: NDArray) -> float:
        """Computes the main metric of outputs [N, ``num_outputs``] without a model."""


@dataclasses.dataclass(frozen=True)
class ContinuousActions(ActionSpace):
    """Vectors of numbers, scaled to -1 ... 1.

    Attributes:
        low: Value of each number that is scaled to -1.
        high: Value of each number that is scaled to 1.

    Example:
        >>> space = ContinuousActions((-2.0,), (2.0,))
        >>> space.scale(np.array([[1.0]])).tolist(), space.unscale(np.array([[0.5]])).tolist()
        ([[0.5]], [[1.0]])
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    metrics: ClassVar[Mapping[str, str]] = {"loss": "mse"}
    baselines: ClassVar[Baselines] = Baselines(
        "mse", ("mean", *BASELINES), title="squared error of actions"
    )

    @property
    def action_dim(self) -> int:
        return len(self.low)

    @property
    def num_outputs(self) -> int:
        return len(self.low)

    @property
    def names(self) -> list[str]:
        return [f"action{number}" for number in range(1, self.action_dim + 1)]

    def scale(self, actions: NDArray) -> NDArray[np.float32]:
        middle, half = self.middle_and_half()
        return to_float32((actions - middle) / half)

    def unscale(self, scaled: NDArray) -> NDArray[np.float32]:
        middle, half = self.middle_and_half()
        return to_float32(scaled * half + middle)

    def middle_and_half(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the middle of the range of each number, and half of its width."""
        low, high = np.array(self.low), np.array(self.high)
        return (low + high) / 2, (high - low) / 2

    def is_valid(self, scaled: NDArray) -> bool:
        return bool(np.abs(scaled).max() <= 1)

    def read(self, outputs: Array) -> Array:
        return jnp.tanh(outputs)

    def evaluate(self, outputs: Array, scaled: Array) -> dict[str, Array]:
        return {"loss": jnp.mean((outputs - scaled) ** 2, axis=-1)}

    def choose(self, outputs: NDArray, uniforms: NDArray | None = None) -> NDArray[np.float32]:
        return outputs

    def columns(self, outputs: NDArray) -> list[NDArray]:
        return [*self.unscale(outputs).T]

    def to_vectors(self, scaled: NDArray) -> NDArray[np.float32]:
        return scaled

    def score(self, outputs: NDArray, scaled: NDArray) -> float:
        return float(np.mean((outputs - scaled) ** 2))


@dataclasses.dataclass(frozen=True)
class DiscreteActions(ActionSpace):
    """Choices from 0 to ``num_actions`` - 1.

    A scaled action is the index as a number, and outputs are logits.

    Example:
        >>> space = DiscreteActions(3)
        >>> space.scale(np.array([2, 0])).tolist(), space.choose(np.array([[0.0, 2.0, 1.0]]))
        ([[2.0], [0.0]], array([[1.]], dtype=float32))
    """

    num_actions: int

    metrics: ClassVar[Mapping[str, str]] = {"loss": "cross_entropy", "accuracy": "accuracy"}
    baselines: ClassVar[Baselines] = Baselines(
        "accuracy", ("constant", *BASELINES), larger_is_better=True, title="accuracy of actions"
    )

    @property
    def action_dim(self) -> int:
        return 1

    @property
    def num_outputs(self) -> int:
        return self.num_actions

    @property
    def names(self) -> list[str]:
        return ["action", *(f"p({action})" for action in range(self.num_actions))]

    def scale(self, actions: NDArray) -> NDArray[np.float32]:
        return actions[..., None].astype(np.float32)

    def unscale(self, scaled: NDArray) -> NDArray[np.int64]:
        """Returns discrete actions [...], and -1 for NaN."""
        indices = scaled[..., 0]
        return np.where(np.isnan(indices), -1, indices).astype(np.int64)

    def is_valid(self, scaled: NDArray) -> bool:
        return bool(np.isin(scaled, np.arange(self.num_actions)).all())

    def read(self, outputs: Array) -> Array:
        return outputs

    def evaluate(self, outputs: Array, scaled: Array) -> dict[str, Array]:
        targets = scaled[..., 0].astype(jnp.int32)
        log_probabilities = jax.nn.log_softmax(outputs)
        loss = -jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
        return {"loss": loss, "accuracy": (outputs.argmax(axis=-1) == targets).astype(loss.dtype)}

    def choose(self, outputs: NDArray, uniforms: NDArray | None = None) -> NDArray[np.float32]:
        is_nan = ~np.isfinite(outputs.max(axis=-1))  # -inf excludes an action
        if uniforms is None:
            indices = outputs.argmax(axis=-1)
        else:
            weights = np.exp(outputs - outputs.max(axis=-1, keepdims=True), dtype=np.float64)
            sums = weights.cumsum(axis=-1)
            indices = (sums <= uniforms[..., None] * sums[..., -1:]).sum(axis=-1)
        return np.where(is_nan, np.nan, indices)[..., None].astype(np.float32)

    def columns(self, outputs: NDArray) -> list[NDArray]:
        probabilities: Any = np.asarray(jax.nn.softmax(jnp.asarray(outputs)))
        return [self.unscale(self.choose(outputs)), *probabilities.T]

    def to_vectors(self, scaled: NDArray) -> NDArray[np.float32]:
        return np.eye(self.num_actions, dtype=np.float32)[scaled[..., 0].astype(np.int64)]

    def score(self, outputs: NDArray, scaled: NDArray) -> float:
        return float(np.mean(self.choose(outputs) == scaled))


class ActionChooser:
    """Base class of agents that choose scaled actions by the outputs of a model.

    Args:
        space: The action space.
        sample: Sample discrete actions by the seed of each episode, see ``control.SamplingAgent``.
            Default: take the likeliest ones.
    """

    def __init__(self, space: ActionSpace, sample: bool = False) -> None:
        self._space, self._sample = space, sample
        self._generators: dict[int, np.random.Generator] = {}

    def begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Receives the seeds of episodes that begin, which decide their samples."""
        # The 2 gives numbers that the environment of the same seed does not sample.
        generators = (np.random.default_rng([seed, 2]) for seed in seeds)
        self._generators |= zip(rows, generators, strict=True)

    def choose(self, outputs: NDArray) -> NDArray[np.float32]:
        """Returns the scaled actions to take, float32 [B, A]."""
        if not self._sample:
            return self._space.choose(outputs)
        for row in range(len(outputs)):
            if row not in self._generators:
                self.begin([row], [row])
        uniforms = [self._generators[row].random() for row in range(len(outputs))]
        return self._space.choose(outputs, np.array(uniforms))
