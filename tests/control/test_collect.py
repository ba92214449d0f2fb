"""Data sets of episodes: whole, in order, and the same after a stop."""

import itertools
import json

import numpy as np
import pytest

from flax_linattn.checks import OptionError
from flax_linattn.control import Noisy, RandomPolicy, StoppedError, collect, make_environments, play
from flax_linattn.data.episodes import load_episodes
from flax_linattn.storage import HeldError, held
from tests.control import toys

ENVS = 3


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
    assert [file.name for file in tmp_path.iterdir()] == ["set.npz"]
    about = json.loads(str(np.load(path)["about"]))
    assert about["policy"] == "a toy" and about["seed"] == "5" and "numpy" in about["versions"]


def test_a_number_of_episodes(tmp_path):
    assert run(tmp_path / "set.npz", None, num_episodes=8).num_episodes == 8


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


def test_a_stop_while_the_parts_are_removed(tmp_path):
    """The file is there and so are parts: it is written again, as it was."""
    path, parts = tmp_path / "set.npz", tmp_path / "set.npz.parts"
    with pytest.raises(StoppedError):
        run(path, stop=stop_after(40))
    kept = (parts / "options.json").read_text()
    run(path)
    before = path.read_bytes()
    parts.mkdir()
    (parts / "options.json").write_text(kept)
    run(path)
    assert path.read_bytes() == before and not parts.exists()


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
