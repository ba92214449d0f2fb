"""The data of a run on decisions: episodes, their parts, windows of steps."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError, at_least, quote
from flax_linattn.data.batches.batches import ALL_ROWS
from flax_linattn.data.episodes import Episodes, find_family, load_episodes, split_episodes
from flax_linattn.data.episodes.episodes import MAX_FLOAT32
from flax_linattn.tasks.offline_rl.options import OfflineRLConfig, OfflineRLData
from flax_linattn.tasks.spec import DataSpec


@dataclasses.dataclass(frozen=True)
class OfflineRLSpec(DataSpec):
    """What the training data say: kept in the run folder so that a run needs no training data.

    Attributes:
        dataset: its name.
        env_id: the environment to play in; None = it is not played.
        observation_mean: of each number of an observation.
        observation_scale: by which it is divided once the mean is taken off.
        action_low: what counts as -1, of each number of an action.
        action_high: what counts as 1.
        return_scale: the return that counts as one.
        target_return: default target return of an episode.
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
        """Of a step, see ``models.DecisionColumns``."""
        width = 3 + self.observation_dim + self.action_dim
        return jax.ShapeDtypeStruct((1, width), jnp.float32)

    @property
    def observation_dim(self) -> int:
        """Size S of an observation."""
        return len(self.observation_mean)

    @property
    def action_dim(self) -> int:
        """Size A of an action."""
        return len(self.action_low)

    def scaled_observations(self, observations: NDArray) -> NDArray[np.float32]:
        """[..., S] as the model sees them."""
        mean, scale = np.array(self.observation_mean), np.array(self.observation_scale)
        return to_float32((observations - mean) / scale)

    def scaled_actions(self, actions: NDArray) -> NDArray[np.float32]:
        """[..., A] in -1 ... 1."""
        middle, half = self._range()
        return to_float32((actions - middle) / half)

    def actions(self, scaled: NDArray) -> NDArray[np.float32]:
        """Actions in the unit of the data, from actions in -1 ... 1."""
        middle, half = self._range()
        return to_float32(scaled * half + middle)

    def _range(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        low, high = np.array(self.action_low), np.array(self.action_high)
        return (low + high) / 2, (high - low) / 2

    def check(self) -> None:
        """Checks types and sizes of what was read from the run folder."""
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
            if not all(abs(value) <= MAX_FLOAT32 for value in values):
                raise OptionError(
                    f"{name} must be finite, in float32 too, got {quote(values)}.", name
                )
        if len(self.observation_scale) != self.observation_dim:
            raise OptionError("an observation has a mean and a scale each.", "observation_scale")
        if len(self.action_high) != self.action_dim:
            raise OptionError("an action has a low and a high value each.", "action_high")
        if not (min(self.observation_scale) > 0 and 0 < self.return_scale < float("inf")):
            raise OptionError("scales must be positive and finite.", "observation_scale")
        if not all(low < high for low, high in zip(self.action_low, self.action_high, strict=True)):
            raise OptionError("action_low must be below action_high.", "action_low")


def to_float32(values: NDArray) -> NDArray[np.float32]:
    """Rounded to float32; what that cannot hold is infinite, and makes a model's actions NaN."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


PUBLISHED_TARGETS = {"HalfCheetah": 6000.0, "Hopper": 3600.0, "Walker2d": 5000.0, "Ant": 6000.0}
"""The returns that the published code asks for; it has no Ant, which has HalfCheetah's here."""

UNIT = 1.0 + 1e-6
"""Actions up to this size are in -1 ... 1 as they are."""


class Parts(NamedTuple):
    """The episodes by what they are for."""

    train: Episodes
    validation: Episodes
    test: Episodes


def load_data(options: OfflineRLData) -> Episodes:
    """All episodes that a run is about."""
    if options.file:
        episodes = load_episodes(
            options.file, options.file_format, keep_unfinished=options.keep_unfinished
        )
    else:
        episodes = data.pendulum()
    number = options.num_episodes
    if number > episodes.num_episodes:
        raise OptionError(
            f"{episodes.name} has {episodes.num_episodes:,} episodes, expected at least "
            f"num_episodes={number:,}; ask for fewer.",
            "num_episodes",
        )
    return episodes.take(np.arange(number)) if number else episodes


def split_data(episodes: Episodes, options: OfflineRLData) -> Parts:
    """Whole episodes for each part, sampled by the seed of the split."""
    if episodes.num_episodes < 3:
        raise OptionError(
            f"{episodes.name}: expected at least 3 episodes, to train, to select and to test on, "
            f"got {episodes.num_episodes}; give more.",
            "file",
        )
    held, test, seed = options.validation_fraction, options.test_fraction, options.split_seed
    others, tested = split_episodes(episodes, test, seed)
    # Its share of all, of those that are left; two at least are.
    train, validation = split_episodes(others, held / (1 - test), seed + 1)
    return Parts(train, validation, tested)


def resolve_env(options: OfflineRLData, episodes: Episodes) -> str | None:
    """The environment to play in, if any."""
    if options.env == "none":
        return None
    return options.env or episodes.env_id


def describe(episodes: Episodes, config: OfflineRLConfig) -> OfflineRLSpec:
    """Scales and returns of the episodes to train on.

    Observations are standardized as in the published code, but for numbers that never change.
    Actions stay as they are where none is beyond -1 ... 1, as those of D4RL; else their range
    becomes that.
    """
    parts = split_data(episodes, config.data)
    train = parts.train
    longest = int(episodes.lengths.max())
    most = max_episode_length(config)
    if most is not None and longest > most:
        raise OptionError(
            f"an episode has {longest:,} steps, and the model times for {most:,}; raise "
            "max_length, or choose another position.",
            "max_length",
            "position",
        )
    seen = train.observations.astype(np.float64)
    # Told by the ends: the deviation of what never changes is a rounding error, or 0.
    constant = seen.min(axis=0) == seen.max(axis=0)
    done = train.actions.astype(np.float64)
    low, high = done.min(axis=0), done.max(axis=0)
    if max(-low.min(), high.max()) <= UNIT:
        low, high = -np.ones_like(low), np.ones_like(high)
    margin = np.where(low == high, np.maximum(np.abs(low), 1), 0)
    env_id = resolve_env(config.data, episodes)
    best = float(train.returns.max())
    largest = float(np.abs(train.returns_to_go()).max())
    return OfflineRLSpec(
        dataset=episodes.name,
        env_id=env_id,
        observation_mean=tuple(seen.mean(axis=0).tolist()),
        observation_scale=tuple(np.where(constant, 1.0, seen.std(axis=0) + 1e-6).tolist()),
        action_low=tuple((low - margin).tolist()),
        action_high=tuple((high + margin).tolist()),
        return_scale=config.fit.return_scale or largest or 1.0,
        target_return=resolve_target_return(config, env_id, best),
        mean_return=float(train.returns.mean()),
        best_return=best,
        max_steps=longest,
        num_train_steps=train.num_steps,
        checksum={"train": train.checksum(), "test": parts.test.checksum()},
    )


def resolve_target_return(config: OfflineRLConfig, env_id: str | None, best: float) -> float:
    """The target return of a run whose best known return is ``best``."""
    if config.play.target_return is not None:
        return config.play.target_return
    return PUBLISHED_TARGETS.get(find_family(env_id or "") or "", best)


def max_episode_length(config: OfflineRLConfig) -> int | None:
    """Steps of an episode for which the model has times; None stands for any number.

    A stream counts them from the start of the episode, whatever the clock of windows.
    """
    counted = config.model.clock == "episode" or config.play.act == "stream"
    return config.model.max_length if config.model.position == "learned" and counted else None


class Steps(NamedTuple):
    """All steps of episodes: the model's inputs [N, 3 + S + A] and targets [N, A] in -1 ... 1."""

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
    """Steps float32 [..., 3 + S + A], as ``models.DecisionColumns`` has them."""
    end = 3 + observation.shape[-1]
    x = np.empty((*time.shape, end + action.shape[-1]), np.float32)
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
        x[..., 0], x[..., 1], x[..., 2] = time, known, return_to_go
        x[..., 3:end], x[..., end:] = observation, action
    return x


def begin_context(x: NDArray[np.float32], clock: str) -> NDArray[np.float32]:
    """Windows [..., K, W] without what was before them.

    The action before the first step is left out, as in the published code; with the clock
    "context" times are counted from there.
    """
    x = x.copy()
    x[..., 0, 1] = 0
    if clock == "context":
        x[..., 0] = np.arange(x.shape[-2])
    return x


class WindowBatches:
    """Windows of steps, sampled in each training step, or in order with ``seed=None``.

    An episode is sampled, and a window of it: each episode alike, as in the published code, or in
    proportion to its length. The samples of a batch are independent; the published code shows all
    episodes before it repeats one. Episodes shorter than the window are padded at their end.
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
        """Batches that show about as many steps as there are, or all windows."""
        return -(-len(self._begins) // self._size)

    def batch(self, step: int, rows: slice = ALL_ROWS) -> dict[str, NDArray]:
        """``x`` [B, K, 3 + S + A], ``mask`` [B, K], ``actions`` [B, K, A], ``weight`` [B]."""
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
        room = np.maximum(np.diff(starts)[episodes] - self._context, 0)
        return starts[episodes] + rng.integers(0, room + 1), np.ones(B, np.float32)

    def _take(self, begins: NDArray[np.int64]) -> dict[str, NDArray]:
        starts = self._steps.starts
        ends = starts[np.searchsorted(starts, begins, side="right")]
        at = begins[:, None] + np.arange(self._context)
        mask = at < ends[:, None]
        at = np.where(mask, at, begins[:, None])
        x = begin_context(self._steps.x[at], self._clock)
        return {"x": x, "mask": mask, "actions": self._steps.actions[at]}
