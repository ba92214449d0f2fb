"""Data sets of episodes: whole, in order, and the same after a stop."""

import importlib
import itertools
import json
import signal
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest

from experiments.offline_rl.collect import StoppedError, collect, main
from experiments.offline_rl.policies import Noisy, RandomPolicy
from flax_linattn.checks import OptionError
from flax_linattn.control import make_environments, play
from flax_linattn.data.episodes import load_episodes
from flax_linattn.storage import LockedError, file_lock
from tests.control import toys

ENVS, NAME = 3, "Collected-v0"
collecting = importlib.import_module("experiments.offline_rl.collect")


@pytest.fixture(scope="module", autouse=True)
def countdown():
    with toys.registered(NAME, toys.Countdown) as env_id:
        yield env_id


def agent():
    low, high = [-1.0, -1.0], [1.0, 1.0]
    return Noisy(RandomPolicy(low, high, 1), 0.2, low, high, 2)


def run(path, num_steps=400, num_envs=ENVS, **options):
    with closing(make_environments(NAME, num_envs)) as environments:
        return collect(agent(), environments, path, num_steps=num_steps, **options)


def stop_after(steps):
    count = itertools.count(1)
    return lambda: next(count) >= steps


def test_episodes_are_those_of_play_in_the_order_of_their_seeds(tmp_path):
    path = tmp_path / "set.npz"
    found = run(path, seed=5, about={"policy": "a toy"})
    with closing(make_environments(NAME, 1)) as environments:
        seeds = range(5, 5 + found.num_episodes)
        assert play(agent(), environments, seeds).checksum() == found.checksum()
    # As few whole episodes as hold that many steps.
    assert found.starts[-2] < 400 <= found.num_steps
    again = load_episodes(path)
    assert again.checksum() == found.checksum() and again.env_id == NAME
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


def test_more_episodes_continue_after_a_short_part(tmp_path, monkeypatch):
    path = tmp_path / "set.npz"
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(collecting, "join_episodes", broken)
        run(path, None, num_episodes=8)
    counts = count_plays(monkeypatch)
    run(path, None, num_episodes=15)
    assert counts == [6, 1]
    run(tmp_path / "whole.npz", None, num_episodes=15)
    assert path.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def broken(*args):
    raise OSError("the disk is full")


@pytest.mark.parametrize("stops", [[1], [30], [7, 25, 60]])
def test_a_stop_changes_no_bit(stops, tmp_path):
    whole, stopped = tmp_path / "whole.npz", tmp_path / "stopped.npz"
    run(whole)
    for steps in stops:
        with pytest.raises(StoppedError, match="the same command continues"):
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
        closing(make_environments(NAME, ENVS)) as environments,
        pytest.raises(KeyboardInterrupt),
    ):
        collect(Breaks(), environments, path, num_steps=400)
    assert (tmp_path / "set.npz.parts" / "000000.npz").exists()
    run(tmp_path / "whole.npz")
    run(path)
    assert path.read_bytes() == (tmp_path / "whole.npz").read_bytes()


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
    with (
        file_lock(tmp_path / "set.npz.parts" / "lock"),
        pytest.raises(LockedError, match=r"set\.npz"),
    ):
        run(path)


@pytest.mark.parametrize(
    ("name", "steps", "options", "message"),
    [
        ("set.csv", 10, {}, r"must end in \.hdf5, \.h5 or \.npz, got"),
        ("set.npz", None, {}, "either the number of steps or the number of episodes"),
        (
            "set.npz",
            10,
            {"num_episodes": 1},
            "either the number of steps or the number of episodes",
        ),
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


def test_the_command_writes_what_it_plays(tmp_path, capsys):
    weights, path = tmp_path / "policy.npz", tmp_path / "set.npz"
    np.savez(weights, **{"action_net.weight": np.zeros((1, 3), np.float32)})
    main([str(weights), "--env", "Pendulum-v1", "--out", str(path), "--episodes", "3"])
    assert f"{path}: 600 steps of 3 episodes" in capsys.readouterr().out
    assert load_episodes(path).num_episodes == 3
    about = json.loads(str(np.load(path)["about"]))
    assert about["policy"] == "policy.npz" and len(about["policy_sha256"]) == 64
    with pytest.raises(SystemExit):
        main(["random", "--env", "Pendulum-v1", "--out", str(path), "--episodes", "3"])
    assert "exists already; give another file, or remove it." in capsys.readouterr().err
    noisy = ["random", "--env", "Pendulum-v1", "--out", str(tmp_path / "b.npz"), "--noise", "-1"]
    with pytest.raises(SystemExit):
        main([*noisy, "--episodes", "3"])
    assert "std must be 0 or more, got -1.0" in capsys.readouterr().err


def test_discrete_actions_are_collected(tmp_path, capsys):
    for policy in ("random", "balance"):
        path = tmp_path / f"{policy}.npz"
        args = [policy, "--env", "CartPole-v1", "--out", str(path), "--noise", "0.7"]
        main([*args, "--episodes", "5"])
        found = load_episodes(path)
        assert (found.num_episodes, found.num_actions, found.env_id) == (5, 2, "CartPole-v1")
        assert f"mean return {found.returns.mean():.2f}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_signal_ends_it_and_the_same_command_continues(tmp_path):
    command = [sys.executable, "-m", "experiments.offline_rl.collect", "swing-up"]
    command += ["--env", "Pendulum-v1", "--noise", "0.5", "--steps", "120000", "--num-envs", "4"]
    stopped, whole, parts = (tmp_path / name for name in ("a.npz", "b.npz", "a.npz.parts"))
    with subprocess.Popen(
        [*command, "--out", str(stopped)], stderr=subprocess.PIPE, text=True
    ) as process:
        for _ in range(600):
            if len(list(parts.glob("*.npz"))) > 2:
                break
            time.sleep(0.05)
        second = subprocess.run(
            [*command, "--out", str(stopped)], capture_output=True, text=True, check=False
        )
        assert second.returncode == 2 and "another process uses" in second.stderr
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert "on the disk; the same command continues from there." in err and not stopped.exists()
    assert len(list(parts.glob("*.npz"))) > 2
    subprocess.run([*command, "--out", str(stopped)], check=True, capture_output=True)
    subprocess.run([*command, "--out", str(whole)], check=True, capture_output=True)
    assert stopped.read_bytes() == whole.read_bytes() and not parts.exists()
