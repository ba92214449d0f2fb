"""Reading and writing of episodes in D4RL's format: arrays of concatenated steps."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, itemize
from flax_linattn.data.episodes.episodes import MAX_DISCRETE_ACTIONS as MAX
from flax_linattn.data.episodes.episodes import Episodes, environment_name, refuse_images
from flax_linattn.data.episodes.hdf5_file import EXPANSION, Hdf5File, import_h5py
from flax_linattn.data.episodes.statistics import about_choices, about_cut_short, about_left_out
from flax_linattn.data.errors import DataFormatError, printed
from flax_linattn.data.files.arrays import read_arrays
from flax_linattn.data.files.text_files import check_is_file
from flax_linattn.storage import atomic_write

REQUIRED = ("observations", "actions", "rewards", "terminals")
KEYS = (*REQUIRED, "timeouts", "num_actions", "next_observations")


def read_d4rl(path: str | Path, *, keep_unfinished: bool = False) -> Episodes:
    """Reads the steps of an HDF5 or ``.npz`` file and finds its episodes.

    D4RL's keys: ``observations`` [N, S], ``actions`` [N, A], ``rewards`` [N], ``terminals`` [N] and
    ``timeouts`` [N], True at the last step of an episode that ended in a terminal state, or was
    truncated by a time limit. Discrete actions are integers [N] from 0; ``num_actions`` is their
    number, by default one more than the largest. Without ``timeouts``, an episode is truncated
    where ``next_observations`` is not the observation of the next row. ``env_id`` is an attribute
    of an HDF5 file, or a string in an ``.npz`` file, which is read without h5py. Other keys are
    ignored. Nothing is unpickled.

    Source: J. Fu et al., "D4RL: Datasets for deep data-driven reinforcement learning", 2020.

    Args:
        path: The HDF5 file.
        keep_unfinished: Whether the steps after the last end form a truncated episode. Their return
            is unknown, so they are excluded by default.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If h5py is not installed.
        DataFormatError: If the file has another format or is damaged; the message names the key and
            the row.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "toy.npz")
        >>> np.savez(path, observations=np.zeros((4, 2)), actions=np.zeros((4, 1)),
        ...          rewards=np.arange(4.0), terminals=np.array([0, 1, 0, 0]),
        ...          timeouts=np.array([0, 0, 1, 0]), env_id="Hopper-v5")
        >>> episodes = read_d4rl(path)
        >>> episodes.starts.tolist(), episodes.terminated.tolist(), episodes.returns.tolist()
        ([0, 2, 3], [True, False], [1.0, 2.0])
    """
    path = Path(path)
    check_is_file(path)
    with open(path, "rb") as binary:
        is_npz = binary.read(2) == b"PK"
    if is_npz:
        arrays = read_arrays(path, (*KEYS, "env_id"), EXPANSION)
        env_id = _text(arrays.pop("env_id", None))
        _check_keys(path, list(arrays))
        if "timeouts" in arrays:
            arrays.pop("next_observations", None)  # which add nothing
    else:
        with Hdf5File(path) as file:
            names = file.names()
            _check_keys(path, names)
            known = KEYS[:-1] if "timeouts" in names else KEYS
            arrays = {key: file.read(key) for key in known if key in names}
            env_id = environment_name(file.text("env_id"))
    return _to_episodes(path, arrays, env_id, keep_unfinished)


def _text(array: NDArray | None) -> str | None:
    if array is None or array.dtype.kind != "U" or array.size != 1:
        return None
    try:
        return environment_name(str(array.item()))
    except (ValueError, SystemError):  # no characters
        return None


def _check_keys(path: Path, names: list[str]) -> None:
    """Raises an error for a file that lacks a required array."""
    missing = [key for key in REQUIRED if key not in names]
    if missing:
        raise DataFormatError(
            f"{path}: expected arrays {itemize(REQUIRED)}, got {printed(names)}; add "
            f"{itemize(missing)}"
        )


def _to_episodes(
    path: Path, arrays: Mapping[str, NDArray], env_id: str | None, keep_unfinished: bool
) -> Episodes:
    """Makes episodes from the arrays of a file; they end at terminal states and time limits."""
    for key, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise DataFormatError(
                f"{path}:{key}: expected numbers, got {array.dtype}; save the array as float32"
            )
    refuse_images(f"{path}:observations", arrays["observations"])
    if arrays["observations"].ndim != 2 or not arrays["observations"].size:
        raise DataFormatError(
            f"{path}:observations: expected shape [N, S], one row per step, got "
            f"{list(arrays['observations'].shape)}; save the array in this shape"
        )
    steps = len(arrays["observations"])
    num_actions = _num_actions(path, arrays.get("num_actions"))
    rewards = _column(arrays["rewards"])
    terminals = _flags(path, "terminals", arrays["terminals"], steps)
    ends = terminals | _limits(path, arrays, terminals, steps)
    stops = np.flatnonzero(ends) + 1
    if keep_unfinished and not ends[-1]:
        stops = np.append(stops, steps)
    if not stops.size:
        raise DataFormatError(
            f"{path}: expected at least one episode end, got none in {steps:,} steps; "
            "save time limits as timeouts, or use all steps as one episode with "
            "keep_unfinished=True",
            "keep_unfinished",
        )
    for key, array in (("actions", arrays["actions"]), ("rewards", rewards)):
        if array.shape[:1] != (steps,):
            raise _differ(path, key, array, steps)
    used = int(stops[-1])
    notes = about_left_out(steps - used, "step", "behind the last end")
    if "timeouts" not in arrays and "next_observations" not in arrays:
        notes.append("no timeouts: only terminal states end episodes")
    notes += about_cut_short(np.diff(stops, prepend=0), terminals[stops - 1])
    notes += about_choices(arrays["actions"][:used])
    return Episodes(
        str(path),
        arrays["observations"][:used],
        arrays["actions"][:used],
        rewards[:used],
        np.concatenate([[0], stops]).astype(np.int64),
        terminals[stops - 1],
        env_id,
        tuple(notes),
        num_actions,
    )


def _num_actions(path: Path, array: NDArray | None) -> int | None:
    """Returns the number of discrete actions that a file states, if any."""
    if array is None:
        return None
    if array.dtype.kind not in "iu" or array.size != 1 or not 1 <= array.item() <= MAX:
        raise DataFormatError(
            f"{path}:num_actions: expected one integer from 1 to {MAX:,}, got {array.dtype} "
            f"{list(array.shape)}; correct it, or remove it"
        )
    return int(array.item())


def _limits(
    path: Path, arrays: Mapping[str, NDArray], terminals: NDArray[np.bool_], steps: int
) -> NDArray[np.bool_]:
    """Finds the steps at which a time limit ended an episode, bool [N]."""
    if "timeouts" in arrays:
        return _flags(path, "timeouts", arrays["timeouts"], steps)
    ends = np.zeros(steps, bool)
    if "next_observations" not in arrays:
        return ends
    after, before = arrays["next_observations"], arrays["observations"]
    if after.shape != before.shape:
        raise DataFormatError(
            f"{path}:next_observations: expected the shape of observations, "
            f"{list(before.shape)}, got {list(after.shape)}; save both arrays for the "
            "same steps"
        )
    ends[:-1] = (after[:-1] != before[1:]).any(1)
    if steps > 1 and (ends | terminals)[:-1].all() and not terminals[:-1].all():
        raise DataFormatError(
            f"{path}:next_observations: expected most rows to equal the observation of "
            "the next row, but none does; sort the steps by time, or save timeouts"
        )
    return ends


def _flags(path: Path, key: str, array: NDArray, steps: int) -> NDArray[np.bool_]:
    """Reads a boolean for each step: True and False, or 1 and 0."""
    values = _column(array)
    if values.shape != (steps,):
        raise _differ(path, key, values, steps)
    if values.dtype == np.bool_:
        return values.view(np.uint8) != 0  # a damaged file may hold bytes other than 0 and 1
    if values.dtype.kind not in "iuf":
        raise DataFormatError(
            f"{path}:{key}: expected Booleans, one per step, got {values.dtype}; save "
            "the array as bool"
        )
    if (wrong := np.flatnonzero((values != 0) & (values != 1))).size:
        raise DataFormatError(
            f"{path}:{key}[{wrong[0]}]: expected 0 or 1, got {values[wrong[0]]}; correct it"
        )
    return np.asarray(values == 1)


def _column(array: NDArray) -> NDArray:
    """Converts [N, 1], which some files have, to [N]."""
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _differ(path: Path, key: str, array: NDArray, steps: int) -> DataFormatError:
    return DataFormatError(
        f"{path}:{key}: expected one for each of {steps:,} observations, got "
        f"{list(array.shape)}; save all arrays for the same steps"
    )


def write_episodes(
    path: str | Path, episodes: Episodes, about: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Writes episodes to a file, from which ``load_episodes`` reads the same bits.

    The file has ``observations``, ``actions``, ``rewards``, ``terminals``, ``timeouts`` and, for
    discrete actions, ``num_actions``, compressed by gzip. An existing file is replaced when the new
    one is complete.

    Args:
        path: Output file: ``.hdf5`` or ``.h5``, with ``env_id`` and ``about`` as attributes; or
            ``.npz``, with ``env_id`` as a string and ``about`` as a JSON string.
        episodes: Episodes to write.
        about: Further metadata by name, such as the source of the episodes.

    Raises:
        OptionError: If ``path`` has another suffix, or ``about`` does not hold strings by names.
        ValueError: If h5py is needed and not installed.
        OSError: If the file cannot be written.

    Example:
        >>> import tempfile
        >>> from flax_linattn.data.episodes import load_episodes
        >>> one = Episodes("toy", np.zeros((2, 3)), np.zeros((2, 1)), np.ones(2), np.array([0, 2]),
        ...                np.array([True]), env_id="Hopper-v5")
        >>> path = Path(tempfile.mkdtemp(), "toy.npz")
        >>> write_episodes(path, one, {"policy": "at random"})
        >>> again = load_episodes(path)
        >>> again.checksum() == one.checksum(), again.env_id
        (True, 'Hopper-v5')
    """
    path = Path(path)
    check_episode_file(path)
    entries: dict[Any, Any] = dict(about)
    for key, value in entries.items():
        are_texts = isinstance(key, str) and isinstance(value, str)
        if not are_texts or key in ("", "env_id") or "\0" in key + value:
            raise OptionError(
                "about must map names other than env_id to strings without NUL, got "
                f"{key!r}: {value!r}.",
                "about",
            )
    ends = episodes.starts[1:] - 1
    terminals, timeouts = (np.zeros(episodes.num_steps, bool) for _ in range(2))
    terminals[ends] = episodes.terminated
    timeouts[ends] = ~episodes.terminated
    arrays: dict[str, Any] = {
        "observations": episodes.observations,
        "actions": episodes.actions,
        "rewards": episodes.rewards,
        "terminals": terminals,
        "timeouts": timeouts,
    }
    if episodes.num_actions is not None:
        arrays["num_actions"] = np.array([episodes.num_actions])
    texts = {} if episodes.env_id is None else {"env_id": episodes.env_id}
    content = io.BytesIO()
    if path.suffix == ".npz":
        if about:
            texts["about"] = json.dumps(dict(about))
        np.savez_compressed(content, **arrays | {name: np.array(x) for name, x in texts.items()})
    else:
        with import_h5py().File(content, "w") as file:
            for key, array in arrays.items():
                file.create_dataset(key, data=array, compression="gzip", chunks=True)
            file.attrs.update({**texts, **about})
    with atomic_write(path) as file:
        file.write(content.getvalue())


def check_episode_file(path: Path) -> None:
    """Checks that episodes can be written to a file, before hours of play.

    Raises:
        OptionError: If ``path`` has another suffix.
        ValueError: If h5py is needed and not installed.
    """
    if path.suffix not in (".hdf5", ".h5", ".npz"):
        raise OptionError(
            f"path must end in .hdf5, .h5 or .npz, got {str(path)!r}; the suffix "
            "selects the format.",
            "path",
        )
    if path.suffix != ".npz":
        import_h5py()
