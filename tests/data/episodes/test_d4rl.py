"""Files in D4RL's keys, HDF5 and .npz: what is written is read, what is wrong is named."""

import dataclasses
import json
import re
import sys

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.checks import OptionError
from flax_linattn.data import DataFormatError
from flax_linattn.data.episodes import (
    Episodes,
    join_episodes,
    load_episodes,
    read_d4rl,
    write_episodes,
)
from tests.data.episodes.cases import save, steps

BOTH = pytest.mark.parametrize("suffix", [".hdf5", ".npz"])
MEANS = {
    "halfcheetah": (4364, 1527, 11567),
    "hopper": (1477, 265, 3489),
    "walker2d": (2314, 232, 4126),
    "ant": (2203, 181, 4987),
}
"""As the README of the rollouts has them: without a last episode that the end of the set cut."""


def looped(arrays):
    """The episodes as a loop over the rows finds them."""
    found, begin = [], 0
    for row in range(len(arrays["rewards"])):
        if arrays["terminals"][row] or arrays["timeouts"][row]:
            found.append((begin, row + 1, bool(arrays["terminals"][row])))
            begin = row + 1
    return found


@BOTH
def test_episodes_end_where_the_file_says_so(tmp_path, suffix):
    arrays = steps()
    arrays["next_observations"] = np.full((12, 3), np.nan, np.float32)  # not looked at
    arrays["infos/qpos"] = np.zeros((5, 2))
    path = save(tmp_path / f"toy{suffix}", arrays)
    episodes = load_episodes(path)
    expected = looped(arrays)
    assert expected == [(0, 4, True), (4, 7, False), (7, 9, True)]
    assert episodes.starts.tolist() == [0, 4, 7, 9]
    assert episodes.terminated.tolist() == [True, False, True]
    for key in ("observations", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(episodes, key), arrays[key][:9])
    assert episodes.name == str(path) and episodes.env_id is None
    short = "cut before step 4 without a terminal state: 1 episode, whose return may be incomplete"
    left = "3 steps behind the last end are left out; keep_unfinished keeps them"
    assert episodes.notes == (left, short)
    kept = load_episodes(path, keep_unfinished=True)
    assert kept.starts.tolist() == [0, 4, 7, 9, 12] and not kept.terminated[-1]
    np.testing.assert_array_equal(kept.observations, arrays["observations"])
    assert kept.notes == (short.replace("1 episode, whose return", "2 episodes, whose returns"),)


@BOTH
def test_both_ends_at_once_are_a_terminal_state(tmp_path, suffix):
    arrays = steps()
    arrays["timeouts"][3] = True
    assert load_episodes(save(tmp_path / f"toy{suffix}", arrays)).terminated[0]


@BOTH
def test_without_timeouts_the_next_observations_say_it(tmp_path, suffix):
    arrays = steps()
    arrays["next_observations"] = np.roll(arrays["observations"], -1, 0)
    arrays["next_observations"][[3, 6, 8]] += 1
    del arrays["timeouts"]
    episodes = load_episodes(save(tmp_path / f"toy{suffix}", arrays))
    assert episodes.starts.tolist() == [0, 4, 7, 9]
    assert episodes.terminated.tolist() == [True, False, True]
    assert not any("no timeouts" in note for note in episodes.notes)

    del arrays["next_observations"]
    only_terminals = load_episodes(save(tmp_path / f"few{suffix}", arrays))
    assert only_terminals.starts.tolist() == [0, 4, 9] and only_terminals.terminated.all()
    assert only_terminals.notes == (
        "3 steps behind the last end are left out; keep_unfinished keeps them",
        "no timeouts: only terminal states end episodes",
    )

    arrays["terminals"][:] = False
    path = save(tmp_path / f"none{suffix}", arrays)
    with pytest.raises(
        DataFormatError, match="at least one episode end, got none in 12 steps"
    ) as refused:
        load_episodes(path)
    assert refused.value.options == ("keep_unfinished",)
    assert load_episodes(path, keep_unfinished=True).lengths.tolist() == [12]

    arrays["next_observations"] = arrays["observations"] + 1
    with pytest.raises(
        DataFormatError, match=r"next_observations: expected most rows .* none does"
    ):
        load_episodes(save(tmp_path / f"mixed{suffix}", arrays))


@pytest.mark.parametrize("steps_in_all", [1, 2])
def test_few_steps_without_timeouts(tmp_path, steps_in_all):
    arrays = {key: array[:steps_in_all] for key, array in steps().items() if key != "timeouts"}
    arrays["next_observations"] = arrays["observations"] + 1
    arrays["terminals"][:] = True
    episodes = load_episodes(save(tmp_path / "toy.npz", arrays))
    assert episodes.num_episodes == steps_in_all


