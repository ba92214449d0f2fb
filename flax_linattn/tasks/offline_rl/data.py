"""Data of offline-RL runs: episodes, their splits, and windows of steps."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError, check_integers, quote
from flax_linattn.data.batches.batches import ALL_ROWS
from flax_linattn.data.episodes import Episodes, find_family, load_episodes, split_episodes
from flax_linattn.data.episodes.episodes import MAX_DISCRETE_ACTIONS, MAX_FLOAT32
from flax_linattn.tasks.offline_rl.actions import (
    ActionSpace,
    ContinuousActions,
    DiscreteActions,
    to_float32,
)
from flax_linattn.tasks.offline_rl.options import OfflineRLConfig, OfflineRLData
from flax_linattn.tasks.spec import DataSpec, omit_if_empty


@dataclasses.dataclass(frozen=True)
class OfflineRLSpec(DataSpec):
    """Metadata of the training episodes, saved in the run folder.

    Attributes:
        dataset: Name of the data set.
        env_id: Environment to play in; None plays no episodes.
        observation_mean: Mean of each number of an observation.
        observation_scale: Divisor of each number of an observation after subtracting the mean.
        action_low: Value of each number of a continuous action that is scaled to -1.
        action_high: Value of each number of a continuous action that is scaled to 1.
        return_scale: Return that is scaled to 1.
        target_return: Default target return of an episode.
        mean_return: Mean return of the training episodes.
        best_return: Maximum return of the training episodes.
        max_steps: Number of steps of the longest episode of all splits.
        num_train_steps: Number of steps of the training episodes.
        checksum: Checksums of the training episodes ("train") and the test episodes ("test").
        num_actions: Number of discrete actions; None if actions are continuous.
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
    num_actions: int | None = omit_if_empty(None)
    scale_fields: ClassVar[tuple[str, ...]] = (
        *("observation_mean", "observation_scale"),
        *("action_low", "action_high", "return_scale"),
    )
    free_fields: ClassVar[tuple[str, ...]] = (
        *("dataset", "env_id", "target_return", "mean_return", "best_return"),
        *("max_steps", "num_train_steps", "checksum"),
    )

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of a step, see ``models.DecisionColumns``."""
        width = 3 + self.observation_dim + self.action_dim
        return jax.ShapeDtypeStruct((1, width), jnp.float32)

    @property
    def observation_dim(self) -> int:
        """Size S of an observation."""
        return len(self.observation_mean)

    @property
    def action_dim(self) -> int:
        """Size A of an action, 1 for discrete actions."""
        return self.action_space.action_dim

    @functools.cached_property
    def action_space(self) -> ActionSpace:
        """How actions enter a model and are chosen from its outputs."""
        if self.num_actions is not None:
            return DiscreteActions(self.num_actions)
        return ContinuousActions(self.action_low, self.action_high)

    def scaled_observations(self, observations: NDArray) -> NDArray[np.float32]:
        """Scales observations [..., S] to inputs of the model."""
        mean, scale = np.array(self.observation_mean), np.array(self.observation_scale)
        return to_float32((observations - mean) / scale)

    def scaled_actions(self, actions: NDArray) -> NDArray[np.float32]:
        """Scales actions to inputs of the model [..., A], see ``ActionSpace``."""
        return self.action_space.scale(actions)

    def actions(self, scaled: NDArray) -> NDArray:
        """Returns the actions of scaled actions [..., A] in the unit of the data."""
        return self.action_space.unscale(scaled)

    def check(self) -> None:
        """Checks types and sizes of what was read from the run folder."""
        super().check()
        check_integers(1, observation_dim=self.observation_dim, action_dim=self.action_dim)
        check_integers(1, MAX_DISCRETE_ACTIONS, num_actions=self.num_actions)
        check_integers(1, max_steps=self.max_steps, num_train_steps=self.num_train_steps)
        for name, values in (
            ("observation_mean", self.observation_mean),
            ("observation_scale", self.observation_scale),
            ("action_low", self.action_low),
            ("action_high", self.action_high),
            ("returns", (self.target_return, self.mean_return, self.best_return)),
        ):
            if not all(abs(value) <= MAX_FLOAT32 for value in values):
                raise OptionError(f"{name} must be finite in float32, got {quote(values)}.", name)
        if len(self.observation_scale) != self.observation_dim:
            raise OptionError(
                "observation_mean and observation_scale must have the same length.",
                "observation_scale",
            )
        if len(self.action_high) != len(self.action_low):
            raise OptionError(
                "action_low and action_high must have the same length.", "action_high"
            )
        if not (min(self.observation_scale) > 0 and 0 < self.return_scale < float("inf")):
            raise OptionError(
                "observation_scale and return_scale must be positive and finite.",
                "observation_scale",
            )
        if not all(low < high for low, high in zip(self.action_low, self.action_high, strict=True)):
            raise OptionError("action_low must be below action_high.", "action_low")


PUBLISHED_TARGETS = {"HalfCheetah": 6000.0, "Hopper": 3600.0, "Walker2d": 5000.0, "Ant": 6000.0}
"""Target returns of the published code, which has no Ant: here it has that of HalfCheetah."""

UNIT = 1.0 + 1e-6
"""Maximum size of actions that need no scaling to -1 ... 1."""


class Parts(NamedTuple):
    """The training, validation and test episodes."""

    train: Episodes
    validation: Episodes
    test: Episodes


def load_data(options: OfflineRLData) -> Episodes:
    """Loads all episodes of a run."""
    if options.file:
        episodes = load_episodes(
            options.file, options.file_format, keep_unfinished=options.keep_unfinished
        )
    else:
        episodes = data.pendulum()
    number = options.num_episodes
    if number > episodes.num_episodes:
        raise OptionError(
            f"num_episodes must be at most {episodes.num_episodes:,}, the number of episodes of "
            f"{episodes.name}, got {number:,}.",
            "num_episodes",
        )
    return episodes.take(np.arange(number)) if number else episodes


def split_data(episodes: Episodes, options: OfflineRLData) -> Parts:
    """Splits whole episodes at random by the seed of the split."""
    if episodes.num_episodes < 3:
        raise OptionError(
            f"expected at least 3 episodes in {episodes.name}, to train, validate and test on, got "
            f"{episodes.num_episodes}; pass more episodes.",
            "file",
        )
    held, test, seed = options.validation_fraction, options.test_fraction, options.split_seed
    others, tested = split_episodes(episodes, test, seed)
    # The fraction of all episodes, as a fraction of the rest, which has at least two.
    train, validation = split_episodes(others, held / (1 - test), seed + 1)
    return Parts(train, validation, tested)


def resolve_env(options: OfflineRLData, episodes: Episodes) -> str | None:
    """Returns the environment to play in, if any."""
    if options.env == "none":
        return None
    return options.env or episodes.env_id


def describe(episodes: Episodes, config: OfflineRLConfig) -> OfflineRLSpec:
    """Makes the data spec: scales and returns of the training episodes.

    Observations are standardized as in the published code, except numbers that never change.
    Continuous actions that are all in -1 ... 1, as in D4RL, stay as they are; others are scaled to
    that range.
    """
    parts = split_data(episodes, config.data)
    train = parts.train
    longest = int(episodes.lengths.max())
    max_length = max_episode_length(config)
    if max_length is not None and longest > max_length:
        raise OptionError(
            f"an episode has {longest:,} steps, but the model has times for {max_length:,}; "
            "increase max_length, or choose another position.",
            "max_length",
            "position",
        )
    observations = train.observations.astype(np.float64)
    # Minimum and maximum, because the standard deviation of a constant may be a rounding error.
    constant = observations.min(axis=0) == observations.max(axis=0)
    low, high = ((), ()) if train.num_actions is not None else action_range(train.actions)
    env_id = resolve_env(config.data, episodes)
    best = float(train.returns.max())
    max_return = float(np.abs(train.returns_to_go()).max())
    return OfflineRLSpec(
        dataset=episodes.name,
        env_id=env_id,
        observation_mean=tuple(observations.mean(axis=0).tolist()),
        observation_scale=tuple(np.where(constant, 1.0, observations.std(axis=0) + 1e-6).tolist()),
        action_low=low,
        action_high=high,
        return_scale=config.fit.return_scale or max_return or 1.0,
        target_return=resolve_target_return(config, env_id, best),
        mean_return=float(train.returns.mean()),
        best_return=best,
        max_steps=longest,
        num_train_steps=train.num_steps,
        checksum={"train": train.checksum(), "test": parts.test.checksum()},
        num_actions=train.num_actions,
    )


def action_range(actions: NDArray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the values of each number of continuous actions that are scaled to -1 and to 1."""
    low, high = (bound.astype(np.float64) for bound in (actions.min(axis=0), actions.max(axis=0)))
    if max(-low.min(), high.max()) <= UNIT:
        low, high = -np.ones_like(low), np.ones_like(high)
    margin = np.where(low == high, np.maximum(np.abs(low), 1), 0)
    return tuple((low - margin).tolist()), tuple((high + margin).tolist())


