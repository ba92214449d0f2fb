"""Policies of Stable-Baselines3 against their equations, and against what they played."""

from contextlib import closing

import numpy as np
import pytest

from experiments.offline_rl.weights import read_policy
from flax_linattn.control import make_environments, play
from flax_linattn.data.errors import DataFormatError

RNG = np.random.default_rng(0)
ROWS, SEEN = 5, 3


def network(last, hidden, sizes=(SEEN, 8, 6, 2)):
    names = [f"{hidden}.{2 * layer}" for layer in range(len(sizes) - 2)] + [last]
    arrays = {}
    for name, size, out in zip(names, sizes, sizes[1:], strict=False):
        arrays[f"{name}.weight"] = RNG.normal(size=(out, size)).astype(np.float32)
        arrays[f"{name}.bias"] = RNG.normal(size=out).astype(np.float32)
    return arrays


def normal(size=SEEN):
    return {
        "norm_obs": np.array(True),
        "obs_mean": RNG.normal(size=size),
        "obs_var": RNG.uniform(0.5, 2, size),
        "clip_obs": np.array(1.5),
        "epsilon": np.array(1e-8),
    }


PPO = network("action_net", "mlp_extractor.policy_net") | {"log_std": np.zeros(2, np.float32)}
SAC = network("actor.mu", "actor.latent_pi")
TIMED = network("action_net", "mlp_extractor.policy_net", (SEEN + 1, 8, 2)) | normal(SEEN + 1)
ARS = {"action_net.weight": RNG.normal(size=(2, SEEN)).astype(np.float32)}
POLICIES = {
    "ppo": PPO | normal() | {"activation": np.array("tanh")},
    "relu": PPO | normal() | {"activation": np.array("relu")},
    "plain": PPO | {"norm_obs": np.array(False), "time_feature": np.array(False)},
    "sac": SAC | {"activation": np.array("relu")},
    "timed": TIMED | {"time_feature": np.array(True)},
    "ars": ARS | normal(),
}


def saved(folder, arrays):
    path = folder / "policy.npz"
    np.savez(path, **arrays)
    return path


def expected(arrays, seen):
    """In float64, one row at a time, by the equations."""
    x = seen.astype(np.float64)
    if arrays.get("norm_obs", False):
        x = (x - arrays["obs_mean"]) / np.sqrt(arrays["obs_var"] + arrays["epsilon"])
        x = np.clip(x, -arrays["clip_obs"], arrays["clip_obs"])
    bend = np.tanh if str(arrays.get("activation", "tanh")) == "tanh" else lambda v: v * (v > 0)
    weights = [key for key in arrays if key.endswith("weight")]
    for key in weights:
        x = arrays[key].astype(np.float64) @ x + arrays.get(key.replace("weight", "bias"), 0)
        if key != weights[-1]:
            x = bend(x)
    return np.tanh(x) if "actor.mu.weight" in arrays else x


@pytest.mark.parametrize("name", POLICIES)
def test_actions_are_those_of_the_equations(name, tmp_path):
    arrays = POLICIES[name]
    policy = read_policy(saved(tmp_path, arrays), max_steps=10)
    assert (policy.observation_dim, policy.action_dim) == (SEEN, 2)
    elapsed = np.zeros(ROWS)
    for step in range(4):
        seen = (2 * RNG.normal(size=(ROWS, SEEN))).astype(np.float32)
        begins = np.full(ROWS, step == 0)
        begins[2] |= step == 2
        elapsed = np.where(begins, 0, elapsed + 1)
        actions = policy.act(seen, np.zeros(ROWS, np.float32), begins)
        assert actions.dtype == np.float32
        for row in range(ROWS):
            inputs = np.append(seen[row], 1 - elapsed[row] / 10) if name == "timed" else seen[row]
            np.testing.assert_allclose(actions[row], expected(arrays, inputs), rtol=1e-4, atol=1e-5)


def test_a_row_depends_on_no_other(tmp_path):
    arrays = network("actor.mu", "actor.latent_pi", (17, 256, 256, 6))
    policy = read_policy(saved(tmp_path, arrays))
    seen = RNG.normal(size=(16, 17)).astype(np.float32)
    together = policy.act(seen, np.zeros(16, np.float32), np.ones(16, bool))
    for rows in (1, 3, 5):
        some = policy.act(seen[:rows], np.zeros(rows, np.float32), np.ones(rows, bool))
        np.testing.assert_array_equal(some, together[:rows])


def without(*names):
    return {key: value for key, value in POLICIES["ppo"].items() if key not in names}