@BOTH
def test_columns_and_other_dtypes(tmp_path, suffix):
    arrays, plain = steps(dtype=">f8"), load_episodes(save(tmp_path / "plain.npz", steps()))
    arrays["rewards"] = arrays["rewards"][:, None]
    arrays["terminals"] = arrays["terminals"].astype(np.uint8)[:, None]
    arrays["timeouts"] = arrays["timeouts"].astype(np.float32)
    assert load_episodes(save(tmp_path / f"toy{suffix}", arrays)).checksum() == plain.checksum()


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.integers(0, 2**32),
    st.sampled_from([".hdf5", ".h5", ".npz"]),
    st.sampled_from([None, "Hopper-v5", "Pokój-v0"]),
)
def test_what_is_written_is_read(tmp_path_factory, lengths, seed, suffix, env_id):
    rng, count = np.random.default_rng(seed), sum(lengths)
    bits = rng.integers(0, 2**32, (count, 6), np.uint32).view(np.float32)
    bits[~(np.abs(bits) < 1e30)] = -0.0
    one = Episodes("toy", bits[:, :3], bits[:, 3:5], bits[:, 5], np.cumsum([0, *lengths]),
                   rng.random(len(lengths)) < 0.5, env_id)  # fmt: skip
    path = tmp_path_factory.mktemp("written") / f"new/toy{suffix}"
    write_episodes(path, one, {"policy": "at random", "näme": "ø"})
    again = load_episodes(path)
    assert again.checksum() == one.checksum() and again.env_id == env_id
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_where_the_rest_is_kept(tmp_path):
    one = load_episodes(save(tmp_path / "toy.npz", steps()))
    about = {"policy": "at random", "made": "2025"}
    write_episodes(tmp_path / "a.npz", one, about)
    with np.load(tmp_path / "a.npz") as file:
        assert json.loads(str(file["about"])) == about and "env_id" not in file
    write_episodes(tmp_path / "a.hdf5", one, about)
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert dict(file.attrs) == about and file["observations"].compression == "gzip"
        assert file["timeouts"].dtype == bool and file["timeouts"][()].sum() == 1
    for path, wrong in (("a.csv", {}), ("a.npz", {"env_id": "x"}), ("a.npz", {"x": 3}),
                        ("a.hdf5", {"x": "a\0b"}), ("a.hdf5", {"": "x"})):  # fmt: skip
        with pytest.raises(OptionError, match=r"path must end in \.hdf5|about must map names"):
            write_episodes(tmp_path / path, one, wrong)


def test_an_error_leaves_the_file_before(tmp_path, monkeypatch):
    one = load_episodes(save(tmp_path / "toy.npz", steps()))
    before = (tmp_path / "toy.npz").read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_episodes(tmp_path / "toy.npz", one)
    assert (tmp_path / "toy.npz").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["toy.npz"]


@BOTH
@pytest.mark.parametrize("shape", [(12,), (12, 1)])
def test_integers_are_discrete_actions(tmp_path, suffix, shape):
    choices = np.array([0, 2, 1] * 4, np.uint8)
    path = save(tmp_path / f"toy{suffix}", {**steps(), "actions": choices.reshape(shape)})
    episodes = load_episodes(path)
    assert episodes.actions.dtype == np.int32 and episodes.actions.tolist() == choices[:9].tolist()
    assert (episodes.num_actions, episodes.action_dim, len(episodes.notes)) == (3, 1, 2)
    assert "num_actions=3" in repr(episodes) and "action_dim" not in repr(episodes)
    more = dataclasses.replace(episodes, num_actions=5)
    again = tmp_path / f"again{suffix}"
    write_episodes(again, more)
    assert load_episodes(again).num_actions == 5
    assert load_episodes(again).checksum() == episodes.checksum()
    assert load_episodes([path, again]).num_actions == 5
    flat = dataclasses.replace(episodes, actions=np.float32(episodes.actions[:, None]),
                               num_actions=None)  # fmt: skip
    assert flat.checksum() != episodes.checksum()
    with pytest.raises(ValueError, match=r"expected 3 discrete actions, as .* actions of 1 num"):
        join_episodes([episodes, flat])


@BOTH
@pytest.mark.parametrize(
    ("actions", "note"),
    [(np.float32([[0], [2], [1]] * 4), r"whole numbers from 0, .*float32: .*astype\(numpy.int32"),
     (np.eye(3)[[0, 2, 1] * 4], r"one-hot, but stored as float64: .* save actions.argmax"),
     (np.float32([[0], [-1], [1]] * 4), None), (np.zeros((12, 1)), None),
     (np.float32([[0, 1], [1, 1]] * 6), None), (np.float32([[0, 0.5], [1, 0]] * 6), None)],
)  # fmt: skip
def test_floating_point_choices_are_noted(tmp_path, suffix, actions, note):
    episodes = load_episodes(save(tmp_path / f"toy{suffix}", {**steps(), "actions": actions}))
    assert episodes.num_actions is None
    assert len(episodes.notes) == 2 + (note is not None)
    assert note is None or re.search(note, episodes.notes[-1])


