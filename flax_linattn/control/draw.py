"""An episode as a moving picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flax_linattn.control.agent import Agent
from flax_linattn.control.environments import Environments, make_environments
from flax_linattn.control.play import play
from flax_linattn.data.episodes import Episodes
from flax_linattn.storage import write_whole

FRAMES_PER_SECOND = 25
"""At most: a GIF of 125 frames a second takes much room, and few programs show it as fast."""
SIDE = 240
"""Pixels, at most, of the longer side."""


def draw(
    make_agent: Callable[[Environments], Agent],
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
        path: The file; one that is there is replaced.
        observation_dim: As in ``make_environments``.
        seed: Of the episode.
        allow_import: As in ``make_environments``.

    Returns:
        The episode that was drawn.

    Raises:
        ValueError: imageio is missing, or this machine cannot draw; says what is missing.

    Example:
        >>> draw(lambda environments: SwingUp(), "Pendulum-v1", "swing.gif")  # doctest: +SKIP
    """
    imageio = _import_imageio()
    with make_environments(
        env_id, 1, observation_dim=observation_dim, render=True, allow_import=allow_import
    ) as environments:
        every = math.ceil(environments.frames_per_second / FRAMES_PER_SECOND)
        milliseconds = 1000 * every / environments.frames_per_second
        with write_whole(path) as file:
            writer: Any = imageio.get_writer(file, format="GIF", duration=milliseconds, loop=0)

            def on_step(steps: int, episodes: int) -> None:
                if steps % every == 1 % every:
                    picture = environments.render()
                    smaller = math.ceil(max(picture.shape[:2]) / SIDE)
                    writer.append_data(picture[::smaller, ::smaller])

            with writer:
                return play(make_agent(environments), environments, [seed], on_step=on_step)


def check_drawing(
    env_id: str, *, observation_dim: int | None = None, allow_import: bool = False
) -> None:
    """Draws one picture: what is missing is to be known before hours of play.

    Args:
        env_id: Of the environment.
        observation_dim: As in ``make_environments``.
        allow_import: As in ``make_environments``.

    Raises:
        ValueError: imageio is missing, or this machine cannot draw; says what is missing.

    Example:
        >>> check_drawing("Pendulum-v1")  # doctest: +SKIP
    """
    _import_imageio()
    with make_environments(
        env_id, 1, observation_dim=observation_dim, render=True, allow_import=allow_import
    ) as environments:
        environments.reset([0], [0])
        environments.render()


def _import_imageio() -> Any:
    try:
        import imageio.v2 as imageio
    except ImportError as error:
        raise ValueError('drawing takes imageio: pip install "flax-linattn[rl]"') from error
    return imageio
