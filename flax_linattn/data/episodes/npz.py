"""Episodes in NumPy's ``.npz`` files, under the keys of D4RL."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flax_linattn.data.arrays import read_arrays
from flax_linattn.data.episodes.episodes import Episodes
from flax_linattn.data.episodes.texts import environment_name
from flax_linattn.data.episodes.transitions import KEYS, check_keys, to_episodes


def read_episode_npz(path: str | Path, *, keep_unfinished: bool = False) -> Episodes:
    """Reads the steps of a file and finds its episodes, as ``read_d4rl`` does, without h5py.

    The environment is a text under ``env_id``, where there is one. Nothing is unpickled.

    Args:
        path: The file.
        keep_unfinished: Whether steps behind the last end are an episode too, as if cut by time.

    Raises:
        FileNotFoundError: There is no such file.
        DataFormatError: It is no such file, or damaged; the message names the key and the row.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "toy.npz")
        >>> np.savez(path, observations=np.zeros((3, 2)), actions=np.zeros((3, 1)),
        ...          rewards=np.ones(3), terminals=np.array([0, 0, 1]), env_id="Hopper-v5")
        >>> episodes = read_episode_npz(path)
        >>> episodes.lengths.tolist(), episodes.returns.tolist(), episodes.env_id
        ([3], [3.0], 'Hopper-v5')
    """
    arrays = read_arrays(path, (*KEYS, "env_id"))
    path = Path(path)
    check_keys(path, list(arrays))
    env_id = _text(arrays.pop("env_id", None))
    if "timeouts" in arrays:
        arrays.pop("next_observations", None)  # which say nothing more
    return to_episodes(path, arrays, env_id, keep_unfinished)


def _text(array: np.ndarray | None) -> str | None:
    if array is None or array.dtype.kind != "U" or array.size != 1:
        return None
    try:
        return environment_name(str(array.item()))
    except (ValueError, SystemError):  # no characters
        return None
