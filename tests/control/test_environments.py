"""Environments against gymnasium's own, and against the equations of the pendulum."""

import subprocess
import sys
import warnings
from contextlib import closing

import gymnasium
import numpy as np
import pytest

from flax_linattn.checks import OptionError
from flax_linattn.control import make_environments, max_episode_steps
from tests.control import toys


def made(*args, **options):
    """Environments, which the context closes."""
    return closing(make_environments(*args, **options))


def test_the_pendulum_moves_by_its_equations():
    """Float64: th'' = 3 g / (2 l) sin(th) + 3 u / (m l^2), g = 10, m = l = 1, dt = 0.05."""
    actions = np.random.default_rng(0).uniform(-2, 2, (200, 1, 1)).astype(np.float32)
    with made("Pendulum-v1", 1) as environments:
        cosine, sine, velocity = environments.reset(seed=[3])[0][0].astype(np.float64)
        angle = np.arctan2(sine, cosine)
        for step, action in enumerate(actions):
            torque = float(action[0, 0])
            wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
            reward = -(wrapped**2 + 0.1 * velocity**2 + 0.001 * torque**2)
            velocity = np.clip(velocity + (15 * np.sin(angle) + 3 * torque) * 0.05, -8, 8)
            angle += velocity * 0.05
            shown, rewards, terminated, truncated, _ = environments.step(action)
            expected = [np.cos(angle), np.sin(angle), velocity]
            np.testing.assert_allclose(shown[0], expected, atol=2e-4)
            np.testing.assert_allclose(rewards[0], reward, atol=2e-3)
            assert (terminated[0], truncated[0]) == (False, step == 199)


def test_an_environment_without_a_seed_rests():
    with made(toys.COUNTDOWN, 3) as environments:
        first, _ = environments.reset(seed=[6, None, 5])
        assert first.dtype == np.float32 and environments.spec.id == toys.COUNTDOWN
        assert not first[1].any()
        actions = np.full((3, 2), 0.25, np.float32)
        shown, rewards, terminated, truncated, infos = environments.step(actions)
        assert shown.dtype == np.float32 and infos == {}
        assert shown[0, 0] == first[0, 0] - 1 and rewards[0] != 0
        for _ in range(2 * toys.LIMIT):  # it has no end
            ended = terminated | truncated
            if ended.any():
                environments.reset(seed=[1, None, 2], options={"reset_mask": ended})
            shown, rewards, terminated, truncated, _ = environments.step(actions)
            assert not (shown[1].any() or rewards[1] or terminated[1] or truncated[1])
        shown, _ = environments.reset(seed=[6] * 3, options={"reset_mask": np.ones(3, bool)})
        np.testing.assert_array_equal(shown, np.tile(first[0], (3, 1)))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (toys.Pairs, r"vectors \(a Box \[A\]\), or one choice .* got MultiDiscrete\(\[3 2\]\)"),
        (toys.Shifted, r"one choice from 0 \(Discrete\), got Discrete\(3, start=-1\)"),
        (toys.Pictures, r"must be vectors \(a Box \[S\]\), got"),
    ],
)
def test_environments_of_another_kind(kind, message):
    with toys.registered("Other-v0", kind), pytest.raises(OptionError, match=message):
        make_environments("Other-v0", 1)


class Closing(toys.Countdown):
    """Counts those that are open; the third cannot be made, where ``breaks`` says so."""

    open = 0
    breaks = False

    def __init__(self):
        if Closing.breaks and Closing.open == 2:
            raise gymnasium.error.Error("no third one")
        Closing.open += 1

    def close(self):
        Closing.open -= 1


