"""Simple agents: random actions, a swing-up, a balance, and noise on another agent's actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import MAX_SEED, OptionError, check_integers
from flax_linattn.control import Agent, SamplingAgent

Floats: TypeAlias = NDArray[np.float32]
Flags: TypeAlias = NDArray[np.bool_]
Choices: TypeAlias = NDArray[np.int64]


class RandomPolicy:
    """Samples actions uniformly between bounds.

    Args:
        low: The least actions, [A].
        high: The largest, [A].
        seed: Of the random numbers, from 0.

    Raises:
        OptionError: The bounds are not finite, or of different sizes.

    Example:
        >>> policy = RandomPolicy([-2.0], [2.0], seed=0)
        >>> seen, rewards = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
        >>> actions = policy.act(seen, rewards, begins=np.ones(2, bool))
        >>> actions.shape, bool((abs(actions) <= 2).all())
        ((2, 1), True)
    """

    def __init__(self, low: ArrayLike, high: ArrayLike, seed: int = 0) -> None:
        self._low, self._high = _bounds(low, high)
        if not (np.isfinite(self._low).all() and np.isfinite(self._high).all()):
            raise OptionError(
                f"random actions take finite bounds, got {self._low} to {self._high}.",
                "low",
                "high",
            )
        self._generators = _EpisodeGenerators(seed)

    def begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Receives the seeds of episodes: see ``SamplingAgent``."""
        self._generators.begin(rows, seeds)

    def act(self, observations: Floats, rewards: Floats, begins: Flags) -> Floats:
        """Random actions between the bounds, float32 [B, A]."""
        draws = self._generators.select(begins)
        return np.stack([d.uniform(self._low, self._high) for d in draws]).astype(np.float32)


class Noisy:
    """Another agent with Gaussian noise on its actions, between the bounds.

    Args:
        agent: Whose actions.
        std: The standard deviation of the noise, 0 or more, in the unit of the actions.
        low: The least actions, [A]; actions are clipped to them before and after the noise.
        high: The largest, [A].
        seed: Of the noise, from 0.

    Raises:
        OptionError: The std is negative or not finite, or the bounds differ in size.

    Example:
        >>> agent = Noisy(SwingUp(), 0.5, [-2.0], [2.0], seed=0)
        >>> down = np.array([[-1.0, 0.0, 1.0]], np.float32)
        >>> agent.act(down, np.zeros(1, np.float32), np.ones(1, bool)).shape
        (1, 1)
    """

    def __init__(
        self, agent: Agent, std: float, low: ArrayLike, high: ArrayLike, seed: int = 0
    ) -> None:
        if not 0 <= std < np.inf:
            raise OptionError(f"std must be 0 or more, got {std}.", "std")
        self._agent = agent
        self._std = std
        self._low, self._high = _bounds(low, high)
        self._generators = _EpisodeGenerators(seed)

    def begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Receives the seeds of episodes: see ``SamplingAgent``."""
        self._generators.begin(rows, seeds)
        if isinstance(self._agent, SamplingAgent):
            self._agent.begin(rows, seeds)

    def act(self, observations: Floats, rewards: Floats, begins: Flags) -> Floats:
        """The other agent's actions with noise, float32 [B, A]."""
        actions = np.clip(self._agent.act(observations, rewards, begins), self._low, self._high)
        draws = self._generators.select(begins)
        noise = np.stack([d.standard_normal(actions.shape[1]) for d in draws])
        return np.clip(actions + self._std * noise, self._low, self._high).astype(np.float32)


class NoisyChoices:
    """Another agent with discrete actions, a fraction of which is replaced by random ones.

    Args:
        agent: The agent; None for random actions alone.
        fraction: Fraction of random actions, 0 to 1.
        num_actions: Number of actions.
        seed: Seed of the random numbers, from 0.

    Raises:
        OptionError: The fraction is out of range.

    Example:
        >>> agent = NoisyChoices(Balance(), 0.5, num_actions=2, seed=0)
        >>> agent.act(np.zeros((3, 4), np.float32), np.zeros(3, np.float32), np.ones(3, bool)).shape
        (3,)
    """

    def __init__(
        self, agent: Agent | None, fraction: float, num_actions: int, seed: int = 0
    ) -> None:
        if not 0 <= fraction <= 1:
            raise OptionError(f"fraction must be from 0 to 1, got {fraction}.", "fraction")
        check_integers(1, num_actions=num_actions)
        self._agent = agent
        self._fraction = 1.0 if agent is None else fraction
        self._num_actions = num_actions
        self._generators = _EpisodeGenerators(seed)

    def begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Receives the seeds of episodes: see ``SamplingAgent``."""
        self._generators.begin(rows, seeds)
        if isinstance(self._agent, SamplingAgent):
            self._agent.begin(rows, seeds)

    def act(self, observations: Floats, rewards: Floats, begins: Flags) -> Choices:
        """Returns the other agent's actions or random ones, int64 [B]."""
        draws = self._generators.select(begins)
        choices = np.array([d.integers(self._num_actions) for d in draws])
        if self._agent is None:
            return choices
        is_random = np.array([d.random() < self._fraction for d in draws])
        return np.where(is_random, choices, self._agent.act(observations, rewards, begins))


