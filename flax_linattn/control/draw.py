"""An episode as a moving picture."""

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
from flax_linattn.storage import write_whole

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

MISSING = 'drawing takes imageio: pip install "flax-linattn[rl]"'
MAX_FRAMES_PER_SECOND = 25
"""A GIF of 125 frames a second takes much room, and few programs show it as fast."""
MAX_SIDE = 240
"""Pixels of the longer side."""


def draw(
    make_agent: Callable[[VectorEnv], Agent],
    env_id: str,
    path: str | Path,
    *,
    observation_dim: int | None = None,
    seed: int = 0,
    allow_import: bool = False,
) -> Episodes:
    """Plays an episode and draws it to a GIF file.

    Args:
        make_agent: Gives what plays in an environment, which is one row.
        env_id: Of the environment.
        path: The file; an existing one is replaced.
        observation_dim: As in ``make_environments``.
        seed: Of the episode.
        allow_import: As in ``make_environments``.

    Returns:
        The episode that was drawn.

    Raises:
        ValueError: imageio is missing, or this machine cannot draw; says what is missing.

    Example:
        >>> draw(lambda environments: agent, "Pendulum-v1", "swing.gif")  # doctest: +SKIP
    """
    imageio = import_extra("imageio.v2", MISSING)
    with _one_drawn(env_id, observation_dim, allow_import) as environments:
        frames_per_second = int(environments.metadata.get("render_fps", 30))
        every = math.ceil(frames_per_second / MAX_FRAMES_PER_SECOND)
        milliseconds = 1000 * every / frames_per_second
        with write_whole(path) as file:
            writer: Any = imageio.get_writer(file, format="GIF", duration=milliseconds, loop=0)

            def on_step(steps: int, episodes: int) -> None:
                if steps % every == 1 % every:
                    picture = _picture(environments, env_id)
                    smaller = math.ceil(max(picture.shape[:2]) / MAX_SIDE)
                    writer.append_data(picture[::smaller, ::smaller])

            with writer:
                return play(make_agent(environments), environments, [seed], on_step=on_step)


def check_drawing(
    env_id: str, *, observation_dim: int | None = None, allow_import: bool = False
) -> None:
    """Draws one picture, to find out what is missing before hours of play.

    Args:
        env_id: Of the environment.
        observation_dim: As in ``make_environments``.
        allow_import: As in ``make_environments``.

    Raises:
        ValueError: imageio is missing, or this machine cannot draw; says what is missing.

    Example:
        >>> check_drawing("Pendulum-v1")  # doctest: +SKIP
    """
    import_extra("imageio.v2", MISSING)
    with _one_drawn(env_id, observation_dim, allow_import) as environments:
        environments.reset(seed=0)
        _picture(environments, env_id)


def _one_drawn(env_id: str, observation_dim: int | None, allow_import: bool) -> closing[VectorEnv]:
    """One environment that draws, which is closed at the end of the context."""
    where: Any = {"observation_dim": observation_dim, "allow_import": allow_import}
    return closing(make_environments(env_id, 1, render=True, **where))


def _picture(environments: VectorEnv, env_id: str) -> NDArray[np.uint8]:
    """What the first environment shows now, uint8 `[height, width, 3]`."""
    try:
        (picture,) = environments.render() or ()
        return np.asarray(picture, np.uint8)
    except Exception as error:  # of MuJoCo, OpenGL or pygame: each has its own
        if type(error).__name__ == "DependencyNotInstalled":
            raise ValueError(f"{env_id} cannot be drawn here: {error}.") from error
        raise ValueError(
            f"{env_id} cannot be drawn here ({type(error).__name__}: {error}). Without a screen "
            "MuJoCo takes EGL (a graphics driver, or the packages libegl1 and libgl1) or OSMesa "
            "(libosmesa6): set MUJOCO_GL=egl or MUJOCO_GL=osmesa."
        ) from error