@pytest.mark.parametrize(
    ("limit", "breaks", "options", "message"),
    [
        (5, False, {"observation_dim": 3}, "expected observations of 3 numbers, got 2"),
        (None, False, {}, "has no maximum number of steps; register it with max_episode_steps"),
        (5, True, {}, "gymnasium cannot make Closing-v0: no third one"),
    ],
)
def test_those_that_were_made_are_closed(limit, breaks, options, message, monkeypatch):
    monkeypatch.setattr(Closing, "open", 0)
    monkeypatch.setattr(Closing, "breaks", breaks)
    with (
        toys.registered("Closing-v0", Closing, limit),
        pytest.raises(OptionError, match=message),
    ):
        make_environments("Closing-v0", 3, **options)
    assert Closing.open == 0


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A module that registers an environment, and nothing has imported yet."""
    code = (
        "import gymnasium\n"
        "from tests.control import toys\n"
        "gymnasium.register('Own-v0', entry_point=toys.Countdown, max_episode_steps=7)\n"
    )
    (tmp_path / "own_robots.py").write_text(code)
    (tmp_path / "broken_robots.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_robots"
    gymnasium.registry.pop("Own-v0", None)
    sys.modules.pop("own_robots", None)


def test_a_package_is_imported_where_the_user_names_it(package):
    name = f"{package}:Own-v0"
    with pytest.raises(OptionError, match=r"'own_robots:Own-v0' needs .* import the package first"):
        make_environments(name, 1)
    assert package not in sys.modules
    with made(name, 2, allow_import=True) as environments:
        assert (environments.spec.id, max_episode_steps(environments)) == (name, 7)
    with made(name, 1) as environments:  # it is imported now
        assert max_episode_steps(environments) == 7


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_robots:Own-v1", "gymnasium knows no environment 'Own-v1'; did you mean Own-v0"),
        ("no_robots:Own-v0", r"'no_robots' of Own-v0 cannot .* No module named"),
        ("broken_robots:Own-v0", r"cannot be imported \(ZeroDivisionError: division by zero\)"),
        (":Own-v0", "the package '' of Own-v0 cannot be imported"),
    ],
)
def test_packages_that_do_not_do(name, message, package):
    with pytest.raises(OptionError, match=message):
        make_environments(name, 1, allow_import=True)


def test_an_unknown_name_has_near_ones():
    with pytest.raises(OptionError, match="no environment 'pendulum'; did you mean Pendulum-v1"):
        make_environments("pendulum", 1)


def test_ant_as_d4rl_has_it():
    pytest.importorskip("mujoco")
    own = gymnasium.make("Ant-v5", include_cfrc_ext_in_observation=False)
    expected, _ = own.reset(seed=4)
    own.close()
    with made("Ant-v5", 1, observation_dim=111) as environments:
        seen = environments.reset(seed=[4])[0][0]
    np.testing.assert_array_equal(seen[:27], expected.astype(np.float32))
    assert not seen[27:].any() and len(seen) == 111
    with made("Ant-v5", 1, observation_dim=27) as environments:
        np.testing.assert_array_equal(environments.reset(seed=[4])[0][0], seen[:27])
    with pytest.raises(OptionError, match="expected observations of 112 numbers, got 105"):
        make_environments("Ant-v5", 1, observation_dim=112)


def test_mujoco_says_nothing_of_gymnasiums_models(capfd, tmp_path, monkeypatch):
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    before = mujoco.get_mju_user_warning()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_environments("HalfCheetah-v5", 1).close()
    assert capfd.readouterr().err == "" and list(tmp_path.iterdir()) == []
    assert mujoco.get_mju_user_warning() is before


@pytest.mark.parametrize(
    ("missing", "env_id", "message"),
    [
        ("gymnasium", "Pendulum-v1", 'environments need gymnasium: pip install "flax-linattn[rl]"'),
        ("mujoco", "Ant-v5", 'Ant-v5 needs MuJoCo: pip install "flax-linattn[rl]"'),
    ],
)
def test_without_what_it_takes(missing, env_id, message):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from flax_linattn.control import make_environments\n"
        f"try: make_environments({env_id!r}, 1)\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (message, "")
