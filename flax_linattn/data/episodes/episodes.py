"""Episodes of offline reinforcement learning: observations, actions and rewards."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import MAX_SEED, OptionError, check_integers, format_count, quote
from flax_linattn.data.errors import DataFormatError

MAX_FLOAT32 = float(np.finfo(np.float32).max)
"""Maximum magnitude of a float32 number."""


MAX_DISCRETE_ACTIONS = 2**12
"""Maximum number of discrete actions; larger integers are probably magnitudes."""


def to_actions(
    place: str, actions: ArrayLike, num_actions: int | None = None
) -> NDArray[np.float32] | NDArray[np.int32]:
    """Converts continuous actions to float32 [N, A], and discrete ones, integers, to int32 [N].

    Args:
        place: ``file:key`` for errors, which name the row, too.
        actions: Floating-point numbers [N, A], or integers [N] or [N, 1].
        num_actions: Number of discrete actions. Default: no limit but ``MAX_DISCRETE_ACTIONS``.
    """
    array = np.asarray(actions)
    if array.dtype.kind not in "iu":
        if array.dtype.kind == "b" or num_actions is not None:
            raise DataFormatError(
                f"{place}: expected discrete actions as integers [N], got {array.dtype} "
                f"{list(array.shape)}; save them as int32."
            )
        return to_float32(place, array, 2)
    magnitudes = "If the integers are magnitudes and not choices, save them as float32 [N, A]."
    choices = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if choices.ndim != 1 or not choices.size:
        raise DataFormatError(
            f"{place}: expected discrete actions [N], one integer per step, got {array.dtype} "
            f"{list(array.shape)}; several choices per step (MultiDiscrete) are not supported. If "
            f"the rows are one-hot, save actions.argmax(axis=1). {magnitudes}"
        )
    limit = MAX_DISCRETE_ACTIONS if num_actions is None else num_actions
    if (wrong := np.flatnonzero((choices < 0) | (choices >= limit))).size:
        raise DataFormatError(
            f"{place}[{wrong[0]}]: expected a discrete action from 0 to {limit - 1:,}, got "
            f"{choices[wrong[0]]}; drop the episode, or correct it. {magnitudes}"
        )
    return np.ascontiguousarray(choices, np.int32)


def actions_as_text(action_dim: int, num_actions: int | None) -> str:
    """Describes the actions of an environment in messages.

    Example:
        >>> actions_as_text(3, None), actions_as_text(1, 2)
        ('actions of 3 numbers', '2 discrete actions')
    """
    if num_actions is None:
        return f"actions of {format_count(action_dim, 'number')}"
    return format_count(num_actions, "discrete action")


def refuse_images(place: str, observations: NDArray, shape: str = "[N, S]") -> None:
    """Raises an error for observations of several axes; ``place`` is ``file:key``."""
    if observations.ndim > 2:
        raise DataFormatError(
            f"{place}: expected observations as vectors {shape}, got {observations.dtype} "
            f"{list(observations.shape)}; images are not supported. Save features of each "
            "image, or its flattened pixels, as float32."
        )


def to_float32(place: str, values: ArrayLike, ndim: int) -> NDArray[np.float32]:
    """Converts finite numbers to float32 [``ndim`` axes]; errors name ``file:key[row]``."""
    array = np.asarray(values)
    form = "[N, numbers]" if ndim == 2 else "[N]"
    if array.dtype.kind not in "fiu":
        raise DataFormatError(
            f"{place}: expected numbers {form}, got {array.dtype} {list(array.shape)}; save them "
            "as float32."
        )
    if array.ndim != ndim or not array.size:
        raise DataFormatError(
            f"{place}: expected {form} with at least one step, got {list(array.shape)}; "
            "save the array in this shape."
        )
    if array.dtype == np.float32:
        wrong = ~np.isfinite(array)
    else:  # what float32 would round to infinity is refused with what is infinite
        with np.errstate(all="ignore"):
            wrong = ~(np.abs(array.astype(np.float64)) <= MAX_FLOAT32)
    if wrong.any():
        row = int(np.argmax(wrong.reshape(len(array), -1).any(1)))
        bad = array[row][wrong[row]] if ndim == 2 else array[row : row + 1]
        raise DataFormatError(
            f"{place}[{row}]: expected finite numbers that float32 can hold, got {bad[0]}; drop "
            "the episode, or correct it."
        )
    return np.ascontiguousarray(array, np.float32)


def environment_name(value: object) -> str | None:
    """Returns the environment that a file names; None if the name is not printable."""
    return value if isinstance(value, str) and value and value.isprintable() else None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Episodes:
    """Episodes of an environment with continuous or discrete actions, concatenated.

    There are N steps of E episodes, with S numbers in an observation and A numbers in an action.
    Other dtypes are converted to float32 if the values are in its range, except actions of an
    integer dtype, which are discrete.

    Args:
        name: Name of the source, for messages.
        observations: Observation before each action, float32 [N, S].
        actions: Continuous actions, float32 [N, A], or discrete ones from 0, int32 [N].
        rewards: Reward of each action, float32 [N].
        starts: First step of each episode, int64 [E + 1]: episode e holds the steps from
            ``starts[e]`` to ``starts[e + 1] - 1``. The first is 0, the last is N.
        terminated: Whether each episode ended in a terminal state, bool [E]; False if a time limit
            truncated it.
        env_id: Environment, such as "Hopper-v5", if the source names it.
        notes: Warnings about the source, such as excluded steps, one line each. They describe the
            source as it was read, also after a selection, and are neither part of the checksum nor
            written to files.
        num_actions: Number of discrete actions; None if actions are continuous. Default: one more
            than the largest integer in ``actions``.

    Raises:
        ValueError: If the arrays do not fit each other, an episode is empty, or a number is not
            finite; the message names the array and the row, from 0.
        TypeError: If ``notes`` is not a tuple of strings.

    Example:
        >>> rewards = np.array([1.0, 2.0, 4.0])
        >>> episodes = Episodes("toy", np.zeros((3, 2)), np.zeros((3, 1)), rewards,
        ...                     np.array([0, 2, 3]), np.array([True, False]))
        >>> episodes.num_steps, episodes.num_episodes, episodes.lengths.tolist()
        (3, 2, [2, 1])
        >>> episodes.returns.tolist(), episodes.returns_to_go().tolist()
        ([3.0, 4.0], [3.0, 2.0, 4.0])
        >>> episodes
        Episodes('toy', num_episodes=2, num_steps=3, observation_dim=2, action_dim=1, env_id=None)
        >>> choices = Episodes("toy", np.zeros((3, 2)), np.array([0, 2, 1]), rewards,
        ...                    np.array([0, 3]), np.array([True]))
        >>> choices.num_actions, choices.action_dim
        (3, 1)
    """

    name: str
    observations: NDArray[np.float32]
    actions: NDArray[np.float32] | NDArray[np.int32]
    rewards: NDArray[np.float32]
    starts: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    env_id: str | None = None
    notes: tuple[str, ...] = ()
    num_actions: int | None = None

    def __post_init__(self) -> None:
        if self.env_id is not None and environment_name(self.env_id) is None:
            raise ValueError(
                f"{self.name}: expected env_id as a name such as 'Hopper-v5', or None, got "
                f"{quote(self.env_id)}."
            )
        notes: object = self.notes
        if not (isinstance(notes, tuple) and all(isinstance(note, str) for note in notes)):
            raise TypeError(
                f"{self.name}: expected notes as a tuple of strings, got {quote(notes)}."
            )
        check_integers(1, MAX_DISCRETE_ACTIONS, num_actions=self.num_actions)
        refuse_images(f"{self.name}:observations", np.asarray(self.observations))
        for what, ndim in (("observations", 2), ("rewards", 1)):
            self._set(what, to_float32(f"{self.name}:{what}", getattr(self, what), ndim))
        self._set("actions", to_actions(f"{self.name}:actions", self.actions, self.num_actions))
        if self.num_actions is None and self.actions.dtype == np.int32:
            self._set("num_actions", int(self.actions.max()) + 1)
        for what in ("actions", "rewards"):
            if (length := len(getattr(self, what))) != self.num_steps:
                raise DataFormatError(
                    f"{self.name}:{what}: expected one for each of {self.num_steps:,} "
                    f"observations, got {length:,}; pass all arrays for the same steps."
                )
        self._set("starts", self._checked_starts())
        terminated = np.asarray(self.terminated)
        if terminated.dtype != np.bool_ or terminated.shape != (self.num_episodes,):
            raise ValueError(
                f"{self.name}: expected terminated as bool [{self.num_episodes}], one for each "
                f"episode, got {terminated.dtype} {list(terminated.shape)}."
            )
        self._set("terminated", terminated)
        self._check_returns()

    def __repr__(self) -> str:
        name = "action_dim" if self.num_actions is None else "num_actions"
        return (
            f"Episodes({self.name!r}, num_episodes={self.num_episodes}, num_steps={self.num_steps}"
            f", observation_dim={self.observation_dim}, {name}={getattr(self, name)}, "
            f"env_id={self.env_id!r})"
        )

    def _set(self, field: str, value: NDArray | int) -> None:
        object.__setattr__(self, field, value)  # the only way in a frozen class

    def _checked_starts(self) -> NDArray[np.int64]:
        starts = np.asarray(self.starts)
        if starts.dtype.kind not in "iu" or starts.ndim != 1 or len(starts) < 2:
            raise ValueError(
                f"{self.name}: expected starts as integers [E + 1] of at least one episode, "
                f"got {starts.dtype} {list(starts.shape)}."
            )
        starts = starts.astype(np.int64)
        if starts[0] != 0 or starts[-1] != self.num_steps:
            raise ValueError(
                f"{self.name}: expected starts from 0 to {self.num_steps}, the number of steps, "
                f"got {starts[0]} to {starts[-1]}."
            )
        if (wrong := np.flatnonzero(starts[1:] <= starts[:-1])).size:
            at = int(wrong[0])
            raise ValueError(
                f"{self.name}: episode {at}: expected at least one step in it, got starts[{at}] = "
                f"{starts[at]} and starts[{at + 1}] = {starts[at + 1]}."
            )
        return starts

    def _check_returns(self) -> None:
        """Raises an error for a return-to-go beyond the range of float32."""
        sums = np.add.reduceat(np.abs(self.rewards, dtype=np.float64), self.starts[:-1])
        if (wrong := np.flatnonzero(sums > MAX_FLOAT32)).size:
            raise DataFormatError(
                f"{self.name}: episode {wrong[0]}: expected rewards whose sum fits float32, "
                f"but their magnitudes add up to {sums[wrong[0]]:g}; scale the rewards."
            )

    @property
    def num_steps(self) -> int:
        """Number of steps of all episodes, N."""
        return len(self.observations)

    @property
    def num_episodes(self) -> int:
        """Number of episodes in the data, E."""
        return len(self.starts) - 1

    @property
    def observation_dim(self) -> int:
        """Size of an observation, S numbers."""
        return int(self.observations.shape[1])

    @property
    def action_dim(self) -> int:
        """Size of an action, A numbers; 1 for discrete actions."""
        return 1 if self.num_actions is not None else int(self.actions.shape[1])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of steps of each episode, int64 [E]."""
        return np.diff(self.starts)

    @property
    def returns(self) -> NDArray[np.float64]:
        """Sum of the rewards of each episode, undiscounted, float64 [E]."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.starts[:-1])

    def returns_to_go(self) -> NDArray[np.float32]:
        """Sum of the rewards from each step to the end of its episode, float32 [N].

        The sum is undiscounted and includes the reward of the step itself; it is computed in
        float64.
        """
        totals = np.empty(self.num_steps, np.float32)
        rewards = self.rewards.astype(np.float64)
        for start, stop in zip(self.starts[:-1], self.starts[1:], strict=True):
            totals[start:stop] = np.cumsum(rewards[start:stop][::-1])[::-1]
        return totals

    def take(self, episodes: ArrayLike) -> Episodes:
        """Selects episodes in the given order; an episode may be selected more than once.

        Args:
            episodes: Indices of the episodes, from 0.

        Raises:
            ValueError: If ``episodes`` is empty or holds an index out of range.

        Example:
            >>> one = Episodes("toy", np.arange(3.0)[:, None], np.zeros((3, 1)), np.zeros(3),
            ...                np.array([0, 2, 3]), np.array([True, False]))
            >>> one.take([1, 0]).observations[:, 0].tolist()
            [2.0, 0.0, 1.0]
        """
        chosen = np.asarray(episodes)
        if chosen.dtype.kind not in "iu" or chosen.ndim != 1 or not chosen.size:
            raise ValueError(
                f"{self.name}: expected episode indices [n], at least one, got "
                f"{chosen.dtype} {list(chosen.shape)}."
            )
        if (wrong := np.flatnonzero((chosen < 0) | (chosen >= self.num_episodes))).size:
            raise ValueError(
                f"{self.name}: expected episode indices from 0 to {self.num_episodes - 1}, "
                f"got {chosen[wrong[0]]}."
            )
        lengths = self.lengths[chosen]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        # Where the rows of each episode are: as they lie here, moved to where they lay.
        rows = np.arange(starts[-1]) + np.repeat(self.starts[chosen] - starts[:-1], lengths)
        return dataclasses.replace(
            self,
            observations=self.observations[rows],
            actions=self.actions[rows],
            rewards=self.rewards[rows],
            starts=starts,
            terminated=self.terminated[chosen],
        )

    def top(self, fraction: float) -> Episodes:
        """Selects the episodes of highest return that hold at least a fraction of the steps.

        Of equal returns the earlier one is taken first. The selected episodes keep their order.

        Args:
            fraction: Fraction of the steps, above 0 and up to 1; 0.1 gives the data of 10 % BC.

        Raises:
            OptionError: If ``fraction`` is outside (0, 1].

        Example:
            >>> one = Episodes("toy", np.zeros((4, 2)), np.zeros((4, 1)), np.arange(4.0),
            ...                np.array([0, 1, 2, 4]), np.array([True, True, True]))
            >>> one.top(0.5).returns.tolist(), one.top(0.75).returns.tolist()
            ([5.0], [1.0, 5.0])
        """
        if not 0 < fraction <= 1:
            raise OptionError(f"fraction must be above 0 and up to 1, got {fraction}.", "fraction")
        best = np.argsort(-self.returns, kind="stable")
        # Divided, not multiplied: 7 of 100 steps are 0.07 of them, while 0.07 * 100 is above 7.
        enough = np.cumsum(self.lengths[best]) / self.num_steps >= fraction
        return self.take(np.sort(best[: int(np.argmax(enough)) + 1]))

    def checksum(self) -> str:
        """SHA-256 of all arrays, in hexadecimal; the name and the environment do not count.

        Example:
            >>> one = Episodes("toy", np.zeros((1, 1)), np.zeros((1, 1)), np.zeros(1),
            ...                np.array([0, 1]), np.array([True]))
            >>> one.checksum()[:16]
            '9cff6c48aca80180'
        """
        digest = hashlib.sha256()
        discrete = {} if self.num_actions is None else {"actions": "<i4"}
        for field, dtype in (_ARRAYS | discrete).items():
            array = getattr(self, field)
            digest.update(f"{field} {dtype} {list(array.shape)}\n".encode())
            digest.update(np.ascontiguousarray(array, dtype).tobytes())
        return digest.hexdigest()


_ARRAYS = {
    "observations": "<f4",
    "actions": "<f4",
    "rewards": "<f4",
    "starts": "<i8",
    "terminated": "|b1",
}
"""Dtypes of the arrays in the checksum, which is the same on every machine; never change them."""


def join_episodes(parts: Sequence[Episodes]) -> Episodes:
    """Joins the episodes of several sources: medium and expert give medium-expert.

    Duplicate notes are removed. The number of discrete actions is the maximum over the parts.

    Args:
        parts: One or more sets of episodes of the same environment.

    Raises:
        ValueError: If ``parts`` is empty, or the parts differ in the sizes of observations or
            actions, or in the environment.

    Example:
        >>> one = Episodes("a", np.zeros((2, 3)), np.zeros((2, 1)), np.zeros(2), np.array([0, 2]),
        ...                np.array([True]), env_id="Hopper-v5")
        >>> both = join_episodes([one, one])
        >>> both.name, both.num_episodes, both.starts.tolist(), both.env_id
        ('a + a', 2, [0, 2, 4], 'Hopper-v5')
    """
    if not parts:
        raise ValueError("expected at least one set of episodes to join, got none.")
    first = parts[0]
    if len(parts) == 1:
        return first
    for other in parts[1:]:
        if other.observation_dim != first.observation_dim:
            raise ValueError(
                f"{other.name}: expected observations of {first.observation_dim} numbers, as "
                f"{first.name} has, got {other.observation_dim}; join only data of one environment."
            )
        sizes = [(part.num_actions is None, part.action_dim) for part in (first, other)]
        if sizes[0] != sizes[1]:
            mine, its = (actions_as_text(p.action_dim, p.num_actions) for p in (first, other))
            raise ValueError(
                f"{other.name}: expected {mine}, as {first.name} has, got {its}; join only data of "
                "one environment."
            )
    named = [part for part in parts if part.env_id is not None]
    for other in named[1:]:
        if other.env_id != named[0].env_id:
            raise ValueError(
                f"{other.name}: expected data of {quote(named[0].env_id)}, as {named[0].name} is, "
                f"got {quote(other.env_id)}; join only data of one environment."
            )
    ends = np.cumsum([part.num_steps for part in parts])
    starts = [part.starts[1:] + end - part.num_steps for part, end in zip(parts, ends, strict=True)]
    return Episodes(
        " + ".join(part.name for part in parts),
        np.concatenate([part.observations for part in parts]),
        np.concatenate([part.actions for part in parts]),
        np.concatenate([part.rewards for part in parts]),
        np.concatenate([[0], *starts]),
        np.concatenate([part.terminated for part in parts]),
        named[0].env_id if named else None,
        tuple(dict.fromkeys(itertools.chain.from_iterable(part.notes for part in parts))),
        None if first.num_actions is None else max(part.num_actions or 0 for part in parts),
    )


def split_episodes(episodes: Episodes, validation: float, seed: int) -> tuple[Episodes, Episodes]:
    """Splits episodes at random into training and validation episodes.

    Args:
        episodes: Two or more episodes.
        validation: Fraction of validation episodes, above 0 and below 1; rounded to whole episodes,
            with at least one in each part.
        seed: Random seed of the split.

    Returns:
        Training and validation episodes, each in their original order.

    Raises:
        OptionError: If ``validation`` is out of range, or there is only one episode.

    Example:
        >>> one = Episodes("toy", np.zeros((4, 2)), np.zeros((4, 1)), np.arange(4.0),
        ...                np.arange(5), np.ones(4, bool))
        >>> train, held_out = split_episodes(one, 0.25, seed=0)
        >>> train.num_episodes, held_out.num_episodes
        (3, 1)
    """
    check_integers(0, MAX_SEED, seed=seed)
    if not 0 < validation < 1:
        raise OptionError(
            f"validation must be a fraction above 0 and below 1, got {validation}.", "validation"
        )
    number = episodes.num_episodes
    if number < 2:
        raise OptionError(
            f"{episodes.name}: expected at least 2 episodes, to hold some out for "
            "validation, got 1; provide more episodes, or train without validation.",
            "validation",
        )
    count = min(max(round(validation * number), 1), number - 1)
    chosen = np.random.default_rng(seed).permutation(number)[:count]
    held_out = np.zeros(number, bool)
    held_out[chosen] = True
    return episodes.take(np.flatnonzero(~held_out)), episodes.take(np.flatnonzero(held_out))