HIDDEN = "mlp_extractor.policy_net"
DAMAGED = [
    (PPO | {"critic.weight": np.zeros(3)}, r"knows no array critic\.weight"),
    ({"times": np.zeros(3)}, "expected arrays .*, got times"),
    (without("action_net.weight"), "expected an array action_net.weight, got none"),
    (without("obs_mean", "epsilon"), "norm_obs is True, and there is no obs_mean, epsilon"),
    (PPO | {"action_net.weight": np.zeros((2, 5))}, r"action_net\.weight: expected \[n, 6\]"),
    (PPO | {f"{HIDDEN}.0.bias": np.zeros(7)}, r"policy_net\.0\.bias: expected numbers \[8\]"),
    (PPO | {f"{HIDDEN}.0.weight": np.zeros(8)}, r"weight: expected \[out, in\], got float64 \[8\]"),
    (PPO | {f"{HIDDEN}.2.bias": np.full(6, np.nan)}, r"policy_net\.2\.bias: expected finite"),
    (PPO | {f"{HIDDEN}.2.bias": np.zeros(6, int)}, r"policy_net\.2\.bias: expected numbers"),
    (PPO | {"activation": np.array("gelu")}, "activation: expected tanh or relu, got 'gelu'"),
    (PPO | {"activation": np.array(1.0)}, "activation: expected a text, got float64"),
    (PPO | {"norm_obs": np.array(1)}, "norm_obs: expected True or False, got int64"),
    (POLICIES["ppo"] | {"obs_var": np.zeros(4)}, r"obs_var: expected numbers \[3\]"),
    (POLICIES["ppo"] | {"obs_var": np.full(3, -1.0)}, r"obs_var \+ epsilon above 0"),
    (POLICIES["ppo"] | {"clip_obs": np.array(0.0)}, "clip_obs above 0"),
    (PPO | {"log_std": np.array([{}], object)}, "log_std: expected numbers, got Python objects"),
]


@pytest.mark.parametrize(("arrays", "message"), DAMAGED)
def test_files_that_hold_no_policy(arrays, message, tmp_path):
    with pytest.raises(DataFormatError, match=f"policy.npz.*{message}"):
        read_policy(saved(tmp_path, arrays))


def test_files_of_another_kind(tmp_path):
    path = tmp_path / "policy.npz"
    with pytest.raises(FileNotFoundError):
        read_policy(path)
    path.write_text("not weights")
    with pytest.raises(DataFormatError, match=r"whole \.npz file"):
        read_policy(path)


@pytest.mark.slow
def test_damaged_files_raise_nothing_else(tmp_path):
    whole = saved(tmp_path, POLICIES["ppo"]).read_bytes()
    rng = np.random.default_rng(1)
    path = tmp_path / "damaged.npz"
    for _ in range(400):
        content = bytearray(whole)
        for place in rng.integers(0, len(whole), rng.integers(1, 4)):
            content[place] = rng.integers(0, 256)
        path.write_bytes(content[: rng.integers(1, len(whole))] if rng.random() < 0.3 else content)
        try:
            read_policy(path)
        except DataFormatError as error:
            assert "damaged.npz" in str(error)


def test_observations_of_another_robot(tmp_path):
    policy = read_policy(saved(tmp_path, PPO))
    with pytest.raises(ValueError, match="takes observations of 3 numbers, and these have 11"):
        policy.act(np.zeros((2, 11), np.float32), np.zeros(2, np.float32), np.ones(2, bool))


PLAYED = {
    "ant-expert": "trpo_Ant",
    "ant-medium": "ars_Ant",
    "halfcheetah-expert": "tqc_HalfCheetah",
    "halfcheetah-medium": "ars_HalfCheetah",
    "hopper-expert": "trpo_Hopper",
    "hopper-medium": "sac_Hopper",
    "walker2d-expert": "tqc_Walker2d",
    "walker2d-medium": "trpo_Walker2d",
}
"""Rollouts of real policies, which had some noise -> the policy whose actions they are."""


@pytest.mark.parametrize("name", PLAYED)
def test_real_policies_are_those_that_played_the_rollouts(name, data_dir):
    """The median distance of their actions to those recorded is far below that of all others."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(data_dir / "rl_rollouts" / f"{name}-sb3.hdf5") as file:
        seen, actions = file["observations"][:2000], file["actions"][:2000]
    robot = PLAYED[name].split("_")[1]
    distances = {}
    for path in sorted((data_dir / "rl_policies").glob(f"*_{robot}-v3.npz")):
        policy = read_policy(path)
        answers = policy.act(seen, np.zeros(len(seen), np.float32), np.ones(len(seen), bool))
        distances[path.stem] = float(np.median(abs(np.clip(answers, -1, 1) - actions)))
    best, second, *_ = sorted(distances, key=distances.__getitem__)
    assert best == f"{PLAYED[name]}-v3"
    assert distances[best] < 0.13 and distances[second] > 2 * distances[best]


RETURNS = {
    "trpo_HalfCheetah": (1799, 60),
    "ppo_Hopper": (2438, 9),
    "ars_Ant": (2320, 60),
}
"""Policies -> their mean return over 20 episodes, and three standard errors of the mean of two."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RETURNS)
def test_real_policies_reach_their_returns(name, data_dir):
    pytest.importorskip("mujoco")
    policy = read_policy(data_dir / "rl_policies" / f"{name}-v3.npz")
    mean, error = RETURNS[name]
    env_id = f"{name.split('_')[1]}-v5"
    with closing(
        make_environments(env_id, 2, observation_dim=policy.observation_dim)
    ) as environments:
        episodes = play(policy, environments, [0, 1])
    assert episodes.lengths.tolist() == [1000, 1000]
    assert abs(episodes.returns.mean() - mean) < error
