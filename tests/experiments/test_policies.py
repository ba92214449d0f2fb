"""Random actions, the swing-up and noise."""

from contextlib import closing

import numpy as np
import pytest

from experiments.offline_rl.policies import Balance, Noisy, NoisyChoices, RandomPolicy, SwingUp
from flax_linattn.checks import OptionError
from flax_linattn.control import SamplingAgent, make_environments, play

SEEN, REWARDS = np.zeros((4, 3), np.float32), np.zeros(4, np.float32)
BEGINS, GOES_ON = np.ones(4, bool), np.zeros(4, bool)


class Still:
    def act(self, observations, rewards, begins):
        return np.full((len(begins), 1), 5.0, np.float32)


def test_random_actions_are_uniform_between_the_bounds():
    policy = RandomPolicy([-2.0, 0.0], [2.0, 1.0], seed=1)
    actions = np.concatenate(
        [policy.act(SEEN, REWARDS, GOES_ON if step else BEGINS) for step in range(2000)]
    )
    assert actions.shape == (8000, 2) and actions.dtype == np.float32
    np.testing.assert_allclose(actions.mean(0), [0, 0.5], atol=0.05)
    np.testing.assert_allclose(actions.std(0), np.array([4, 1]) / 12**0.5, rtol=0.03)
    assert (actions >= [-2, 0]).all() and (actions <= [2, 1]).all()


def test_draws_are_of_the_episode_not_of_the_row():
    one, other = RandomPolicy([0.0], [1.0], seed=3), RandomPolicy([0.0], [1.0], seed=3)
    one.begin([0, 1, 2, 3], [10, 11, 12, 13])
    other.begin([3, 2, 1, 0], [10, 11, 12, 13])
    first = one.act(SEEN, REWARDS, BEGINS)
    np.testing.assert_array_equal(first, other.act(SEEN, REWARDS, BEGINS)[::-1])
    one.begin([2], [11])
    again = one.act(SEEN, REWARDS, np.array([0, 0, 1, 0], bool))
    assert again[2] == first[1] and len(np.unique(again)) == 4


def test_draws_where_nobody_tells_the_seed():
    policy = RandomPolicy([0.0], [1.0])
    told = RandomPolicy([0.0], [1.0])
    told.begin([0, 1, 2, 3], [0, 1, 2, 3])
    np.testing.assert_array_equal(
        policy.act(SEEN, REWARDS, BEGINS), told.act(SEEN, REWARDS, BEGINS)
    )
    assert isinstance(policy, SamplingAgent) and not isinstance(SwingUp(), SamplingAgent)


def test_draws_differ_from_those_of_the_environment():
    """Which makes its first state of the same seed."""
    policy = RandomPolicy([0.0], [1.0], seed=0)
    assert policy.act(SEEN, REWARDS, BEGINS)[0] != np.float32(np.random.default_rng(0).random())


def test_noise_is_added_between_the_bounds():
    agent = Noisy(Still(), 0.5, [-9.0], [4.0], seed=2)
    actions = np.concatenate(
        [agent.act(SEEN, REWARDS, GOES_ON if step else BEGINS) for step in range(2000)]
    )
    assert actions.max() == 4  # 5 is clipped before the noise and after it
    np.testing.assert_allclose((actions == 4).mean(), 0.5, atol=0.02)
    np.testing.assert_allclose(np.median(4 - actions[actions < 4]), 0.5 * 0.6745, rtol=0.03)


def test_noise_of_nothing_changes_nothing():
    agent = Noisy(SwingUp(), 0.0, [-2.0], [2.0])
    seen = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_array_equal(
        agent.act(seen, REWARDS, BEGINS), SwingUp().act(seen, REWARDS, BEGINS)
    )


def test_noise_passes_on_whose_episodes_begin():
    agent = Noisy(RandomPolicy([-1.0], [1.0]), 0.1, [-1.0], [1.0])
    agent.begin([0, 1, 2, 3], [5, 5, 6, 6])
    actions = agent.act(SEEN, REWARDS, BEGINS)
    assert actions[0] == actions[1] != actions[2] == actions[3]


def test_the_swing_up_swings_up_from_everywhere():
    with closing(make_environments("Pendulum-v1", 20)) as environments:
        good = play(SwingUp(), environments, range(20))
        bad = play(RandomPolicy([-2.0], [2.0]), environments, range(20))
    # Upright and at rest for the last quarter of each episode.
    cosines = good.observations.reshape(20, 200, 3)[:, 150:, 0]
    assert cosines.min() > 0.99
    assert good.returns.mean() > -200 and bad.returns.mean() < -1000


def test_a_fraction_of_choices_is_random():
    """The noise decides nothing where it is 0, and everything without an agent."""
    with closing(make_environments("CartPole-v1", 8)) as environments:
        best, noisy, random = (
            play(agent, environments, range(16))
            for agent in (
                NoisyChoices(Balance(), 0.0, 2), NoisyChoices(Balance(), 0.6, 2),
                NoisyChoices(None, 0.0, 2),
            )
        )  # fmt: skip
        alone = play(Balance(), environments, range(16))
    assert best.checksum() == alone.checksum() and (best.returns == 500).all()
    assert random.returns.mean() < 40 < noisy.returns.mean() < 300
    rule = Balance().act(noisy.observations, noisy.rewards, np.zeros(noisy.num_steps, bool))
    np.testing.assert_allclose((rule == noisy.actions).mean(), 0.7, atol=0.05)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoisyChoices(Balance(), 1.1, 2), r"fraction must be from 0 to 1, got 1\.1"),
        (lambda: RandomPolicy([-np.inf], [np.inf]), "random actions take finite bounds"),
        (lambda: RandomPolicy([1.0], [0.0]), "low <= high"),
        (lambda: RandomPolicy([1.0], [2.0, 3.0]), "two vectors"),
        (lambda: Noisy(SwingUp(), -1.0, [-2.0], [2.0]), "std must be 0 or more, got -1.0"),
        (lambda: Noisy(SwingUp(), float("nan"), [-2.0], [2.0]), "std must be 0 or more"),
        (lambda: RandomPolicy([0.0], [1.0], seed=-1), "seed must be at least 0"),
    ],
)
def test_options_that_do_not_do(make, message):
    with pytest.raises(OptionError, match=message):
        make()


def test_the_swing_up_of_another_robot():
    with pytest.raises(ValueError, match=r"Pendulum-v1, whose .* got 11 numbers"):
        SwingUp().act(np.zeros((4, 11), np.float32), REWARDS, BEGINS)
    with pytest.raises(ValueError, match=r"CartPole-v1, whose .* got 3 numbers"):
        Balance().act(SEEN, REWARDS, BEGINS)
