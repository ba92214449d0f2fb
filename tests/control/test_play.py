"""Episodes against a plain loop over gymnasium's own environment."""

from contextlib import closing

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.checks import OptionError
from flax_linattn.control import action_bounds, make_environments, num_actions, play
from tests.control import toys


class Follow:
    """Goes against what it was rewarded with, which it adds up in each row."""

    def __init__(self, rows):
        self.sums = np.zeros(rows, np.float32)

    def act(self, observations, rewards, begins):
        assert not rewards[begins].any()
        self.sums = np.where(begins, 0, self.sums + rewards).astype(np.float32)
        pull = -0.1 * (self.sums + observations[:, 1])
        return np.stack([pull, 3 * pull], axis=1)


class Push:
    """Pushes the pendulum the way it goes, harder than the bounds allow."""

    def act(self, observations, rewards, begins):
        return 3 * np.sign(observations[:, 2:])


def alone(env_id, agent, seed):
    """One episode of an environment of gymnasium: observations, actions, rewards, its end."""
    env = gymnasium.make(env_id)
    seen, _ = env.reset(seed=seed)
    found, reward, begins = [], 0.0, True
    while True:
        seen = np.asarray(seen, np.float32)
        action = agent.act(seen[None], np.array([reward], np.float32), np.array([begins]))[0]
        action = np.clip(action, env.action_space.low, env.action_space.high)
        new, reward, terminated, truncated, _ = env.step(action)
        found.append((seen, action, np.float32(reward)))
        seen, begins = new, False
        if terminated or truncated:
            env.close()
            return *(np.array(column) for column in zip(*found, strict=True)), terminated


@pytest.mark.parametrize("num_envs", [1, 2, 5, 9])
def test_episodes_are_those_of_a_plain_loop(num_envs):
    seeds = [4, 0, 11, 3, 7, 8, 2]
    with closing(make_environments(toys.COUNTDOWN, num_envs)) as environments:
        episodes = play(Follow(num_envs), environments, seeds)
    assert episodes.env_id == toys.COUNTDOWN and episodes.num_episodes == len(seeds)
    assert set(episodes.terminated.tolist()) == {True, False}  # both ways to end
    for number, seed in enumerate(seeds):
        own = slice(*episodes.starts[number : number + 2])
        seen, actions, rewards, terminated = alone(toys.COUNTDOWN, Follow(1), seed)
        np.testing.assert_array_equal(episodes.observations[own], seen)
        np.testing.assert_array_equal(episodes.actions[own], actions)
        np.testing.assert_array_equal(episodes.rewards[own], rewards)
        assert episodes.terminated[number] == terminated


def test_the_pendulum_is_that_of_a_plain_loop():
    with closing(make_environments("Pendulum-v1", 2)) as environments:
        episodes = play(Push(), environments, [3, 1, 2])
    seen, actions, rewards, _ = alone("Pendulum-v1", Push(), 1)
    np.testing.assert_array_equal(episodes.observations[200:400], seen)
    np.testing.assert_array_equal(episodes.actions[200:400], actions)
    np.testing.assert_array_equal(episodes.rewards[200:400], rewards)
    assert not episodes.terminated.any()


class Sampling:
    """Samples actions by the seed of each episode."""

    def __init__(self):
        self.generators = {}

    def begin(self, rows, seeds):
        self.generators |= {
            row: np.random.default_rng([seed, 1]) for row, seed in zip(rows, seeds, strict=True)
        }

    def act(self, observations, rewards, begins):
        assert all(row in self.generators for row in np.flatnonzero(begins))
        own = [self.generators.get(row) for row in range(len(begins))]
        return np.array([[np.nan] * 2 if one is None else one.uniform(-1, 1, 2) for one in own])


@given(
    seeds=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9),
    rows=st.tuples(st.integers(1, 7), st.integers(1, 7)),
)
def test_the_number_of_environments_changes_nothing(seeds, rows):
    """Not what the agent samples either; what it answers for rows at rest does not count."""
    found = []
    for num_envs in rows:
        with closing(make_environments(toys.COUNTDOWN, num_envs)) as environments:
            found.append(play(Sampling(), environments, seeds).checksum())
    assert found[0] == found[1]


