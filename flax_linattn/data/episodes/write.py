"""Episodes to files in the keys of D4RL."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError
from flax_linattn.data.episodes.episodes import Episodes
from flax_linattn.data.episodes.hdf5_file import import_h5py
from flax_linattn.storage import write_whole

_NOTHING: Mapping[str, str] = MappingProxyType({})


def write_episodes(
    path: str | Path, episodes: Episodes, about: Mapping[str, str] = _NOTHING
) -> None:
    """Writes episodes to a file that ``load_episodes`` reads as they were, bit for bit.

    ``observations``, ``actions``, ``rewards``, ``terminals`` and ``timeouts``, compressed by gzip.
    A file that is there is replaced when the new one is complete.

    Args:
        path: Of the file: ``.hdf5`` or ``.h5``, with ``env_id`` and ``about`` as attributes; or
            ``.npz``, with the text ``env_id``, and ``about`` as a JSON text.
        episodes: What to write.
        about: What else is to be known, such as where they are from.

    Raises:
        OptionError: The suffix is another one, or ``about`` does not hold texts by names.
        ValueError: h5py is not installed, for ``.hdf5``.
        OSError: It cannot be written.

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
        texts = isinstance(key, str) and isinstance(value, str)
        if not texts or key in ("", "env_id") or "\0" in key + value:
            raise OptionError(
                "about must hold texts without NUL by names other than env_id, got "
                f"{key!r}: {value!r}.",
                "about",
            )
    to_bytes = _npz if path.suffix == ".npz" else _hdf5
    content = to_bytes(_arrays(episodes), episodes.env_id, about)
    with write_whole(path) as file:
        file.write(content)


def check_episode_file(path: Path) -> None:
    """Refuses a file that episodes cannot be written to, such as before hours of play.

    Raises:
        OptionError: The suffix is another one.
        ValueError: h5py is not installed, for ``.hdf5``.
    """
    if path.suffix not in (".hdf5", ".h5", ".npz"):
        raise OptionError(
            f"path must end in .hdf5, .h5 or .npz, got {str(path)!r}; the suffix is the format.",
            "path",
        )
    if path.suffix != ".npz":
        import_h5py()


def _arrays(episodes: Episodes) -> dict[str, NDArray]:
    ends = episodes.starts[1:] - 1
    terminals, timeouts = (np.zeros(episodes.num_steps, bool) for _ in range(2))
    terminals[ends] = episodes.terminated
    timeouts[ends] = ~episodes.terminated
    return {
        "observations": episodes.observations,
        "actions": episodes.actions,
        "rewards": episodes.rewards,
        "terminals": terminals,
        "timeouts": timeouts,
    }


def _npz(arrays: Mapping[str, NDArray], env_id: str | None, about: Mapping[str, str]) -> bytes:
    named: dict[str, Any] = dict(arrays)
    if about:
        named["about"] = np.array(json.dumps(dict(about)))
    if env_id is not None:
        named["env_id"] = np.array(env_id)
    store = io.BytesIO()
    np.savez_compressed(store, **named)
    return store.getvalue()


def _hdf5(arrays: Mapping[str, NDArray], env_id: str | None, about: Mapping[str, str]) -> bytes:
    h5py = import_h5py()
    store = io.BytesIO()
    with h5py.File(store, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, compression="gzip", chunks=True)
        if env_id is not None:
            file.attrs["env_id"] = env_id
        for key, value in about.items():
            file.attrs[key] = value
    return store.getvalue()
