"""Animations of episodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import import_extra
from flax_linattn.control.environments import make_environments
from flax_linattn.control.play import Agent, play
from flax_linattn.data.episodes import Episodes
from flax_linattn.storage import atomic_write

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

MISSING = 'animations need imageio: pip install "flax-linattn[rl]"'
MAX_FRAMES_PER_SECOND = 25
"""Few programs play a GIF faster, and more frames make large files."""
MAX_SIDE = 240
"""Maximum pixels of the longer side."""


def save_animation(
    make_agent: Callable[[VectorEnv], Agent],
    env_id: str,
    path: str | Path,
    *,
    seed: int = 0,
    **options: Any,
) -> Episodes:
    """Plays an episode and saves it as an animated GIF.

    Args:
        make_agent: Makes the agent for an environment of one row.
        env_id: Name of the environment.
        path: The file; an existing file is replaced.
        seed: Seed of the episode.
        **options: Further arguments of ``make_environments``.

    Returns:
        The episode.

    Raises:
        ValueError: If Imageio is missing, or this machine cannot render the environment.

    Example:
        >>> save_animation(lambda environments: agent, "Pendulum-v1", "swing.gif")  # doctest: +SKIP
    """
    imageio = import_extra("imageio.v2", MISSING)
    with closing(make_environments(env_id, 1, render=True, **options)) as environments:
        frames_per_second = int(environments.metadata.get("render_fps", 30))
        every = math.ceil(frames_per_second / MAX_FRAMES_PER_SECOND)
        milliseconds = 1000 * every / frames_per_second
        with atomic_write(path) as file:
            writer: Any = imageio.get_writer(file, format="GIF", duration=milliseconds, loop=0)

            def on_step(steps: int, episodes: int) -> None:
                if steps % every == 1 % every:
                    image = _render(environments, env_id)
                    stride = math.ceil(max(image.shape[:2]) / MAX_SIDE)
                    writer.append_data(image[::stride, ::stride])

            with writer:
                return play(make_agent(environments), environments, [seed], on_step=on_step)


def check_rendering(env_id: str, **options: Any) -> None:
    """Renders one image, to find missing software before hours of play.

    Args:
        env_id: Name of the environment.
        **options: Further arguments of ``make_environments``.

    Raises:
        ValueError: If Imageio is missing, or this machine cannot render the environment.

    Example:
        >>> check_rendering("Pendulum-v1")  # doctest: +SKIP
    """
    import_extra("imageio.v2", MISSING)
    with closing(make_environments(env_id, 1, render=True, **options)) as environments:
        environments.reset(seed=0)
        _render(environments, env_id)


def _render(environments: VectorEnv, env_id: str) -> NDArray[np.uint8]:
    """Renders the first environment, uint8 `[height, width, 3]`."""
    try:
        (image,) = environments.render() or ()
        return np.asarray(image, np.uint8)
    except Exception as error:  # errors of MuJoCo, OpenGL or pygame
        if type(error).__name__ == "DependencyNotInstalled":
            raise ValueError(f"{env_id} cannot be rendered: {error}.") from error
        raise ValueError(
            f"{env_id} cannot be rendered ({type(error).__name__}: {error}). Without a screen, "
            "MuJoCo needs EGL (a graphics driver, or the packages libegl1 and libgl1) or OSMesa "
            "(libosmesa6); set MUJOCO_GL=egl or MUJOCO_GL=osmesa."
        ) from error
