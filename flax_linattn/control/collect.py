"""Collecting a data set of episodes: in parts on the disk, so that a stop costs little."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flax_linattn.checks import OptionError, at_least, shown
from flax_linattn.control.agent import Agent
from flax_linattn.control.environments import Environments
from flax_linattn.control.play import play
from flax_linattn.data.episodes import Episodes, join_episodes, load_episodes, write_episodes
from flax_linattn.data.episodes.hdf5_file import import_h5py
from flax_linattn.data.files import DataFormatError
from flax_linattn.storage import clear_unfinished, held, write_text

_HDF5 = (".hdf5", ".h5")
ROUNDS = 2
"""Episodes of a part, for each environment: what a stop loses at most."""
_OPTIONS = "options.json"
_FINISHED = "finished"
"""Among the options: the checksum of all episodes, once all are played."""
_LOCK = "lock"


class StoppedError(RuntimeError):
    """Collecting was asked to stop; what is whole is on the disk."""


def collect(
    agent: Agent,
    environments: Environments,
    num_steps: int | None,
    path: str | Path,
    *,
    num_episodes: int | None = None,
    seed: int = 0,
    about: Mapping[str, str] | None = None,
    progress: bool = True,
    stop: Callable[[], bool] | None = None,
) -> Episodes:
    """Plays whole episodes until there are enough steps, and writes them to a file.

    Parts go to a folder beside it, ``<path>.parts``, each written whole. After a stop or a kill the
    same call goes on from there, and the file is the same to the bit as without. At the end the
    parts are joined and removed; after a kill in between, the same call removes the rest.

    Args:
        agent: What plays.
        environments: Where.
        num_steps: As many at least; the last episode is played to its end. None: by episodes.
        path: A file ".hdf5" or ".h5" (takes h5py), or ".npz", which must not exist.
        num_episodes: As many exactly, instead of ``num_steps``.
        seed: Of the first episode; the next ones have the next numbers.
        about: What made the agent, such as its file and checksum: it is written to the file, and
            has to be the same when the call is made again. Texts, by names other than those that
            are written anyway: environment, env_id, environments, observation_dim, seed, versions.
        progress: Whether a bar on stderr shows the steps, on a terminal.
        stop: Asked after each step whether to stop, as a handler of a signal may want.

    Returns:
        The episodes, in the order of their seeds; their name is that of the file.

    Raises:
        OptionError: The file exists, or has another suffix; the parts there are of other options;
            ``about`` cannot be written.
        HeldError: Another process collects to this file.
        StoppedError: ``stop`` said so; says how much is kept.

    Example:
        >>> import tempfile
        >>> from flax_linattn.control import SwingUp, make_environments
        >>> path = Path(tempfile.mkdtemp(), "swings.npz")
        >>> with make_environments("Pendulum-v1", 2) as environments:
        ...     episodes = collect(SwingUp(), environments, 500, path, progress=False)
        >>> episodes.num_steps, [file.name for file in path.parent.iterdir()]
        (600, ['swings.npz'])
    """
    path = Path(path)
    _check(num_steps, num_episodes, path)
    at_least(0, seed=seed)
    parts = path.with_name(f"{path.name}.parts")
    options = {
        "environment": environments.env_id,
        "environments": environments.num_envs,
        "observation_dim": environments.observation_dim,
        "seed": seed,
        "versions": _versions(),
    }
    _check_about(about or {}, options, path.suffix)
    options |= about or {}
    _check_new(path, parts)
    with held(parts / _LOCK, str(path)):
        _check_new(path, parts)  # another process may just have ended
        finished = _keep_options(parts, options)
        clear_unfinished(parts)
        found = _Found(num_steps, num_episodes)
        if path.exists():
            episodes = _finished(path, finished, found)
        else:
            _play_parts(agent, environments, seed, parts, found, progress, stop)
            episodes = dataclasses.replace(found.episodes(), name=str(path))
            # Before the file: a file without this word is not of this call, and stays.
            _write_options(parts, {**options, _FINISHED: episodes.checksum()})
            write_episodes(path, episodes, {name: str(value) for name, value in options.items()})
        _remove_parts(parts)
    with contextlib.suppress(OSError):  # another process has come to wait there
        (parts / _LOCK).unlink()
        parts.rmdir()
    return episodes


class _Found:
    """The parts so far, and whether they are enough."""

    def __init__(self, num_steps: int | None, num_episodes: int | None) -> None:
        self.num_steps, self.num_episodes = num_steps, num_episodes
        self.parts: list[Episodes] = []

    def add(self, part: Episodes) -> None:
        self.parts.append(part)

    @property
    def steps(self) -> int:
        return sum(part.num_steps for part in self.parts)

    @property
    def count(self) -> int:
        return sum(part.num_episodes for part in self.parts)

    def enough(self) -> bool:
        if self.num_episodes is not None:
            return self.count >= self.num_episodes
        return self.steps >= (self.num_steps or 0)

    def next_size(self, size: int) -> int:
        """Episodes of the next part, ``size`` at most."""
        return size if self.num_episodes is None else min(size, self.num_episodes - self.count)

    def wanted(self, episodes: Episodes) -> int:
        """How many of these are asked for; more than there are, where these are too few."""
        if self.num_episodes is not None:
            return self.num_episodes
        return 1 + int(np.searchsorted(episodes.starts[1:], self.num_steps or 0))

    def episodes(self) -> Episodes:
        """As many as were asked for."""
        joined = join_episodes(self.parts)
        return joined.take(range(self.wanted(joined)))


class _Bar:
    """Shows the steps, or the episodes, and the steps a second."""

    def __init__(self, shown: bool, found: _Found) -> None:
        console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        self._by_steps = found.num_episodes is None
        self._progress = Progress(
            TextColumn("steps" if self._by_steps else "episodes"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not shown or not console.is_terminal,
            transient=True,
        )
        total = found.num_steps if self._by_steps else found.num_episodes
        done = found.steps if self._by_steps else found.count
        self._task = self._progress.add_task("", total=total, completed=done, speed="")
        self._before = found.steps

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, steps: int, episodes: int) -> None:
        """So many in all."""
        seconds = self._progress.tasks[self._task].elapsed or 0
        speed = f"{(steps - self._before) / seconds:,.0f} steps/s" if seconds > 0.5 else ""
        self._progress.update(
            self._task, completed=steps if self._by_steps else episodes, speed=speed
        )


def _play_parts(
    agent: Agent,
    environments: Environments,
    seed: int,
    parts: Path,
    found: _Found,
    progress: bool,
    stop: Callable[[], bool] | None,
) -> None:
    """Reads the parts that are there, and plays those that are missing."""
    for part in _stored(parts):
        found.add(part)
    with _Bar(progress, found) as bar:
        while not found.enough():
            first = seed + found.count
            seeds = range(first, first + found.next_size(ROUNDS * environments.num_envs))
            part = _play(agent, environments, seeds, found, bar, stop)
            write_episodes(parts / f"{len(found.parts):06d}.npz", part)
            found.add(part)


def _play(
    agent: Agent,
    environments: Environments,
    seeds: range,
    found: _Found,
    bar: _Bar,
    stop: Callable[[], bool] | None,
) -> Episodes:
    steps_before, before = found.steps, found.count

    def on_step(steps: int, episodes: int) -> None:
        bar.show(steps_before + steps, before + episodes)
        if stop is not None and stop():
            raise StoppedError(
                f"stopped with {before} episodes of {steps_before:,} steps on the disk; the same "
                "call goes on from there"
            )

    return play(agent, environments, seeds, on_step=on_step)


def _check(num_steps: int | None, num_episodes: int | None, path: Path) -> None:
    if (num_steps is None) == (num_episodes is None):
        raise OptionError(
            "give the number of steps or that of episodes, one of them.",
            "num_steps",
            "num_episodes",
        )
    at_least(1, num_steps=num_steps, num_episodes=num_episodes)
    if path.suffix not in (*_HDF5, ".npz"):
        raise OptionError(
            f"episodes are written to a file {', '.join(_HDF5)} or .npz, got {path}.", "path"
        )
    if path.suffix in _HDF5:
        import_h5py()  # before hours of play, not after them


def _check_about(about: Mapping[str, str], options: Mapping[str, object], suffix: str) -> None:
    """Refuses now what could not be written after hours of play."""
    if taken := sorted({*options, _FINISHED} & {*about}):
        raise OptionError(
            f"about must have names other than {', '.join(taken)}, which are written anyway.",
            "about",
        )
    numbers = np.zeros((1, 1), np.float32)
    one = Episodes("a trial", numbers, numbers, numbers[0], np.array([0, 1]), np.array([True]))
    with tempfile.TemporaryDirectory() as folder:
        write_episodes(Path(folder, f"trial{suffix}"), one, about)


def _check_new(path: Path, parts: Path) -> None:
    if path.exists() and not (parts / _OPTIONS).exists():
        raise _exists(path)


def _exists(path: Path) -> OptionError:
    return OptionError(f"{path} exists already; give another file, or remove it.", "path")


def _finished(path: Path, checksum: str | None, asked: _Found) -> Episodes:
    """The file of this very call, of which nothing but the clean-up is missing.

    Raises:
        OptionError: It is another file, or holds another number of episodes.
    """
    if checksum is None:
        raise _exists(path)
    try:
        episodes = load_episodes(path)
    except DataFormatError:  # another one
        raise _exists(path) from None
    if episodes.checksum() != checksum or asked.wanted(episodes) != episodes.num_episodes:
        raise _exists(path)
    return episodes


def _remove_parts(parts: Path) -> None:
    """The last one first, so that what a kill leaves can be gone on from; the options at the end.

    They say that parts are left.
    """
    for file in sorted(parts.iterdir(), reverse=True):
        if file.name not in (_LOCK, _OPTIONS):
            file.unlink()
    (parts / _OPTIONS).unlink()


def _write_options(parts: Path, options: Mapping[str, object]) -> None:
    write_text(parts / _OPTIONS, json.dumps(options, indent=1) + "\n")


def _keep_options(parts: Path, options: Mapping[str, object]) -> str | None:
    """Writes them down, or compares them with those of the parts that are there.

    Returns:
        The checksum of all episodes, where all have been played.
    """
    file = parts / _OPTIONS
    if not file.exists():
        _write_options(parts, options)
        return None
    try:
        kept = json.loads(file.read_text())
    except ValueError:
        kept = None
    if not isinstance(kept, dict):
        raise ValueError(f"{file}: expected the options of the parts, and it is damaged; {_AGAIN}")
    finished = kept.pop(_FINISHED, None)
    for name in sorted({*kept, *options}):
        if kept.get(name) != options.get(name):
            raise OptionError(
                f"{parts} was begun with {name} {shown(kept.get(name), 100)}, and now it is "
                f"{shown(options.get(name), 100)}; give the same, or another file, or remove it."
            )
    return None if finished is None else str(finished)


def _stored(parts: Path) -> Iterator[Episodes]:
    number = 0
    while (file := parts / f"{number:06d}.npz").exists():
        yield load_episodes(file)
        number += 1


def _versions() -> str:
    """Of what decides the numbers."""
    names = ("flax-linattn", "gymnasium", "jax", "jaxlib", "mujoco", "numpy")
    found = []
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


_AGAIN = "remove that folder to begin anew."
