"""The command ``flax-linattn rollout``."""

import json
import sys
import types
from contextlib import closing

import gymnasium
import numpy as np
import pytest
from flax import nnx

from flax_linattn import cli, tasks
from flax_linattn.control import make_environments, play
from flax_linattn.data.episodes import load_episodes
from tests.control import toys
from tests.control.test_play import Follow, Push


def rollout(capsys, *args):
    status = cli.main(["rollout", *map(str, args)])
    said = capsys.readouterr()
    return status, said.out, said.err


def a_run(monkeypatch, **problem):
    """A run whose agent pushes the pendulum, and what is asked of it."""
    asked = []

    class Task:
        def agent(self, run, environments, **how):
            asked.append((environments.spec.id, how))
            return Push()

    def load_run(path, *, checkpoint):
        asked.append(checkpoint)
        return run

    run = types.SimpleNamespace(
        task=Task(),
        config=types.SimpleNamespace(play=types.SimpleNamespace(act="slow", play_seed=4000)),
        data_spec=types.SimpleNamespace(**{"observation_dim": 3, "target_return": -5.0, **problem}),
        model=nnx.Linear(2, 3, rngs=nnx.Rngs(0)),
    )
    monkeypatch.setattr(tasks, "load_run", load_run)
    return run, asked


def test_a_run_plays_by_its_task(capsys, tmp_path, monkeypatch):
    run, asked = a_run(monkeypatch)
    model = run.model
    args = (tmp_path, "--env", "Pendulum-v1", "--episodes", 1, "--target-return", -150)
    status, out, _ = rollout(capsys, *args)
    assert status == 0 and "200" in out
    assert asked == ["best", ("Pendulum-v1", {"target_return": -150.0})]
    # The parameters are told apart.
    about = []
    for number in range(3):
        path = tmp_path / f"{number}.npz"
        assert rollout(capsys, *args, "--out", path)[0] == 0
        about.append(json.loads(str(np.load(path)["about"])))
        model.bias[...] += float(number)
    checksums = [entry["policy_sha256"] for entry in about]
    assert checksums[0] == checksums[1] != checksums[2]
    assert (about[0]["target_return"], about[0]["act"], about[0]["seed"]) == ("-150.0", "slow", "0")


def test_how_a_run_acts_is_passed_on_and_kept(capsys, tmp_path, monkeypatch):
    _, asked = a_run(monkeypatch)
    path = tmp_path / "set.npz"
    args = ("--env", "Pendulum-v1", "--act", "fast", "--checkpoint", "last", "--episodes", 1)
    assert rollout(capsys, tmp_path, *args, "--out", path)[0] == 0
    assert asked == ["last", ("Pendulum-v1", {"act": "fast"})]
    about = json.loads(str(np.load(path)["about"]))
    assert (about["act"], about["target_return"]) == ("fast", "-5.0")


def test_a_run_says_where_it_plays_and_from_which_seed(capsys, tmp_path, monkeypatch):
    run, asked = a_run(monkeypatch, env_id="Pendulum-v1")
    status, out, _ = rollout(capsys, tmp_path, "--episodes", 2)
    assert status == 0 and asked[-1] == ("Pendulum-v1", {})
    with closing(make_environments("Pendulum-v1", 2)) as environments:
        returns = play(Push(), environments, [4000, 4001]).returns
    rows = [line.split() for line in out.splitlines()[1:3]]
    assert [row[0] for row in rows] == ["4000", "4001"]
    assert [row[2] for row in rows] == [f"{value:.2f}" for value in returns]
    _, out, _ = rollout(capsys, tmp_path, "--episodes", 1, "--seed", 3)
    assert out.splitlines()[1].split()[0] == "3"
    del run.config.play  # of a task that plays no test
    _, out, _ = rollout(capsys, tmp_path, "--episodes", 1)
    assert out.splitlines()[1].split()[0] == "0"


def test_a_row_an_episode(capsys, tmp_path, monkeypatch):
    a_run(monkeypatch)
    args = ("--env", "Pendulum-v1", "--episodes", 3, "--seed", 7)
    status, out, err = rollout(capsys, tmp_path, *args)
    assert (status, err) == (0, "")
    with closing(make_environments("Pendulum-v1", 2)) as environments:
        returns = play(Push(), environments, [7, 8, 9]).returns
    header, *rows, last = out.splitlines()
    assert header.split() == ["seed", "steps", "return", "ended"]
    expected = [[str(7 + row), "200", f"{returns[row]:.2f}", "time"] for row in range(3)]
    assert [row.split() for row in rows] == expected
    assert last.startswith(f"return {returns.mean():.2f} (std {returns.std(ddof=1):.2f}), length")


