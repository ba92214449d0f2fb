"""Folders of Minari: as the library writes them, and what is wrong in them."""

import json

import numpy as np
import pytest

from flax_linattn.data import DataFormatError
from flax_linattn.data.episodes import load_episodes, read_minari
from tests.data.episodes.cases import minari_episode, save_minari

SPEC = json.dumps({"env_spec": json.dumps({"id": "Hopper-v5", "kwargs": {}})})


def test_every_path_to_a_set_is_taken(tmp_path):
    episodes = {
        0: minari_episode(4, 0),
        10: minari_episode(2, 10, end="truncations"),
        9: minari_episode(3, 9),
    }
    folder = save_minari(tmp_path / "toy", episodes, SPEC)
    for path in (folder, str(folder / "data"), folder / "data" / "main_data.hdf5"):
        found = load_episodes(path)
        assert found.lengths.tolist() == [4, 3, 2] and found.env_id == "Hopper-v5"
        assert found.terminated.tolist() == [True, True, False] and found.name == str(path)
        for key, rows in (("observations", slice(-1)), ("actions", slice(None))):
            expected = np.concatenate([episodes[number][key][rows] for number in (0, 9, 10)])
            np.testing.assert_array_equal(getattr(found, key), expected.astype(np.float32))
        expected = [episodes[number]["rewards"].sum() for number in (0, 9, 10)]
        np.testing.assert_allclose(found.returns, expected, rtol=1e-6)


def test_unfinished_episodes_are_left_out(tmp_path):
    episodes = {0: minari_episode(4), 1: minari_episode(3, end=None)}
    folder = save_minari(tmp_path / "toy", episodes)
    found = load_episodes(folder)
    assert found.lengths.tolist() == [4] and found.env_id is None
    assert found.notes == (
        "1 episode that neither terminated nor was truncated is left out; keep_unfinished keeps it",
    )
    kept = load_episodes(folder, keep_unfinished=True)
    assert kept.lengths.tolist() == [4, 3] and kept.terminated.tolist() == [True, False]
    assert [note.split(":")[0] for note in kept.notes] == [
        "cut before step 4 without a terminal state"
    ]
    none = save_minari(tmp_path / "none", {1: minari_episode(3, end=None)})
    with pytest.raises(
        DataFormatError, match=r"an episode that is terminated .* none of 1"
    ) as refused:
        load_episodes(none)
    assert refused.value.options == ("keep_unfinished",)


