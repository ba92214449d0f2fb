"""Moving pictures, from an environment that draws without a screen."""

import sys
from contextlib import closing

import numpy as np
import pytest

from flax_linattn.control import check_rendering, make_environments, save_animation
from tests.control import toys


class Still:
    def act(self, observations, rewards, begins):
        return np.zeros((len(begins), 2))


class Drawn(toys.Countdown):
    """Draws how many steps are left, brighter with each."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return np.full((480, 300, 3), 10 * self.left, np.uint8)


class Blind(Drawn):
    def render(self):
        raise RuntimeError("no display")


class Empty(Drawn):
    def render(self):
        return None


def agent(environments):
    return Still()


def test_every_second_step_of_fifty_a_second(tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "toy.gif"
    with toys.registered("Drawn-v0", Drawn):
        episodes = save_animation(agent, "Drawn-v0", path, seed=3)
    steps = int(episodes.lengths[0])
    with image.open(path) as picture:
        assert picture.n_frames == (steps + 1) // 2
        assert picture.size == (150, 240)
        assert picture.info["duration"] == 40


def test_a_machine_that_cannot_draw_says_what_to_set(tmp_path):
    with (
        toys.registered("Blind-v0", Blind),
        pytest.raises(ValueError, match=r"RuntimeError: no display.* MUJOCO_GL=egl or MUJOCO_GL="),
    ):
        save_animation(agent, "Blind-v0", tmp_path / "toy.gif")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Blind, r"RuntimeError: no display.* MUJOCO_GL=egl"),
        (Empty, "cannot be rendered"),
        (toys.Countdown, "Kind-v0 cannot render images: .*takes no arguments"),
    ],
)
def test_one_picture_tells_whether_it_can_be_drawn(kind, message):
    pytest.importorskip("imageio")
    with toys.registered("Kind-v0", kind), pytest.raises(ValueError, match=message):
        check_rendering("Kind-v0")
    with toys.registered("Drawn-v0", Drawn):
        check_rendering("Drawn-v0")


def test_without_imageio(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio.v2", None)
    with pytest.raises(ValueError, match=r'need imageio: pip install "flax-linattn\[rl\]"'):
        save_animation(agent, "Pendulum-v1", tmp_path / "toy.gif")
    with pytest.raises(ValueError, match="need imageio"):
        check_rendering("Pendulum-v1")


def test_runners_are_looked_at_by_the_camera_that_goes_with_them():
    mujoco = pytest.importorskip("mujoco")
    with closing(make_environments("Hopper-v5", 1, render=True)) as environments:
        env = environments.envs[0].unwrapped
        camera = mujoco.mj_name2id(env.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
        assert env.mujoco_renderer.camera_id == camera >= 0
