"""What a run on decisions remembers of its data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, at_least, shown
from flax_linattn.tasks.run_types import Problem

LARGEST = float(np.finfo(np.float32).max)
"""Of the numbers in data, which are float32."""


@dataclasses.dataclass(frozen=True)
class DecideProblem(Problem):
    """What the training data say: kept in the run folder so that a run needs no training data.

    Attributes:
        dataset: its name.
        env_id: the environment to play in; None = it is not played.
        observation_mean: of each number of an observation.
        observation_scale: by which it is divided once the mean is taken off.
        action_low: what counts as -1, of each number of an action.
        action_high: what counts as 1.
        return_scale: the return that counts as one.
        target_return: that is asked for unless another one is.
        mean_return: of the episodes to train on.
        best_return: of them.
        max_steps: of the longest episode, whatever it is for.
        num_train_steps: of all episodes to train on.
        checksum: of the episodes to train on ("train") and to test ("test").
    """

    dataset: str
    env_id: str | None
    observation_mean: tuple[float, ...]
    observation_scale: tuple[float, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    return_scale: float
    target_return: float
    mean_return: float
    best_return: float
    max_steps: int
    num_train_steps: int
    checksum: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def observation_dim(self) -> int:
        """S."""
        return len(self.observation_mean)

    @property
    def action_dim(self) -> int:
        """A."""
        return len(self.action_low)

    def scaled_observations(self, observations: NDArray) -> NDArray[np.float32]:
        """[..., S] as the model sees them."""
        mean, scale = np.array(self.observation_mean), np.array(self.observation_scale)
        return as_float32((observations - mean) / scale)

    def scaled_actions(self, actions: NDArray) -> NDArray[np.float32]:
        """[..., A] in -1 ... 1."""
        middle, half = self._range()
        return as_float32((actions - middle) / half)

    def actions(self, scaled: NDArray) -> NDArray[np.float32]:
        """Back from ``scaled_actions``."""
        middle, half = self._range()
        return as_float32(scaled * half + middle)

    def _range(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        low, high = np.array(self.action_low), np.array(self.action_high)
        return (low + high) / 2, (high - low) / 2

    def check(self) -> None:
        """Types and sizes."""
        super().check()
        at_least(1, observation_dim=self.observation_dim, action_dim=self.action_dim)
        at_least(1, max_steps=self.max_steps, num_train_steps=self.num_train_steps)
        for name, values in (
            ("observation_mean", self.observation_mean),
            ("observation_scale", self.observation_scale),
            ("action_low", self.action_low),
            ("action_high", self.action_high),
            ("returns", (self.target_return, self.mean_return, self.best_return)),
        ):
            if not all(abs(value) <= LARGEST for value in values):
                raise OptionError(
                    f"{name} must be finite, in float32 too, got {shown(values)}.", name
                )
        if len(self.observation_scale) != self.observation_dim:
            raise OptionError("an observation has a mean and a scale each.", "observation_scale")
        if len(self.action_high) != self.action_dim:
            raise OptionError("an action has a low and a high value each.", "action_high")
        if not (min(self.observation_scale) > 0 and 0 < self.return_scale < float("inf")):
            raise OptionError("scales must be positive and finite.", "observation_scale")
        if not all(low < high for low, high in zip(self.action_low, self.action_high, strict=True)):
            raise OptionError("action_low must be below action_high.", "action_low")


def as_float32(values: NDArray) -> NDArray[np.float32]:
    """Rounded to float32; what that cannot hold is infinite, which a model's NaN tells later."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)