def resolve_target_return(config: OfflineRLConfig, env_id: str | None, best: float) -> float:
    """Returns the target return of a run whose best training return is ``best``."""
    if config.play.target_return is not None:
        return config.play.target_return
    return PUBLISHED_TARGETS.get(find_family(env_id or "") or "", best)


def max_episode_length(config: OfflineRLConfig) -> int | None:
    """Maximum number of steps of an episode that the model has times for; None has no limit.

    A stream counts times from the start of the episode, whatever the clock of windows.
    """
    counted = config.model.clock == "episode" or config.play.act == "stream"
    return config.model.max_length if config.model.position == "learned" and counted else None


class Steps(NamedTuple):
    """All steps of episodes: inputs [N, 3 + S + A] and scaled target actions [N, A]."""

    x: NDArray[np.float32]
    actions: NDArray[np.float32]
    starts: NDArray[np.int64]


def scale_episodes(episodes: Episodes, data_spec: OfflineRLSpec) -> Steps:
    """Scales all steps of episodes to model inputs and targets."""
    actions = data_spec.scaled_actions(episodes.actions)
    first = np.repeat(episodes.starts[:-1], episodes.lengths)
    time = np.arange(episodes.num_steps) - first
    before = np.roll(actions, 1, axis=0) * (time > 0)[:, None]
    x = columns(
        time,
        time > 0,
        episodes.returns_to_go() / data_spec.return_scale,
        data_spec.scaled_observations(episodes.observations),
        before,
    )
    return Steps(x, actions, episodes.starts)