WRONG = [
    ({"actions": None}, r": expected arrays observations, actions, .* add actions"),
    ({"observations": np.zeros(12)}, r":observations: expected shape \[N, S\], .* got \[12\]"),
    ({"observations": np.zeros((12, 8, 8, 3), np.uint8)},
     r":observations: .* got uint8 \[12, 8, 8, 3\]; images are not supported"),
    ({"observations": np.zeros((0, 3))}, r":observations: .* got \[0, 3\]"),
    ({"observations": np.float32(1)}, r":observations: .* got \[\]"),
    ({"actions": np.zeros((12, 2, 2))}, r":actions: expected \[N, numbers\] .* got \[9, 2, 2\]"),
    ({"actions": np.zeros((12, 2), np.int64)},
     r":actions: .* one integer per step, got int64 \[9, 2\]; .*MultiDiscrete.*argmax\(axis=1\)"),
    ({"actions": np.zeros(12, bool)}, r":actions: .* as integers \[N\], got bool \[9\]; save"),
    ({"actions": np.array([0, 1, 2, -1] * 3)},
     r":actions\[3\]: expected a discrete action from 0 to 4,095, got -1; .* magnitudes"),
    ({"actions": np.array([0, 1, 3] * 4), "num_actions": np.array(3)},
     r":actions\[2\]: expected a discrete action from 0 to 2, got 3"),
    ({"num_actions": np.array(3)}, r":actions: .* as integers \[N\], got float32 \[9, 2\]"),
    ({"actions": np.zeros(12, int), "num_actions": np.array(0)},
     r":num_actions: expected one integer from 1 to 4,096, got int64 \[\]"),
    ({"actions": np.zeros(12, int), "num_actions": np.array([2.0, 2.0])},
     r":num_actions: expected one integer .* got float64 \[2\]"),
    ({"actions": np.zeros((11, 2))}, r":actions: expected one for each of 12 obs.* got \[11, 2\]"),
    ({"rewards": np.zeros(13)}, r":rewards: expected one for each of 12 obs.* got \[13\]"),
    ({"rewards": np.zeros((12, 2))}, r":rewards: expected \[N\] .* got \[9, 2\]"),
    ({"terminals": np.zeros(11, bool)}, r":terminals: expected one for each of 12 .* got \[11\]"),
    ({"terminals": np.full(12, 2)}, r":terminals\[0\]: expected 0 or 1, got 2"),
    ({"timeouts": np.zeros((12, 3))}, r":timeouts: expected one for each .* got \[12, 3\]"),
    ({"timeouts": None, "next_observations": np.zeros((12, 2))},
     r":next_observations: expected the shape of observations, \[12, 3\], got \[12, 2\]"),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize(("change", "message"), WRONG)
def test_bad_arrays_are_named(tmp_path, suffix, change, message):
    arrays = {key: own for key, own in {**steps(), **change}.items() if own is not None}
    path = save(tmp_path / f"toy{suffix}", arrays)
    with pytest.raises(DataFormatError, match=rf"toy\{suffix}{message}"):
        load_episodes(path)


@BOTH
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("key", ["observations", "actions", "rewards"])
def test_the_first_bad_row_is_named(tmp_path, suffix, key, value):
    arrays = steps(dtype=np.float64)
    arrays[key][[5, 7]] = value
    path = save(tmp_path / f"toy{suffix}", arrays)
    with pytest.raises(DataFormatError, match=rf"toy\{suffix}:{key}\[5\]: expected finite"):
        load_episodes(path)
    arrays[key][[5, 7]], arrays[key][10] = 0, value  # of the unfinished one, which is left out
    assert load_episodes(save(path, arrays)).num_steps == 9
    with pytest.raises(DataFormatError, match=rf"toy\{suffix}:{key}\[10\]: expected finite"):
        load_episodes(path, keep_unfinished=True)


def test_names_are_shown_without_commands_to_a_terminal(tmp_path):
    path = save(tmp_path / "toy.hdf5", {"\x1b[1m": np.zeros(3)})
    with pytest.raises(DataFormatError, match=r"terminals, got \\x1b\[1m; add observations"):
        load_episodes(path)


@pytest.mark.parametrize("kind", [str, "M8[s]", complex])
def test_only_numbers_are_taken_of_npz(tmp_path, kind):
    arrays = {**steps(), "next_observations": np.zeros((12, 3), kind)}
    del arrays["timeouts"]
    with pytest.raises(DataFormatError, match="npz:next_observations: expected numbers, got"):
        load_episodes(save(tmp_path / "toy.npz", arrays))
    objects = {**steps(), "observations": np.array([None, 1])}
    with pytest.raises(DataFormatError, match="npz:observations: expected numbers, got Python obj"):
        load_episodes(save(tmp_path / "toy.npz", objects))


def test_a_text_that_is_none_is_no_environment(tmp_path):
    for env_id in (np.array(["a", "b"]), np.array(3), np.full(1, 2**31 - 1, np.int32).view("<U1"),
                   np.array("\x1b[1m")):  # fmt: skip
        path = save(tmp_path / "toy.npz", {**steps(), "env_id": env_id})
        assert read_d4rl(path).env_id is None
    path = save(tmp_path / "toy.hdf5", steps())
    for env_id in (3, np.array([b"a", b"b"]), "x" * 5000, "a\x1b[1m"):
        with h5py.File(path, "a") as file:
            file.attrs["env_id"] = env_id
        assert read_d4rl(path).env_id is None
    with h5py.File(path, "a") as file:
        file.attrs["env_id"] = np.bytes_(b"Hopper-v5")
    assert read_d4rl(path).env_id == "Hopper-v5"


def test_files_of_other_kinds(tmp_path):
    path = tmp_path / "toy.hdf5"
    whole = save(path, steps()).read_bytes()
    for content in (b"", b"time,reward\n0,1\n", b"\x89HDF"):
        path.write_bytes(content)
        with pytest.raises(DataFormatError, match=r"toy\.hdf5: expected episodes in an HDF5 file"):
            load_episodes(path)
        with pytest.raises(DataFormatError, match=r"toy\.hdf5: expected a whole HDF5 file"):
            load_episodes(path, "d4rl")
    for content in (whole[: len(whole) // 2], whole[:100]):
        path.write_bytes(content)
        with pytest.raises(
            DataFormatError, match=r"toy\.hdf5: expected a whole HDF5 file, got a da"
        ):
            load_episodes(path)
    with pytest.raises(FileNotFoundError, match="found nothing there"):
        load_episodes(tmp_path / "none.hdf5")
    with pytest.raises(OptionError, match="file_format must be one of auto, d4rl, minari, npz"):
        load_episodes(path, "hdf5")
    with pytest.raises(ValueError, match="expected at least one set of episodes to join, got none"):
        load_episodes([])


def test_several_files_are_joined(tmp_path):
    paths = [save(tmp_path / f"{seed}.npz", steps(seed=seed)) for seed in range(2)]
    both = load_episodes([str(paths[0]), paths[1]])
    assert both.num_episodes == 6 and both.name == f"{paths[0]} + {paths[1]}"
    alone = load_episodes(paths[0]).notes
    assert len(alone) == 2
    assert both.notes == tuple(f"{path}: {note}" for path in paths for note in alone)
    assert len(load_episodes([paths[0]] * 2).notes) == 2
    wide = {**steps(), "observations": np.zeros((12, 4))}
    with pytest.raises(ValueError, match=r"wide\.npz: expected observations of 3 .*0\.npz has"):
        load_episodes([paths[0], save(tmp_path / "wide.npz", wide)])


def test_without_h5py(tmp_path, monkeypatch):
    path = save(tmp_path / "toy.hdf5", steps())
    other = save(tmp_path / "toy.npz", steps())
    monkeypatch.delitem(sys.modules, "h5py")
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    message = r'takes h5py: pip install "flax-linattn\[rl\]"'
    with pytest.raises(ValueError, match=message):
        load_episodes(path)
    with pytest.raises(ValueError, match=message):
        write_episodes(tmp_path / "new.hdf5", load_episodes(other))
    assert not (tmp_path / "new.hdf5").exists()


class Missing:
    """An importer as if h5py were not installed."""

    def find_spec(self, name, path=None, target=None):
        if name == "h5py":
            raise ModuleNotFoundError(name)


@pytest.mark.parametrize("robot", MEANS)
def test_real_rollouts(data_dir, robot):
    for kind, mean in zip(("medium", "medium-replay", "expert"), MEANS[robot], strict=True):
        path = data_dir / "rl_rollouts" / f"{robot}-{kind}-sb3.hdf5"
        episodes = load_episodes(path)
        assert episodes.num_steps == 20_000
        last = episodes.lengths[-1] < 1000 and not episodes.terminated[-1]
        whole = episodes.returns[: -1 if last else None]
        assert abs(whole.mean() - mean) < 0.6
        with h5py.File(path) as file:
            arrays = {key: file[key][()] for key in ("terminals", "timeouts", "rewards")}
        starts, stops, terminated = zip(*looped(arrays), strict=True)
        assert episodes.starts.tolist() == [*starts, stops[-1]]
        assert episodes.terminated.tolist() == list(terminated)
        if robot == "ant":
            assert not episodes.observations[:, 27:].any()
