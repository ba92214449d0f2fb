"""Data sets of episodes: whole, in order, and the same after a stop."""

import importlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from flax_linattn.checks import OptionError
from flax_linattn.control import Noisy, RandomPolicy, StoppedError, collect, make_environments, play
from flax_linattn.data.episodes import load_episodes, write_episodes
from flax_linattn.storage import HeldError, held
from tests.control import toys

ENVS = 3
collecting = importlib.import_module("flax_linattn.control.collect")
"""The module, whose name in the package is that of its function."""


def agent():
    low, high = [-1.0, -1.0], [1.0, 1.0]
    return Noisy(RandomPolicy(low, high, 1), 0.2, low, high, 2)


def run(path, num_steps=400, num_envs=ENVS, **options):
    with make_environments(toys.COUNTDOWN, num_envs) as environments:
        return collect(agent(), environments, num_steps, path, progress=False, **options)


def stop_after(steps):
    count = itertools.count(1)
    return lambda: next(count) >= steps


def test_episodes_are_those_of_play_in_the_order_of_their_seeds(tmp_path):
    path = tmp_path / "set.npz"
    found = run(path, seed=5, about={"policy": "a toy"})
    with make_environments(toys.COUNTDOWN, 1) as environments:
        seeds = range(5, 5 + found.num_episodes)
        assert play(agent(), environments, seeds).checksum() == found.checksum()
    # As few whole episodes as hold that many steps.
    assert found.starts[-2] < 400 <= found.num_steps
    again = load_episodes(path)
    assert again.checksum() == found.checksum() and again.env_id == toys.COUNTDOWN
    assert again.name == found.name == str(path)
    assert [file.name for file in tmp_path.iterdir()] == ["set.npz"]
    about = json.loads(str(np.load(path)["about"]))
    assert about["policy"] == "a toy" and about["seed"] == "5"
    assert {name.split()[0] for name in about["versions"].split(", ")} >= {"numpy", "jax", "jaxlib"}


def count_plays(monkeypatch):
    """The numbers of episodes that are played from now on, a part each."""
    counts = []
    before = collecting.play

    def counted(agent, environments, seeds, **options):
        counts.append(len(seeds))
        return before(agent, environments, seeds, **options)

    monkeypatch.setattr(collecting, "play", counted)
    return counts


def test_a_number_of_episodes_plays_no_more(tmp_path, monkeypatch):
    counts = count_plays(monkeypatch)
    assert run(tmp_path / "set.npz", None, num_episodes=8).num_episodes == 8
    assert counts == [6, 2]


def test_more_episodes_go_on_behind_a_short_part(tmp_path, monkeypatch):
    path = tmp_path / "set.npz"
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(collecting, "_write_options", broken_at(2, collecting._write_options))
        run(path, None, num_episodes=8)
    counts = count_plays(monkeypatch)
    run(path, None, num_episodes=15)
    assert counts == [6, 1]
    run(tmp_path / "whole.npz", None, num_episodes=15)
    assert path.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def broken_at(number, function):
    """A function whose call of that number, from 1, does not come to its end."""
    calls = itertools.count(1)

    def breaking(*args, **options):
        if next(calls) == number:
            raise OSError("the disk is full")
        return function(*args, **options)

    return breaking


@pytest.mark.parametrize("stops", [[1], [30], [7, 25, 60]])
def test_a_stop_changes_no_bit(stops, tmp_path):
    whole, stopped = tmp_path / "whole.npz", tmp_path / "stopped.npz"
    run(whole)
    for steps in stops:
        with pytest.raises(StoppedError, match="the same call goes on from there"):
            run(stopped, stop=stop_after(steps))
        assert not stopped.exists()
    run(stopped)
    assert stopped.read_bytes() == whole.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["stopped.npz", "whole.npz"]


def test_an_error_of_the_agent_keeps_the_parts(tmp_path):
    """As Ctrl-C does, which no handler has noted."""

    class Breaks:
        def __init__(self):
            self.left = 40
            self.inner = agent()

        def begin(self, rows, seeds):
            self.inner.begin(rows, seeds)

        def act(self, *seen):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return self.inner.act(*seen)

    path = tmp_path / "set.npz"
    with (
        make_environments(toys.COUNTDOWN, ENVS) as environments,
        pytest.raises(KeyboardInterrupt),
    ):
        collect(Breaks(), environments, 400, path, progress=False)
    assert (tmp_path / "set.npz.parts" / "000000.npz").exists()
    run(tmp_path / "whole.npz")
    run(path)
    assert path.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def broken_clean_up(path, number, monkeypatch, **options):
    """A file of whose parts so many less one were removed; the options are the last of three."""
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(Path, "unlink", broken_at(number, Path.unlink))
        run(path, None, num_episodes=8, **options)
    assert path.exists() and len(list(parts_of(path).iterdir())) == 5 - number