def test_any_vector_without_automatic_resets_will_do():
    """Such as that of gymnasium.make_vec, in which no environment rests."""
    disabled = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
    with (
        closing(make_environments(toys.COUNTDOWN, 3)) as ours,
        closing(gymnasium.make_vec(toys.COUNTDOWN, 3, vector_kwargs=disabled)) as theirs,
    ):
        found = [play(Follow(3), own, range(7)) for own in (ours, theirs)]
    assert found[0].checksum() == found[1].checksum()
    assert found[0].env_id == found[1].env_id == toys.COUNTDOWN


class Turns:
    """Discrete actions by the observation; -1 where no episode runs."""

    def act(self, observations, rewards, begins):
        return np.where(observations[:, 0] > 0, observations[:, 0].astype(int) % 3, -1)


def test_discrete_actions_are_played_and_recorded():
    found = []
    with toys.registered("Steps-v0", toys.Steps):
        for num_envs in (1, 4):
            with closing(make_environments("Steps-v0", num_envs)) as environments:
                assert num_actions(environments) == 3
                with pytest.raises(ValueError, match=r"have no bounds, got actions Discrete\(3\)"):
                    action_bounds(environments)
                found.append(play(Turns(), environments, range(6)))
    assert found[0].checksum() == found[1].checksum()
    episodes = found[0]
    assert (episodes.num_actions, episodes.actions.dtype) == (3, np.int32)
    np.testing.assert_array_equal(episodes.actions, episodes.observations[:, 0] % 3)
    moves = np.diff(episodes.observations[:, 1], append=0)
    inside = np.delete(np.arange(episodes.num_steps), episodes.starts[1:] - 1)
    np.testing.assert_allclose(moves[inside], (episodes.actions - 1)[inside], atol=1e-5)


def test_progress_counts_steps_and_whole_episodes():
    told = []
    with closing(make_environments(toys.COUNTDOWN, 3)) as environments:
        agent = Follow(3)
        episodes = play(agent, environments, range(5), on_step=lambda *done: told.append(done))
    assert told[-1] == (episodes.num_steps, 5)
    assert told == sorted(told) and told[0] == (3, 0)


class Answers:
    """The same whatever it sees."""

    def __init__(self, actions):
        self.actions = actions

    def act(self, observations, rewards, begins):
        return self.actions


@pytest.mark.parametrize(
    ("agent", "kind", "seeds", "error", "message"),
    [
        (Follow(1), toys.Countdown, [], ValueError, "at least one seed, got none"),
        (Follow(1), toys.Countdown, [3, -1], OptionError, "seed must be at least 0, got -1"),
        (Follow(1), toys.Lost, [0], ValueError,
         "expected finite observations, got others of Lost-v0 in row 0"),
        (Answers(np.zeros((1, 3))), toys.Countdown, [0], ValueError,
         r"expected actions of shape \[1, 2\], got \[1, 3\]"),
        (Answers(np.full((1, 2), np.nan)), toys.Countdown, [0], ValueError,
         r"actions must be finite, got \[nan nan\] in row 0"),
        (Answers(np.array([3])), toys.Steps, [0], ValueError,
         "expected discrete actions from 0 to 2, got 3 in row 0"),
        (Answers(np.array([1.0])), toys.Steps, [0], ValueError,
         r"discrete actions as integers of shape \[1\], got float64 \[1\]"),
        (Answers(np.array([[1]])), toys.Steps, [0], ValueError, r"got int64 \[1, 1\]"),
    ],
)  # fmt: skip
def test_what_cannot_be_played(agent, kind, seeds, error, message):
    with (
        toys.registered("Lost-v0", kind),
        closing(make_environments("Lost-v0", 1)) as environments,
        pytest.raises(error, match=message),
    ):
        play(agent, environments, seeds)