def test_scores_where_there_are_references(capsys, tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    run, _ = a_run(monkeypatch, observation_dim=11)
    run.task.agent = lambda run, environments: Still()
    args = ("--env", "Hopper-v5", "--episodes", 2, "--num-envs", 2)
    status, out, _ = rollout(capsys, tmp_path, *args)
    assert status == 0 and "terminal" in out
    header, row, *_ = out.splitlines()
    score = 100 * (float(row.split()[2]) + 20.272305) / (3234.3 + 20.272305)
    assert header.split()[-1] == "score" and row.split()[-1] == f"{score:.2f}"
    assert "normalized score" in out.splitlines()[-1]


class Still:
    def act(self, observations, rewards, begins):
        return np.zeros((len(begins), 3))


def test_a_file_of_episodes(capsys, tmp_path, monkeypatch):
    a_run(monkeypatch)
    path = tmp_path / "set.npz"
    args = (tmp_path, "--env", "Pendulum-v1", "--out", path, "--episodes", 3)
    status, out, _ = rollout(capsys, *args)
    assert status == 0 and f"{path}: 600 steps of 3 episodes" in out
    assert load_episodes(path).num_episodes == 3
    before = path.read_bytes()
    status, _, err = rollout(capsys, *args)
    assert status == 2 and "already exists; choose another file, or remove it. (--out)" in err
    assert path.read_bytes() == before


def test_an_environment_has_to_be_named(capsys, tmp_path, monkeypatch):
    a_run(monkeypatch)
    status, out, err = rollout(capsys, tmp_path)
    assert (status, out) == (2, "")
    assert "has no environment; pass one, such as --env Pendulum-v1." in err


def test_a_package_is_imported_for_the_option_alone(capsys, tmp_path, monkeypatch):
    (tmp_path / "user_robots.py").write_text(
        "import gymnasium\n"
        "from tests.control import toys\n"
        "gymnasium.register('User-v0', entry_point=toys.Countdown, max_episode_steps=7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run, _ = a_run(monkeypatch, env_id="user_robots:User-v0", observation_dim=2)
    status, _, err = rollout(capsys, tmp_path)
    assert status == 2 and "for a name from a file" in err and "(--env)" in err
    try:
        args = ("--env", "user_robots:User-v0", "--episodes", 1)
        monkeypatch.setattr(run.task, "agent", lambda run, environments: Follow(16))
        assert rollout(capsys, tmp_path, *args)[0] == 0
    finally:
        gymnasium.registry.pop("User-v0", None)
        sys.modules.pop("user_robots", None)


def test_pictures_are_tried_before_the_play(capsys, tmp_path, monkeypatch):
    a_run(monkeypatch)
    gif, out = tmp_path / "first.gif", tmp_path / "set.npz"
    args = (tmp_path, "--env", "Pendulum-v1", "--episodes", 1, "--gif", gif, "--out", out)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "imageio.v2", None)
        status, _, err = rollout(capsys, *args)
    assert status == 2 and "animations need imageio" in err and not list(tmp_path.iterdir())
    gif.write_text("mine")
    status, _, err = rollout(capsys, *args)
    assert status == 2
    assert f"{gif} already exists; choose another file, or remove it. (--gif)" in err
    assert gif.read_text() == "mine" and list(tmp_path.iterdir()) == [gif]


def test_a_robot_that_cannot_be_drawn_is_not_played(capsys, tmp_path, monkeypatch):
    pytest.importorskip("imageio")
    a_run(monkeypatch, observation_dim=2)
    args = (tmp_path, "--env", toys.COUNTDOWN, "--episodes", 1, "--gif", tmp_path / "first.gif")
    status, out, err = rollout(capsys, *args, "--out", tmp_path / "set.npz")
    assert (status, out) == (2, "") and "cannot render images" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--env Pendulum-v9", "did you mean Pendulum-v1 .* (--env)"),
        ("--env Pendulum-v1 --num-envs 0", "num_envs must be at least 1, .* (--num-envs)"),
        ("--env Pendulum-v1 --episodes 0", "episodes must be at least 1, .* (--episodes)"),
        ("--env Pendulum-v1 --out x.csv", "path must end in .hdf5, .h5 or .npz, got .* (--out)"),
        (
            "--env Pendulum-v1 --gif x.png",
            "expected a .gif file for the animation, got x.png. (--gif)",
        ),
    ],
)
def test_wrong_use_names_the_flags(args, message, capsys, tmp_path, monkeypatch):
    a_run(monkeypatch)
    monkeypatch.chdir(tmp_path)
    status, out, err = rollout(capsys, tmp_path, *args.split())
    assert (status, out) == (2, "")
    for part in message.split(" .* "):
        assert part in err
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run(capsys, tmp_path):
    status, out, err = rollout(capsys, tmp_path / "nothing", "--env", "Pendulum-v1")
    assert (status, out) == (2, "") and str(tmp_path / "nothing") in err
