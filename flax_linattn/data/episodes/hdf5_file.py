"""Arrays of numbers from HDF5 files, without links to elsewhere and within bounds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import import_extra
from flax_linattn.data.episodes.hdf5_bounds import check_dataset
from flax_linattn.data.episodes.notes import printed
from flax_linattn.data.files import DataFormatError, check_is_file, report_damage

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""The first bytes of such a file."""

_LONGEST_TEXT = 4096
"""Bytes of an attribute that is read."""


def import_h5py() -> Any:
    """The h5py package, which is no part of a plain installation.

    Raises:
        ValueError: It is not installed; says how to.
    """
    return import_extra(
        "h5py",
        'reading HDF5 files takes h5py: pip install "flax-linattn[rl]". Files in .npz are read '
        "without it.",
    )


class Hdf5File:
    """An HDF5 file open to read, of which arrays of numbers and short texts are read.

    No link is followed, into the file or out of it, no filter is loaded, and no memory is taken
    for what is not in the file.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: h5py is not installed.
        DataFormatError: It is no such file, or damaged.

    Example:
        >>> import tempfile, h5py
        >>> path = Path(tempfile.mkdtemp(), "toy.hdf5")
        >>> with h5py.File(path, "w") as file:
        ...     file["rewards"] = np.arange(3.0)
        >>> with Hdf5File(path) as file:
        ...     print(file.names(), file.read("rewards"))
        ['rewards'] [0. 1. 2.]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        check_is_file(self.path)
        self._guard = partial(report_damage, self.path, "a whole HDF5 file")
        self._h5py = import_h5py()
        self._bytes = 0
        with self._guard():
            # Without locks: files are often on disks that are read-only, or of others.
            self._file = self._h5py.File(self.path, "r", locking=False)

    def __enter__(self) -> Hdf5File:
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard():
            self._file.close()

    def place(self, key: str) -> str:
        """Where a dataset is, for a message."""
        return f"{self.path}:{key}"

    def names(self, group: str = "") -> list[str]:
        """What there is in a group, or at the top."""
        with self._guard():
            return [str(name) for name in self._group(group)]

    def read(self, key: str) -> NDArray:
        """An array of numbers.

        Args:
            key: The name of a dataset, as "rewards" or "episode_0/rewards", which is there.

        Raises:
            DataFormatError: It is no array of numbers, lies elsewhere, is damaged or too large.
        """
        group, _, name = key.rpartition("/")
        with self._guard():
            found = self._member(self._group(group), key, name)
            if not isinstance(found, self._h5py.Dataset):
                parts = f" of {printed([*found])}" if isinstance(found, self._h5py.Group) else ""
                raise DataFormatError(
                    f"{self.place(key)}: expected an array of numbers, got a "
                    f"{type(found).__name__}{parts}; observations and actions of several parts are "
                    "not handled: save them as one array"
                )
            self._bytes = check_dataset(self.place(key), found, self._bytes)
            return np.asarray(found[()])

    def text(self, name: str) -> str | None:
        """An attribute of the file that is a short text; None where there is none."""
        with self._guard():
            if name not in self._file.attrs:
                return None
            kept = self._file.attrs.get_id(name)
            if kept.shape != () or kept.get_storage_size() > _LONGEST_TEXT:
                return None
            value = self._file.attrs[name]
            if isinstance(value, bytes):
                value = value.decode()
            return value if isinstance(value, str) and len(value) <= _LONGEST_TEXT else None

    def _group(self, name: str) -> Any:
        found = self._member(self._file, name, name) if name else self._file
        if not isinstance(found, self._h5py.Group):
            raise DataFormatError(
                f"{self.place(name)}: expected a group, got an array; check that this is the right "
                "file"
            )
        return found

    def _member(self, group: Any, key: str, name: str) -> Any:
        link = group.get(name, getlink=True)
        if not isinstance(link, self._h5py.HardLink):
            raise DataFormatError(
                f"{self.place(key)}: expected an array in the file itself, got a link to elsewhere "
                f"({type(link).__name__}), which is not followed; copy it into the file"
            )
        return group[name]
