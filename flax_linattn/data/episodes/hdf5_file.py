"""Arrays of numbers from HDF5 files, without external links and within memory limits."""

from __future__ import annotations

import math
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import import_extra
from flax_linattn.data.errors import DataFormatError, printed, report_damage
from flax_linattn.data.files.text_files import check_is_file
from flax_linattn.data.files.unpacking import array_bytes, check_unpacked_bytes

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""First bytes of an HDF5 file."""

_MAX_TEXT_BYTES = 4096
"""Maximum size in bytes of an attribute."""
EXPANSION = 2
"""Bytes of memory per byte of the arrays, which are converted to float32."""
MAX_CHUNK_BYTES = 2**27
"""Maximum size in bytes of a chunk; HDF5 holds two copies of it while reading."""

_GZIP, _SHUFFLE, _CHECKSUM = 1, 2, 3  # as HDF5 numbers its filters
_SLACK = 64
"""Bytes that a filter may add to a chunk, in addition to a thousandth of its size."""


def import_h5py() -> Any:
    """Imports h5py, which is an optional dependency."""
    return import_extra(
        "h5py",
        'reading HDF5 files takes h5py: pip install "flax-linattn[rl]". Files in .npz are read '
        "without it.",
    )


class Hdf5File:
    """HDF5 file opened for reading arrays of numbers and short strings.

    Links are not followed, filters are not loaded as plugins, and no memory is allocated for data
    that the file does not contain.
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
        """Describes the place of a dataset in messages."""
        return f"{self.path}:{key}"

    def names(self, group: str = "") -> list[str]:
        """Names of the members of a group, or of the root group."""
        with self._guard():
            return [str(name) for name in self._group(group)]

    def read(self, key: str) -> NDArray:
        """Reads an array of numbers by its key, such as "rewards" or "episode_0/rewards"."""
        group, _, name = key.rpartition("/")
        with self._guard():
            data = self._resolve(self._group(group), key, name)
            if not isinstance(data, self._h5py.Dataset):
                parts = f" of {printed([*data])}" if isinstance(data, self._h5py.Group) else ""
                raise DataFormatError(
                    f"{self.place(key)}: expected an array of numbers, got a "
                    f"{type(data).__name__}{parts}; nested observations and actions are not "
                    "supported: save them as one array"
                )
            self._bytes += array_bytes(data.shape or (), data.dtype)
            advice = "save it without compression if you trust its source"
            stored = self.path.stat().st_size
            check_unpacked_bytes(self.place(key), self._bytes, stored, advice, EXPANSION)
            check_dataset(self.place(key), data)
            return np.asarray(data[()])

    def text(self, name: str) -> str | None:
        """Reads an attribute of the file that is a short string; None if there is none."""
        with self._guard():
            if name not in self._file.attrs:
                return None
            attribute = self._file.attrs.get_id(name)
            if attribute.shape != () or attribute.get_storage_size() > _MAX_TEXT_BYTES:
                return None
            value = self._file.attrs[name]
            if isinstance(value, bytes):
                value = value.decode()
            return value if isinstance(value, str) and len(value) <= _MAX_TEXT_BYTES else None

    def _group(self, name: str) -> Any:
        group = self._resolve(self._file, name, name) if name else self._file
        if not isinstance(group, self._h5py.Group):
            raise DataFormatError(
                f"{self.place(name)}: expected a group, got an array; check that this is the right "
                "file"
            )
        return group

    def _resolve(self, group: Any, key: str, name: str) -> Any:
        link = group.get(name, getlink=True)
        if not isinstance(link, self._h5py.HardLink):
            raise DataFormatError(
                f"{self.place(key)}: expected an array in the file itself, got a link "
                f"({type(link).__name__}), which is not followed; copy the array into this "
                "file"
            )
        return group[name]


def check_dataset(place: str, dataset: Any) -> None:
    """Checks that a dataset is completely in the file and takes no more memory than declared."""
    if dataset.is_virtual or dataset.external:
        raise DataFormatError(
            f"{place}: expected numbers in the file itself, got a reference to another "
            "file, which is not followed; copy the numbers into this file"
        )
    if dataset.shape is None or dataset.dtype.kind not in "fiub":
        raise DataFormatError(
            f"{place}: expected numbers, got {dataset.dtype}; save the array as float32"
        )
    size = math.prod(dataset.shape) * dataset.dtype.itemsize
    if dataset.chunks is not None:
        _check_chunks(place, dataset, size)
    elif (stored := dataset.id.get_storage_size()) != size:
        raise _incomplete(place, size, stored)


def _check_chunks(place: str, dataset: Any, size: int) -> None:
    """Checks that each chunk exists and inflates to its declared size."""
    filters = _filters(place, dataset)
    shape, chunk = dataset.shape, dataset.chunks
    expected = math.prod(-(-length // own) for length, own in zip(shape, chunk, strict=True))
    if (count := dataset.id.get_num_chunks()) != expected:
        raise DataFormatError(
            f"{place}: expected {expected} chunks for {list(shape)}, got {count}; the file is not "
            "complete: fetch it again, or save it again"
        )
    chunk_size = math.prod(chunk) * dataset.dtype.itemsize
    if chunk_size > MAX_CHUNK_BYTES:
        raise DataFormatError(
            f"{place}: expected chunks of at most {MAX_CHUNK_BYTES:,} bytes, got {chunk_size:,}; "
            "write the file again with smaller chunks"
        )
    max_size = chunk_size + chunk_size // 1000 + _SLACK
    chunks: list[Any] = []
    dataset.id.chunk_iter(chunks.append)
    for info in chunks:
        if info.size > max_size:
            raise _incomplete(place, chunk_size, info.size)
        skipped = _GZIP in filters and bool(info.filter_mask >> filters.index(_GZIP) & 1)
        if _GZIP in filters and not skipped:
            # HDF5 inflates to whatever length comes out: here no more than one byte too many.
            _, raw = dataset.id.read_direct_chunk(info.chunk_offset)
            inflated = len(zlib.decompressobj().decompress(raw, max_size + 1))
            if not chunk_size <= inflated <= max_size:
                raise _incomplete(place, chunk_size, inflated)
        elif info.size < chunk_size:
            raise _incomplete(place, chunk_size, info.size)


def _filters(place: str, dataset: Any) -> list[int]:
    """Returns the distinct filter numbers; HDF5 would try to load unknown ones as plugins."""
    creation = dataset.id.get_create_plist()
    filters = [creation.get_filter(index)[0] for index in range(creation.get_nfilters())]
    if not set(filters) <= {_GZIP, _SHUFFLE, _CHECKSUM} or len(set(filters)) < len(filters):
        raise DataFormatError(
            f"{place}: expected gzip or no compression, got HDF5 filters {filters}; write it again "
            "with gzip, as h5repack with GZIP=4 does"
        )
    return filters


def _incomplete(place: str, expected: int, got: int) -> DataFormatError:
    return DataFormatError(
        f"{place}: expected {expected:,} bytes, got {got:,}; the file is damaged or "
        "incomplete: fetch it again, or save it again"
    )