WRONG = [
    ({"actions": np.zeros(3, np.int64)},
     r"hdf5:episode_1/actions: expected 2 numbers, as in episode_0, got integers; the episodes"),
    ({"actions": np.zeros((3, 2), np.int64)},
     r"hdf5:episode_1/actions: .* one integer per step, got int64 \[3, 2\]; .*MultiDiscrete"),
    ({"actions": np.zeros(2, np.int64)}, r"actions: expected shape \[3\] .* got \[2\]"),
    ({"actions": np.array([0, -1, 2])},
     r"hdf5:episode_1/actions\[1\]: expected a discrete action from 0 to 4,095, got -1"),
    ({"actions": np.zeros(3, bool)}, r"actions: expected discrete actions as integers .* got bool"),
    ({"rewards": np.array([0, 1, np.inf])}, r"hdf5:episode_1/rewards\[2\]: expected finite .* inf"),
    ({"actions": np.zeros((2, 2))}, r"actions: expected shape \[3, numbers\] .* got \[2, 2\]"),
    ({"actions": np.zeros(3)}, r"expected shape \[3, numbers\] with rewards \[3\], got \[3\]"),
    ({"observations": np.zeros((3, 3))}, r"observations: .* shape \[4, numbers\] .* got \[3, 3\]"),
    ({"observations": np.zeros((4, 3, 2))}, r"observations: .* got float64 \[4, 3, 2\]; images"),
    ({"observations": np.zeros((4, 8, 8, 3), np.uint8)},
     r"vectors \[T \+ 1, S\], got uint8 \[4, 8, 8, 3\]; images are not supported"),
    ({"rewards": np.zeros((3, 1))}, r"expected .* with rewards \[3, 1\], got"),
    ({"rewards": np.zeros(0)}, r"expected .* with rewards \[0\], got"),
    ({"terminations": np.array([True, False, True])},
     r"terminations\[0\]: expected True only at the last .* but 2 more steps follow"),
    ({"truncations": np.zeros(3)}, "truncations: expected True or False, got float64"),
    ({"truncations": np.zeros(2, bool)}, r"truncations: expected shape \[3\] .* got \[2\]"),
    ({"rewards": None}, r"episode_1: expected observations, actions, .* rewards"),
    ({"observations": None, "observations/image": np.zeros((4, 2)),
      "observations/pose": np.zeros((4, 2))}, "observations: .* a Group of image, pose; nest"),
    ({"observations": np.array(["text"] * 4, "S4")}, "observations: expected numbers, got |S4"),
    ({"observations": np.full((4, 3), np.nan)},
     r"main_data\.hdf5:episode_1/observations\[0\]: expected finite"),
    ({"observations": np.zeros((4, 2))},
     r"hdf5:episode_1/observations: expected 3 numbers, as in episode_0"),
    ({"actions": np.zeros((3, 4))}, r"hdf5:episode_1/actions: .* got 4 numbers; the ep"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_bad_episodes_are_named(tmp_path, change, message):
    other = {key: own for key, own in {**minari_episode(3), **change}.items() if own is not None}
    folder = save_minari(tmp_path / "toy", {0: minari_episode(3), 1: other})
    with pytest.raises(DataFormatError, match=message) as refused:
        load_episodes(folder)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(
    ("metadata", "env_id"),
    [(None, None), ("{}", None), ('{"env_spec": null}', None), (SPEC, "Hopper-v5"),
     ('{"env_spec": "{}"}', None), (json.dumps({"env_spec": json.dumps({"id": 3})}), None)],
)  # fmt: skip
def test_metadata_name_the_environment_or_not(tmp_path, metadata, env_id):
    assert (
        read_minari(save_minari(tmp_path / "a", {0: minari_episode(3)}, metadata)).env_id == env_id
    )


@pytest.mark.parametrize("metadata", ["", "[]", '{"env_spec": 3}', '{"env_spec": "x"}', "[" * 9999])
def test_bad_metadata_are_named(tmp_path, metadata):
    folder = save_minari(tmp_path / "toy", {0: minari_episode(3)}, metadata)
    with pytest.raises(
        DataFormatError, match=r"metadata\.json:1: expected JSON with a string env_s"
    ):
        read_minari(folder)


def space(**fields):
    return json.dumps({"action_space": json.dumps(fields)})


def test_metadata_name_the_number_of_actions(tmp_path):
    episodes = {n: minari_episode(3) | {"actions": np.array([0, 1, 0])} for n in range(2)}
    metadata = (None, space(type="Discrete", n=4, start=0), space(type="Box"))
    for number, (text, num_actions) in enumerate(zip(metadata, (2, 4, 2), strict=True)):
        found = read_minari(save_minari(tmp_path / str(number), episodes, text))
        assert (found.num_actions, found.actions.tolist()) == (num_actions, [0, 1, 0] * 2)
    folder = save_minari(tmp_path / "few", episodes, space(type="Discrete", n=1, start=0))
    with pytest.raises(
        DataFormatError,
        match=r"episode_0/actions\[1\]: expected a discrete action from 0 to 0, got 1",
    ):
        read_minari(folder)
    for wrong in ({"n": 2, "start": -1}, {"n": 0, "start": 0}, {"n": "2", "start": 0}):
        name = f"wrong{wrong['n']}{wrong['start']}"
        folder = save_minari(tmp_path / name, episodes, space(type="Discrete", **wrong))
        with pytest.raises(DataFormatError, match=r"metadata\.json:1: .* Discrete\(n\) .* n = "):
            read_minari(folder)


def test_other_folders_and_files(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"with data/main_data\.hdf5 in the folder .*, found none; check"
    ):
        load_episodes(tmp_path)
    folder = save_minari(tmp_path / "toy", {})
    with pytest.raises(DataFormatError, match=r"hdf5: expected groups episode_0, .* got none; che"):
        load_episodes(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "num_actions"), [("Pendulum-v1", None), ("CartPole-v1", 2)])
def test_a_set_that_minari_has_written(tmp_path, monkeypatch, env_id, num_actions):
    gymnasium, minari = pytest.importorskip("gymnasium"), pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gymnasium.make(env_id)
    env.action_space.seed(0)
    buffers = []
    for seed in range(3):
        seen, done = [env.reset(seed=seed)[0]], False
        own = minari.data_collector.EpisodeBuffer(id=seed, observations=seen, actions=[])
        while not done:
            own.actions.append(env.action_space.sample())
            after, reward, terminated, truncated, _ = env.step(own.actions[-1])
            seen.append(after)
            own.rewards.append(reward)
            own.terminations.append(terminated)
            own.truncations.append(truncated)
            done = terminated or truncated
        buffers.append(own)
    names = ("algorithm_name", "author", "author_email", "code_permalink", "description")
    about = dict.fromkeys(names, "toy")  # the library warns where one is missing
    minari.create_dataset_from_buffers("toy/set-v0", buffers, env=env, eval_env=env_id, **about)
    env.close()
    found = load_episodes(tmp_path / "toy" / "set-v0")
    assert (found.env_id, found.num_actions) == (env_id, num_actions)
    assert found.lengths.tolist() == [len(own.rewards) for own in buffers]
    assert found.terminated.tolist() == [own.terminations[-1] for own in buffers]
    expected = {
        "observations": [row for own in buffers for row in own.observations[:-1]],
        "actions": [row for own in buffers for row in own.actions],
        "rewards": [row for own in buffers for row in own.rewards],
    }
    for key, rows in expected.items():
        np.testing.assert_array_equal(getattr(found, key), np.array(rows, np.float32))