class Balance:
    """Balances the pole of CartPole-v1: pushes the cart to the side to which the pole falls.

    Example:
        >>> falls_right = np.array([[0.0, 0.0, 0.1, 0.0]], np.float32)  # cart, then pole
        >>> Balance().act(falls_right, np.zeros(1, np.float32), np.ones(1, bool))
        array([1])
    """

    def act(self, observations: Floats, rewards: Floats, begins: Flags) -> Choices:
        """Pushes left (0) or right (1), int64 [B].

        Raises:
            ValueError: If the observations do not fit CartPole.
        """
        if observations.shape[1] != 4:
            raise ValueError(
                "the balance is of CartPole-v1, whose observations are position and velocity of "
                f"cart and pole, got {observations.shape[1]} numbers."
            )
        place, speed, angle, turn = observations.T.astype(np.float64)
        return (angle + 0.3 * turn + 0.02 * place + 0.04 * speed > 0).astype(np.int64)


class SwingUp:
    """Swings up the pendulum of Pendulum-v1 by its energy, and holds it there.

    K. J. Åström and K. Furuta, "Swinging up a pendulum by energy control", Automatica 36 (2000):
    the torque has the sign of the angular velocity as long as the energy is below that of the
    upright pendulum at rest, eq. 8; near the top a linear feedback takes over. Mass and length are
    1 and gravity is 10, as gymnasium has them.

    Example:
        >>> down = np.array([[-1.0, 0.0, 0.1]], np.float32)  # cosine, sine, angular velocity
        >>> SwingUp().act(down, np.zeros(1, np.float32), np.ones(1, bool))
        array([[2.]], dtype=float32)
    """

    def act(self, observations: Floats, rewards: Floats, begins: Flags) -> Floats:
        """Torques that swing up the pendulum, float32 [B, 1].

        Raises:
            ValueError: If the observations do not fit Pendulum.
        """
        if observations.shape[1] != 3:
            raise ValueError(
                "the swing-up is of Pendulum-v1, whose observations are cosine, sine and angular "
                f"velocity, got {observations.shape[1]} numbers."
            )
        cosine, sine, velocity = observations.T.astype(np.float64)
        angle = np.arctan2(sine, cosine)  # from the top
        energy = velocity**2 / 6 + 5 * cosine  # of a rod: inertia 1/3, center at 1/2
        pump = np.copysign(2.0, velocity * (5 - energy))
        hold = -(8 * angle + 2 * velocity)
        near = (np.abs(hold) <= 2) & (cosine > 0.3)
        return np.where(near, hold, pump)[:, None].astype(np.float32)


class _EpisodeGenerators:
    """Random generators, one for each row, recreated for each episode from its seed."""

    def __init__(self, seed: int) -> None:
        check_integers(0, MAX_SEED, seed=seed)
        self._seed = seed
        self._seeds: dict[int, int] = {}
        self._next_seed = 0
        self._by_row: dict[int, np.random.Generator] = {}

    def begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        self._seeds.update(zip(rows, seeds, strict=True))

    def select(self, begins: NDArray[np.bool_]) -> list[np.random.Generator]:
        """The generators of all rows; an episode without a seed uses its number."""
        for row in range(len(begins)):
            if begins[row] or row not in self._by_row:
                if row not in self._seeds:
                    self._seeds[row] = self._next_seed
                    self._next_seed += 1
                episode = self._seeds.pop(row)
                # The last number makes them differ from an environment with this seed.
                self._by_row[row] = np.random.default_rng([self._seed, episode, 1])
        return [self._by_row[row] for row in range(len(begins))]


def _bounds(low: ArrayLike, high: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    lows, highs = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if lows.ndim != 1 or lows.shape != highs.shape or not (lows <= highs).all():
        raise OptionError(
            f"bounds of actions are two vectors [A], low <= high, got {lows} and {highs}.",
            "low",
            "high",
        )
    return lows, highs
