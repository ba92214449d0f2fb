"""Reader of episodes in the folders of the Minari library."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import itemize, quote
from flax_linattn.data.episodes.episodes import (
    MAX_DISCRETE_ACTIONS,
    Episodes,
    environment_name,
    refuse_images,
    to_actions,
    to_float32,
)
from flax_linattn.data.episodes.hdf5_file import Hdf5File
from flax_linattn.data.episodes.statistics import about_choices, about_cut_short, about_left_out
from flax_linattn.data.errors import DataFormatError, printed

MAIN = "main_data.hdf5"
"""Name of the file that holds the episodes."""
EPISODE = re.compile(r"episode_(\d{1,12})")
"""Pattern of the group name of an episode."""

_KEYS = ("observations", "actions", "rewards", "terminations", "truncations")
_LONGEST_METADATA = 2**24
"""Maximum size in bytes of the metadata file."""


def read_minari(path: str | Path, *, keep_unfinished: bool = False) -> Episodes:
    """Reads a Minari data set, with episodes in the order of their numbers.

    ``data/main_data.hdf5`` has a group for each episode, with ``observations`` [T + 1, S],
    ``actions`` ([T, A], or integers [T] if discrete), ``rewards`` [T], ``terminations`` [T] and
    ``truncations`` [T]. The last observation, after the last action, is excluded.
    ``data/metadata.json`` has
    the environment and the number of discrete actions.

    Source: O. G. Younis et al., "Minari: a dataset API for offline reinforcement learning", 2024.

    Args:
        path: The folder of the data set, its folder ``data``, or ``main_data.hdf5`` in it.
        keep_unfinished: Whether to include episodes that neither terminate nor are truncated, as
            truncated episodes. Their returns are unknown, so they are excluded by default.

    Raises:
        FileNotFoundError: If the folder or file does not exist.
        ValueError: If h5py is not installed.
        DataFormatError: If ``path`` is not a Minari data set or is damaged, observations consist of
            several arrays, or the actions of a step are several integers.

    Example:
        >>> import tempfile, h5py
        >>> folder = Path(tempfile.mkdtemp())
        >>> with h5py.File(folder / "main_data.hdf5", "w") as file:
        ...     one = file.create_group("episode_0")
        ...     one["observations"] = np.zeros((3, 2))
        ...     one["actions"] = np.zeros((2, 1))
        ...     one["rewards"] = np.ones(2)
        ...     one["terminations"] = np.array([False, True])
        ...     one["truncations"] = np.array([False, False])
        >>> episodes = read_minari(folder)
        >>> episodes.observations.shape, episodes.returns.tolist(), episodes.terminated.tolist()
        ((2, 2), [2.0], [True])
    """
    main = _main_file(Path(path))
    with Hdf5File(main) as file:
        matches = map(EPISODE.fullmatch, file.names())
        groups = {int(match[1]): match[0] for match in matches if match}
        if not groups:
            raise DataFormatError(
                f"{main}: expected groups episode_0, episode_1, ..., got "
                f"{printed(file.names())}; check that this is a Minari data set"
            )
        episodes = [_episode(file, groups[number]) for number in sorted(groups)]
    parts = [part for part in episodes if keep_unfinished or part.terminated is not None]
    if not parts:
        raise DataFormatError(
            f"{main}: expected an episode that is terminated or truncated, got none of "
            f"{len(groups)}; pass keep_unfinished=True to use them",
            "keep_unfinished",
        )
    env_id, num_actions = _metadata(main.with_name("metadata.json"))
    parts = [_finite(main, part, num_actions) for part in parts]
    first = parts[0]
    for part in parts:
        for key in ("observations", "actions"):
            mine, its = (_width(getattr(own, key)) for own in (first, part))
            if mine != its:
                raise DataFormatError(
                    f"{main}:{part.group}/{key}: expected {mine}, as in {first.group}, got "
                    f"{its}; the episodes come from different environments: split the data "
                    "set"
                )
    left_out, where = len(episodes) - len(parts), "that neither terminated nor was truncated"
    lengths = np.array([len(part.rewards) for part in parts])
    terminated = np.array([bool(part.terminated) for part in parts])
    actions = np.concatenate([part.actions for part in parts])
    return Episodes(
        str(path),
        np.concatenate([part.observations for part in parts]),
        actions,
        np.concatenate([part.rewards for part in parts]),
        np.concatenate([[0], np.cumsum(lengths)]),
        terminated,
        env_id,
        (
            *about_left_out(left_out, "episode", where),
            *about_cut_short(lengths, terminated),
            *about_choices(actions),
        ),
        num_actions,
    )


class _Part(NamedTuple):
    """An episode as read; ``terminated`` is None if it has no end."""

    group: str
    observations: NDArray
    actions: NDArray
    rewards: NDArray
    terminated: bool | None


def _main_file(path: Path) -> Path:
    """Returns the file that holds the episodes."""
    if not path.is_dir():
        return path
    for file in (path / "data" / MAIN, path / MAIN):
        if file.is_file():
            return file
    raise FileNotFoundError(
        f"expected a Minari data set with data/{MAIN} in the folder {path}, found none; check the "
        "path, or pass an HDF5 file (Minari's Arrow format is not supported)"
    )


def _episode(file: Hdf5File, group: str) -> _Part:
    """Reads a stored episode, without its last observation."""
    names = file.names(group)
    if missing := [key for key in _KEYS if key not in names]:
        raise DataFormatError(
            f"{file.place(group)}: expected {itemize(_KEYS)}, got {printed(names)} "
            f"without {itemize(missing)}; fetch the data set again"
        )
    arrays = {key: file.read(f"{group}/{key}") for key in _KEYS}
    refuse_images(f"{file.place(group)}/observations", arrays["observations"], "[T + 1, S]")
    rewards = arrays["rewards"]
    steps = len(rewards) if rewards.ndim == 1 else 0
    expected = dict.fromkeys(_KEYS, steps) | {"observations": steps + 1}
    discrete = arrays["actions"].dtype.kind in "biu"  # one integer per step; see ``to_actions``
    for key, array in arrays.items():
        axes = 2 if key in ("observations", "actions") else 1
        axes = array.ndim if key == "actions" and discrete else axes
        if not steps or array.ndim != axes or len(array) != expected[key]:
            form = f"[{expected[key] or 'T'}, numbers]" if axes == 2 else f"[{steps or 'T'}]"
            raise DataFormatError(
                f"{file.place(group)}/{key}: expected shape {form} with rewards "
                f"{list(rewards.shape)}, got {list(array.shape)}; fetch the data set again"
            )
    ends = {key: _end(file, group, key, arrays[key]) for key in ("terminations", "truncations")}
    ended = ends["terminations"] or (False if ends["truncations"] else None)
    return _Part(group, arrays["observations"][:-1], arrays["actions"], rewards, ended)


def _width(array: NDArray) -> str:
    """Describes the columns of an array in messages."""
    return "integers" if array.dtype.kind == "i" else f"{array.shape[1]} numbers"


def _finite(path: Path, part: _Part, num_actions: int | None) -> _Part:
    """Converts the episode to float32 and int32; errors name the rows of its group."""
    place = f"{path}:{part.group}"
    return part._replace(
        observations=to_float32(f"{place}/observations", part.observations, 2),
        actions=to_actions(f"{place}/actions", part.actions, num_actions),
        rewards=to_float32(f"{place}/rewards", part.rewards, 1),
    )


def _end(file: Hdf5File, group: str, key: str, flags: NDArray) -> bool:
    """Returns whether the last step is flagged; earlier steps must not be flagged."""
    if flags.dtype.kind not in "biu":
        raise DataFormatError(
            f"{file.place(group)}/{key}: expected True or False, got {flags.dtype}; fetch the data "
            "set again"
        )
    places = np.flatnonzero(flags.view(np.uint8) if flags.dtype == np.bool_ else flags)
    if places.size and places[0] != len(flags) - 1:
        raise DataFormatError(
            f"{file.place(group)}/{key}[{places[0]}]: expected True only at the last "
            f"step of an episode, but {len(flags) - 1 - places[0]} more steps follow; "
            "fetch the data set again"
        )
    return bool(places.size)


def _metadata(path: Path) -> tuple[str | None, int | None]:
    """Returns the environment and the number of discrete actions in the metadata, if any."""
    if not path.is_file():
        return None, None
    if path.stat().st_size > _LONGEST_METADATA:
        raise DataFormatError(
            f"{path}:1: expected at most {_LONGEST_METADATA:,} bytes of metadata, got "
            f"{path.stat().st_size:,}; check the file"
        )
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        spec, space = (
            json.loads(metadata[key]) if metadata.get(key) is not None else {}
            for key in ("env_spec", "action_space")
        )
        env_id, kind = spec.get("id"), space.get("type")
        number, start = space.get("n"), space.get("start", 0)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise DataFormatError(
            f"{path}:{getattr(error, 'lineno', 1)}: expected JSON with a string env_spec, JSON "
            "with the id of the environment, and a string action_space, got something else "
            f"({quote(error, 100)}); fetch the data set again"
        ) from None
    if kind != "Discrete":
        return environment_name(env_id), None
    if not isinstance(number, int) or not 1 <= number <= MAX_DISCRETE_ACTIONS or start != 0:
        raise DataFormatError(
            f"{path}:1: expected an action space Discrete(n) with n from 1 to "
            f"{MAX_DISCRETE_ACTIONS:,} and actions from 0, got n = {quote(number)} and actions "
            f"from {quote(start)}; save the data set with actions from 0 to n - 1"
        )
    return environment_name(env_id), number
