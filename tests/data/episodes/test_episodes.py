"""Episodes as arrays, against a reference of plain loops in float64."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.checks import OptionError
from flax_linattn.data.episodes import Episodes, join_episodes, split_episodes


def drawn(lengths, seed=0, name="toy", env_id=None):
    """Episodes of these lengths, S = 3 and A = 2."""
    rng, count = np.random.default_rng(seed), sum(lengths)
    return Episodes(
        name,
        rng.normal(size=(count, 3)),
        rng.uniform(-1, 1, (count, 2)),
        rng.normal(size=count) * 10,
        np.cumsum([0, *lengths]),
        rng.random(len(lengths)) < 0.5,
        env_id,
    )


def as_lists(episodes):
    """Each episode alone: its observations, actions, rewards and end."""
    found = []
    for index in range(len(episodes.starts) - 1):
        rows = range(episodes.starts[index], episodes.starts[index + 1])
        found.append((
            [episodes.observations[row].tolist() for row in rows],
            [episodes.actions[row].tolist() for row in rows],
            [float(episodes.rewards[row]) for row in rows],
            bool(episodes.terminated[index]),
        ))  # fmt: skip
    return found


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@given(LENGTHS, st.integers(0, 2**32))
def test_sums_are_those_of_loops(lengths, seed):
    episodes = drawn(lengths, seed)
    assert episodes.num_steps == sum(lengths) and episodes.num_episodes == len(lengths)
    assert episodes.lengths.tolist() == lengths and episodes.lengths.dtype == np.int64
    assert (episodes.observation_dim, episodes.action_dim) == (3, 2)
    sums, to_go = [], []
    for _, _, rewards, _ in as_lists(episodes):
        sums.append(sum(rewards))
        to_go += [sum(rewards[at:]) for at in range(len(rewards))]
    assert episodes.returns.dtype == np.float64 and episodes.returns_to_go().dtype == np.float32
    np.testing.assert_allclose(episodes.returns, sums, rtol=1e-13, atol=1e-12)
    np.testing.assert_allclose(episodes.returns_to_go(), to_go, rtol=1e-6, atol=1e-6)


def test_returns_to_go_are_summed_in_float64():
    rewards = np.full(10_000, 0.1, np.float32)
    one = Episodes("toy", np.zeros((10_000, 1)), np.zeros((10_000, 1)), rewards,
                   np.array([0, 10_000]), np.array([True]))  # fmt: skip
    exact = float(rewards[0]) * np.arange(10_000, 0, -1)
    np.testing.assert_allclose(one.returns_to_go(), exact, rtol=1e-7)
    summed = np.cumsum(rewards, dtype=np.float32)[-1]
    assert abs(summed - exact[0]) / exact[0] > 1e-6  # float32 would be seen


@given(LENGTHS, st.integers(0, 2**32), st.data())
def test_taking_and_joining(lengths, seed, data):
    episodes = drawn(lengths, seed, env_id="Hopper-v5")
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=9))
    whole, taken = as_lists(episodes), episodes.take(chosen)
    assert as_lists(taken) == [whole[index] for index in chosen] and taken.env_id == "Hopper-v5"
    parts = [episodes.take([index]) for index in range(len(lengths))]
    joined = join_episodes(parts)
    assert as_lists(joined) == whole and joined.checksum() == episodes.checksum()
    assert joined.env_id == "Hopper-v5"


@given(LENGTHS, st.integers(0, 2**32), st.integers(1, 100))
def test_top_is_the_fewest_best_that_hold_the_share(lengths, seed, percent):
    episodes = drawn(lengths, seed)
    top = episodes.top(percent / 100)
    best = sorted(range(len(lengths)), key=lambda index: (-episodes.returns[index], index))
    count, held = 0, 0
    while held * 100 < percent * sum(lengths):
        held += lengths[best[count]]
        count += 1
    assert as_lists(top) == [as_lists(episodes)[index] for index in sorted(best[:count])]


def test_top_of_equal_returns_and_bad_shares():
    flat = Episodes("toy", np.arange(4.0)[:, None], np.zeros((4, 1)), np.ones(4), np.arange(5),
                    np.ones(4, bool))  # fmt: skip
    assert flat.top(0.5).observations[:, 0].tolist() == [0, 1]
    for fraction in (0, -0.5, 1.5, float("nan")):
        with pytest.raises(OptionError, match="fraction must be above 0 and up to 1"):
            flat.top(fraction)


@given(LENGTHS.filter(lambda own: len(own) > 1), st.floats(0.01, 0.99), st.integers(0, 2**70))
def test_a_split_holds_each_episode_once(lengths, fraction, seed):
    episodes = drawn(lengths)
    numbered = Episodes("toy", episodes.observations, episodes.actions, episodes.rewards,
                        episodes.starts, np.ones(len(lengths), bool))  # fmt: skip
    parts = split_episodes(numbered, fraction, seed)
    assert all(part.num_episodes for part in parts)
    assert abs(parts[1].num_episodes - fraction * len(lengths)) <= 1
    found = [own for part in parts for own in as_lists(part)]
    assert sorted(found) == sorted(as_lists(numbered))
    again = split_episodes(numbered, fraction, seed)
    assert [part.checksum() for part in parts] == [part.checksum() for part in again]


def test_another_seed_draws_others():
    episodes = drawn([1] * 20)
    assert len({split_episodes(episodes, 0.5, seed)[0].checksum() for seed in range(5)}) == 5


def test_a_split_that_cannot_be():
    with pytest.raises(
        OptionError, match=r"toy: expected at least 2 episodes, .* provide more episod"
    ):
        split_episodes(drawn([3]), 0.5, 0)
    for fraction in (0, 1, float("nan")):
        with pytest.raises(OptionError, match="validation must be a fraction above 0 and below 1"):
            split_episodes(drawn([3, 3]), fraction, 0)
    with pytest.raises(OptionError, match="seed must be at least 0"):
        split_episodes(drawn([3, 3]), 0.5, -1)


def test_the_checksum_is_of_all_arrays_and_stays():
    arrays = {
        "observations": np.arange(6.0).reshape(3, 2),
        "actions": np.ones((3, 1)),
        "rewards": np.arange(3.0),
        "starts": np.array([0, 2, 3]),
        "terminated": np.array([True, False]),
    }
    one = Episodes("toy", **arrays)
    known = "5e5f1f6b83a9ca1cf0685a01b2c935c845abf03f030827a97b1bd21437e8423b"
    assert one.checksum() == known
    other = Episodes("other", **{**arrays, "rewards": np.arange(3).astype(">f8")}, env_id="A-v0")
    assert other.checksum() == one.checksum()
    changed = {
        "observations": arrays["observations"] + 1,
        "actions": arrays["actions"] * 2,
        "rewards": arrays["rewards"] + 1,
        "starts": np.array([0, 1, 3]),
        "terminated": ~arrays["terminated"],
    }
    sums = {Episodes("toy", **{**arrays, key: own}).checksum() for key, own in changed.items()}
    assert len(sums | {one.checksum()}) == 6


def test_other_dtypes_become_float32():
    one = Episodes("toy", np.asfortranarray(np.ones((3, 2), ">f8")), np.ones((3, 1), np.float16),
                   np.arange(3), np.array([0, 3], np.int32), np.array([True]))  # fmt: skip
    assert {one.observations.dtype, one.actions.dtype, one.rewards.dtype} == {np.dtype("float32")}
    assert one.starts.dtype == np.int64 and one.observations.flags.c_contiguous
    kept = np.ones((3, 2), np.float32)
    assert Episodes("toy", kept, kept, one.rewards, one.starts, one.terminated).actions is kept


def test_notes_are_kept_and_joined_once():
    one = dataclasses.replace(drawn([2, 3]), notes=("a", "b"))
    assert one.checksum() == drawn([2, 3]).checksum()
    assert one.take([1]).notes == one.top(0.5).notes == ("a", "b")
    assert [part.notes for part in split_episodes(one, 0.5, 0)] == [("a", "b")] * 2
    assert join_episodes([one, dataclasses.replace(one, notes=("c", "b"))]).notes == ("a", "b", "c")
    for wrong in ("a", ["a"], (3,)):
        with pytest.raises(TypeError, match="toy: expected notes as a tuple of strings, got"):
            dataclasses.replace(one, notes=wrong)


def test_they_are_shown_in_a_line():
    assert repr(drawn([2, 3], env_id="Hopper-v5")) == (
        "Episodes('toy', num_episodes=2, num_steps=5, observation_dim=3, action_dim=2, "
        "env_id='Hopper-v5')"
    )


def changed(**arrays):
    whole = {
        "observations": np.zeros((4, 3)),
        "actions": np.zeros((4, 2)),
        "rewards": np.zeros(4),
        "starts": np.array([0, 2, 4]),
        "terminated": np.array([True, False]),
    }
    return {**whole, **arrays}


def with_value(shape, row, value, dtype=np.float64):
    array = np.zeros(shape, dtype)
    array[row] = value
    return array


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"observations": np.zeros(4)}, r"toy:observations: expected \[N, numbers\] .* got \[4\]"),
        ({"observations": np.zeros((4, 2, 2))}, r"toy:observations: .* \[4, 2, 2\]; images are"),
        ({"observations": np.zeros((4, 0))}, r"toy:observations: .* got \[4, 0\]"),
        ({"observations": np.array(["a"])}, r"toy:observations: expected numbers .* got <U1 \[1\]"),
        ({"observations": np.ones((4, 3), complex)}, "toy:observations: .* got complex128"),
        ({"observations": with_value((4, 3), 2, np.nan)},
         r"toy:observations\[2\]: expected finite numbers .* got nan"),
        ({"observations": with_value((4, 3), 1, np.inf, np.float32)}, r"observations\[1\]: .*inf"),
        ({"actions": with_value((4, 2), 3, -1e39)}, r"toy:actions\[3\]: .* got -1e\+39"),
        ({"rewards": with_value(4, 3, np.nan)}, r"toy:rewards\[3\]: .* got nan"),
        ({"rewards": np.zeros((4, 1))}, r"toy:rewards: expected \[N\] .* got \[4, 1\]"),
        ({"rewards": np.full(4, 3e38)}, r"toy: episode 0: expected rewards whose sum fits float32"),
        ({"actions": np.zeros((4, 2), int)}, r"toy:actions: .* one integer .* got int64 \[4, 2\]"),
        ({"actions": np.zeros((4, 2), bool)}, "toy:actions: expected discrete .* got bool"),
        ({"num_actions": 2}, r"toy:actions: expected discrete .* as integers \[N\], got float"),
        ({"actions": np.array([0, 1, 2, 0]), "num_actions": 2},
         r"toy:actions\[2\]: expected a discrete action from 0 to 1, got 2"),
        ({"actions": np.zeros(4, int), "num_actions": 5000}, "num_actions must be at most 4096"),
        ({"actions": np.zeros((3, 2))}, "toy:actions: expected one for each of 4 obs.* got 3"),
        ({"rewards": np.zeros(5)}, "toy:rewards: expected one for each of 4 obs.* got 5"),
        ({"env_id": ""}, "toy: expected env_id as a name such as 'Hopper-v5', or None, got ''"),
        ({"env_id": "a\x1b[1m"}, r"expected env_id as a name .* got 'a\\x1b\[1m'"),
        ({"starts": np.array([0, 2, 5])}, r"expected starts from 0 to 4, .* got 0 to 5"),
        ({"starts": np.array([1, 2, 4])}, r"expected starts from 0 to 4, .* got 1 to 4"),
        ({"starts": np.array([0, 2, 2, 4])}, r"toy: episode 1: expected at least one step in it"),
        ({"starts": np.array([0, 3, 2, 4])}, r"toy: episode 1: .* starts\[1\] = 3 and starts\[2\]"),
        ({"starts": np.array([0])}, r"of at least one episode, got int64 \[1\]"),
        ({"starts": np.array([0.0, 4])}, "expected starts as integers .* got float64"),
        ({"terminated": np.ones(2)}, r"expected terminated as bool \[2\], .* got float64 \[2\]"),
        ({"terminated": np.ones(3, bool)}, r"expected terminated as bool \[2\], .* got bool \[3\]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(arrays, message):
    with pytest.raises(ValueError, match=message):
        Episodes("toy", **changed(**arrays))


def test_bad_indices_are_refused():
    episodes = drawn([2, 3])
    for bad, message in (
        ([2], "from 0 to 1, got 2"),
        ([0, -1], "from 0 to 1, got -1"),
        ([], r"at least one, got float64 \[0\]"),
        ([True, False], r"got bool \[2\]"),
        (1, r"got int64 \[\]"),
    ):
        with pytest.raises(ValueError, match=message):
            episodes.take(bad)


def test_only_data_of_one_environment_is_joined():
    one, other = drawn([2], name="a.npz"), drawn([2], name="b.npz")
    wide = Episodes("b.npz", np.zeros((2, 4)), other.actions, other.rewards, other.starts,
                    other.terminated)  # fmt: skip
    with pytest.raises(
        ValueError, match=r"b\.npz: expected observations of 3 .* a\.npz has, got 4"
    ):
        join_episodes([one, wide])
    many = Episodes("b.npz", other.observations, np.zeros((2, 5)), other.rewards, other.starts,
                    other.terminated)  # fmt: skip
    with pytest.raises(ValueError, match=r"b\.npz: expected actions of 2 .* a\.npz has, got .* 5"):
        join_episodes([one, many])
    hopper, walker = drawn([2], name="a", env_id="Hopper-v5"), drawn([2], env_id="Walker2d-v5")
    with pytest.raises(ValueError, match="toy: expected data of 'Hopper-v5', as a is, got 'Walk"):
        join_episodes([hopper, walker])
    assert join_episodes([one, hopper]).env_id == "Hopper-v5"
    assert join_episodes([one]) is one
    with pytest.raises(ValueError, match="expected at least one set of episodes to join, got none"):
        join_episodes([])