def parts_of(path):
    return path.with_name(f"{path.name}.parts")


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
def test_a_stop_while_the_parts_are_removed(suffix, number, tmp_path, monkeypatch):
    """The file is whole: nothing is played, and nothing is written again."""
    path = tmp_path / f"set{suffix}"
    if suffix == ".hdf5":
        pytest.importorskip("h5py")
    broken_clean_up(path, number, monkeypatch, about={"policy": "a"})
    before = path.stat()
    counts = count_plays(monkeypatch)
    found = run(path, None, num_episodes=8, about={"policy": "a"})
    assert counts == [] and list(tmp_path.iterdir()) == [path]
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    run(tmp_path / "whole.npz", None, num_episodes=8)
    assert found.checksum() == load_episodes(tmp_path / "whole.npz").checksum()
    assert found.name == str(path)


def test_a_stop_before_the_file_is_written(tmp_path, monkeypatch):
    path = tmp_path / "set.npz"
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(collecting, "write_episodes", broken_at(4, collecting.write_episodes))
        run(path, None, num_episodes=8)  # a trial, two parts and the file
    assert not path.exists()
    counts = count_plays(monkeypatch)
    assert run(path, None, num_episodes=8).num_episodes == 8 and counts == []
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("num_episodes", [7, 9])
def test_another_number_than_that_of_the_finished_file(num_episodes, tmp_path, monkeypatch):
    path = tmp_path / "set.npz"
    broken_clean_up(path, 2, monkeypatch)
    before = path.read_bytes()
    with pytest.raises(OptionError, match=r"set\.npz exists already"):
        run(path, None, num_episodes=num_episodes)
    assert path.read_bytes() == before
    # Without the file it goes on from the part that is left.
    path.unlink()
    counts = count_plays(monkeypatch)
    assert run(path, None, num_episodes=num_episodes).num_episodes == num_episodes
    assert counts == [num_episodes - 6]


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_file_of_others_beside_parts_is_kept(is_finished, tmp_path, monkeypatch):
    path = tmp_path / "set.npz"
    if is_finished:
        broken_clean_up(path, 1, monkeypatch)
    else:
        with pytest.raises(StoppedError):
            run(path, None, num_episodes=8, stop=stop_after(30))
    path.write_text("mine")
    with pytest.raises(OptionError, match=r"set\.npz exists already"):
        run(path, None, num_episodes=8)
    with make_environments(toys.COUNTDOWN, 1) as environments:
        write_episodes(path, play(agent(), environments, range(90, 98)))
    before = path.read_bytes()
    with pytest.raises(OptionError, match=r"set\.npz exists already"):
        run(path, None, num_episodes=8)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"env_id": "Hopper-v5"}, "names other than env_id, got 'env_id'"),
        ({"seed": "1"}, "about must have names other than seed, which"),
        ({"versions": "", "environments": "1"}, "other than environments, versions"),
        ({"environment": "Hopper-v5"}, "names other than environment,"),
        ({"finished": "yes"}, "names other than finished,"),
        ({"": "a"}, "about must hold texts"),
        ({"a": "b\0"}, "about must hold texts without NUL"),
        ({"a": 1}, "about must hold texts"),
    ],
)
@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_what_cannot_be_written_is_refused_before_any_play(
    suffix, about, message, tmp_path, monkeypatch
):
    if suffix == ".h5":
        pytest.importorskip("h5py")
    counts = count_plays(monkeypatch)
    with pytest.raises(OptionError, match=message):
        run(tmp_path / f"set{suffix}", about=about)
    assert counts == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "begun with seed 0, and now it is 1"),
        ({"num_envs": 2}, "begun with environments 3, and now it is 2"),
        ({"about": {"policy": "b"}}, "begun with policy None, and now it is 'b'"),
    ],
)
def test_other_options_do_not_go_on(options, message, tmp_path):
    path = tmp_path / "set.npz"
    with pytest.raises(StoppedError):
        run(path, stop=stop_after(1))
    with pytest.raises(OptionError, match=message):
        run(path, **options)


def test_more_steps_go_on(tmp_path):
    path = tmp_path / "set.npz"
    with pytest.raises(StoppedError):
        run(path, 200, stop=stop_after(30))
    run(path, 400)
    run(tmp_path / "whole.npz", 400)
    assert path.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_damaged_options(tmp_path):
    parts = tmp_path / "set.npz.parts"
    parts.mkdir()
    (parts / "options.json").write_text("{")
    with pytest.raises(ValueError, match=r"options\.json: expected the options .* damaged; remove"):
        run(tmp_path / "set.npz")


def test_one_process_a_file(tmp_path):
    path = tmp_path / "set.npz"
    with held(tmp_path / "set.npz.parts" / "lock"), pytest.raises(HeldError, match=r"set\.npz"):
        run(path)


@pytest.mark.parametrize(
    ("name", "steps", "options", "message"),
    [
        ("set.csv", 10, {}, r"a file \.hdf5, \.h5 or \.npz, got"),
        ("set.npz", None, {}, "steps or that of episodes, one of them"),
        ("set.npz", 10, {"num_episodes": 1}, "steps or that of episodes, one of them"),
        ("set.npz", 0, {}, "num_steps must be at least 1, got 0"),
        ("set.npz", 10, {"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_options_that_do_not_do(name, steps, options, message, tmp_path):
    with pytest.raises(OptionError, match=message):
        run(tmp_path / name, steps, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_kept(tmp_path):
    path = tmp_path / "set.npz"
    path.write_text("mine")
    with pytest.raises(OptionError, match=r"set\.npz exists already"):
        run(path)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]