def columns(
    time: NDArray, known: NDArray, return_to_go: NDArray, observation: NDArray, action: NDArray
) -> NDArray[np.float32]:
    """Joins the columns of steps to float32 [..., 3 + S + A], as in ``models.DecisionColumns``."""
    end = 3 + observation.shape[-1]
    x = np.empty((*time.shape, end + action.shape[-1]), np.float32)
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        x[..., 0], x[..., 1], x[..., 2] = time, known, return_to_go
        x[..., 3:end], x[..., end:] = observation, action
    return x


def begin_context(x: NDArray[np.float32], clock: str) -> NDArray[np.float32]:
    """Removes the history before windows [..., K, W].

    The previous action of the first step is removed, as in the published code; with the clock
    "context", times are counted from the first step.
    """
    x = x.copy()
    x[..., 0, 1] = 0
    if clock == "context":
        x[..., 0] = np.arange(x.shape[-2])
    return x


class WindowBatches:
    """Batches of windows of steps, sampled at random, or in order with ``seed=None``.

    A sample is a window of an episode. Episodes are equally likely, as in the published code, or in
    proportion to their lengths. Samples are independent, whereas the
    published code uses all episodes before it repeats one. Shorter episodes are padded at the end.
    """

    def __init__(
        self,
        episodes: Episodes,
        data_spec: OfflineRLSpec,
        config: OfflineRLConfig,
        *,
        seed: int | None,
    ) -> None:
        self.episodes = episodes
        self._steps = scale_episodes(episodes, data_spec)
        self._context, self._size = config.fit.context, config.fit.batch_size
        self._clock, self._seed = config.model.clock, seed
        self._weights = None
        if config.fit.windows == "steps":
            self._weights = episodes.lengths / episodes.num_steps
        bounds = itertools.pairwise(episodes.starts)
        self._begins = np.concatenate([np.arange(*own, self._context) for own in bounds])

    def __len__(self) -> int:
        """Number of batches of an epoch, with about as many steps as the episodes have."""
        return -(-len(self._begins) // self._size)

    def batch(self, step: int, rows: slice = ALL_ROWS) -> dict[str, NDArray]:
        """Makes ``x`` [B, K, 3 + S + A], ``mask`` [B, K], ``actions`` [B, K, A], ``weight`` [B]."""
        begins, weight = self._plan(step)
        return self._take(begins[rows]) | {"weight": weight[rows]}

    def _plan(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        B, starts = self._size, self._steps.starts
        if self._seed is None:
            at = (step % len(self)) * B + np.arange(B)
            real = at < len(self._begins)
            return self._begins[np.where(real, at, 0)], real.astype(np.float32)
        rng = np.random.default_rng([self._seed, step])
        episodes = rng.choice(len(starts) - 1, B, p=self._weights)
        last_starts = np.maximum(np.diff(starts)[episodes] - self._context, 0)
        return starts[episodes] + rng.integers(0, last_starts + 1), np.ones(B, np.float32)

    def _take(self, begins: NDArray[np.int64]) -> dict[str, NDArray]:
        starts = self._steps.starts
        ends = starts[np.searchsorted(starts, begins, side="right")]
        at = begins[:, None] + np.arange(self._context)
        mask = at < ends[:, None]
        at = np.where(mask, at, begins[:, None])
        x = begin_context(self._steps.x[at], self._clock)
        return {"x": x, "mask": mask, "actions": self._steps.actions[at]}
