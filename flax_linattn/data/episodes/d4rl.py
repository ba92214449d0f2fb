"""Episodes in HDF5 files as D4RL has them."""

from __future__ import annotations

from pathlib import Path

from flax_linattn.data.episodes.episodes import Episodes
from flax_linattn.data.episodes.hdf5_file import Hdf5File
from flax_linattn.data.episodes.texts import environment_name
from flax_linattn.data.episodes.transitions import KEYS, check_keys, to_episodes


def read_d4rl(path: str | Path, *, keep_unfinished: bool = False) -> Episodes:
    """Reads the steps of a file and finds its episodes.

    D4RL's keys: ``observations`` [N, S], ``actions`` [N, A], continuous, ``rewards`` [N],
    ``terminals`` [N] and ``timeouts`` [N], True at the last step of an episode that ended in a
    terminal state, or was cut by time. Without ``timeouts``, an episode is cut where
    ``next_observations`` is not the observation of the next row. Others are left alone, but for the
    file's attribute ``env_id``.

    Source: J. Fu et al., "D4RL: Datasets for deep data-driven reinforcement learning", 2020.

    Args:
        path: The file.
        keep_unfinished: Whether steps behind the last end are an episode too, as if cut by time;
            their return is not known, so they are left out by default.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: h5py is not installed.
        DataFormatError: It is no such file, or damaged; the message names the key and the row.

    Example:
        >>> import tempfile, h5py, numpy as np
        >>> path = Path(tempfile.mkdtemp(), "toy.hdf5")
        >>> with h5py.File(path, "w") as file:
        ...     file["observations"] = np.zeros((4, 2))
        ...     file["actions"] = np.zeros((4, 1))
        ...     file["rewards"] = np.arange(4.0)
        ...     file["terminals"] = np.array([False, True, False, False])
        ...     file["timeouts"] = np.array([False, False, True, False])
        >>> episodes = read_d4rl(path)
        >>> episodes.starts.tolist(), episodes.terminated.tolist(), episodes.returns.tolist()
        ([0, 2, 3], [True, False], [1.0, 2.0])
    """
    with Hdf5File(path) as file:
        names = file.names()
        check_keys(file.path, names)
        keys = [key for key in KEYS if key in names]
        if "timeouts" in keys:
            keys = [key for key in keys if key != "next_observations"]
        arrays = {key: file.read(key) for key in keys}
        return to_episodes(
            file.path, arrays, environment_name(file.text("env_id")), keep_unfinished
        )
