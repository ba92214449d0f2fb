"""Scores and statistics, against plain arithmetic."""

import numpy as np
import pytest

from flax_linattn.data.episodes import (
    REFERENCE_RETURNS,
    Episodes,
    episodes_as_text,
    find_family,
    normalized_score,
)


@pytest.mark.parametrize(
    ("env_id", "random", "expert"),
    [
        ("HalfCheetah-v5", -280.178953, 12135.0),
        ("hopper-medium-expert-v2", -20.272305, 3234.3),
        ("Walker2d-v4", 1.629008, 4592.3),
        ("ant-full-replay-v2", -325.6, 3879.7),
    ],
)
def test_the_references_are_0_and_100(env_id, random, expert):
    scores = normalized_score([[random, expert], [(random + expert) / 2, expert]], env_id)
    assert scores.dtype == np.float64 and scores.shape == (2, 2)
    np.testing.assert_allclose(scores, [[0, 100], [50, 100]], atol=1e-12)


def test_families():
    assert {find_family(f"{name}-v5") for name in REFERENCE_RETURNS} == set(REFERENCE_RETURNS)
    for other in (
        "Pendulum-v1",
        "AntMaze_UMaze-v4",
        "antmaze-umaze-v2",
        "HopperBullet-v0",
        "dm_control/hopper-hop-v0",
        "hopper-hop-v0",
        "dm_control/Hopper-v5",
        "package:Hopper-v5",
        "hopper-v5",
        "Hopper",
        "Hopper-medium-v2",
        "mujoco/hopper/medium-v0",
        "",
        "-",
    ):
        assert find_family(other) is None
    with pytest.raises(
        ValueError, match=r"\(HalfCheetah, Hopper, Walker2d, Ant\), .* 'Pendulum-v1'"
    ):
        normalized_score(1.0, "Pendulum-v1")


def made():
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(9, 6))
    observations[:, [1, 3, 4]] = 0, 2, 0
    actions = rng.uniform(-1, 1, (9, 2))
    actions[2, 0], actions[3, 1] = 1.5, -3
    return Episodes("toy.npz", observations, actions, np.arange(9.0), np.array([0, 2, 6, 9]),
                    np.array([True, False, False]), "Hopper-v5")  # fmt: skip


def test_the_text_on_episodes():
    assert episodes_as_text(made()) == (
        "toy.npz: 3 episodes of Hopper-v5, 9 steps\n"
        "observations: 6 numbers, of which 3 never change (1, 3 to 4)\n"
        "actions: 2 numbers, from -3 to 1.5, 11.1 % of them outside -1 to 1\n"
        "lengths: 2 to 4, median 3\n"
        "returns: mean 12, least 1, quartiles 7.5, 14 and 17.5, most 21\n"
        "rewards: mean 4, standard deviation 2.582\n"
        "ended in a terminal state: 33.3 % of episodes\n"
        "cut before step 4 without a terminal state: 1 episode, whose return may be incomplete\n"
        "mean score as D4RL normalizes: 1.0 (0 a random policy, 100 an expert)"
    )
