"""Limits on the memory of unpacked files, which are checked before unpacking."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from flax_linattn.checks import format_bytes
from flax_linattn.data.errors import DataFormatError

MAX_UNPACKED_BYTES = 2**30
"""Bytes that any file may take in memory, even a small one."""

MAX_RATIO = 100
"""Bytes that a larger file may take in memory per byte on disk.

Compression ratios are 2 to 30 for tables, arrays and texts of real data sets; for constant bytes
1,000 with deflate, and 7,000 with xz.
"""

TEXT_EXPANSION = 8
"""Bytes of memory per byte of text: an empty cell of one byte becomes a float64."""

_MIN_VALUE_BYTES = 8
"""Minimum bytes of memory per value: readers convert narrower values to float64 or int64."""


class UnpackedSizeError(DataFormatError):
    """A file needs far more memory than its size suggests."""


def max_unpacked_bytes(stored: int, expansion: int = 1) -> int:
    """Returns the maximum unpacked size in bytes of a file of ``stored`` bytes.

    Example:
        >>> max_unpacked_bytes(2**20) == 2**30, max_unpacked_bytes(2**30) == 100 * 2**30
        (True, True)
    """
    return max(MAX_UNPACKED_BYTES // expansion, MAX_RATIO * stored)


def check_unpacked_bytes(
    place: object,
    unpacked: float,
    stored: int,
    advice: str = "unpack it first if you trust its source",
    expansion: int = 1,
) -> None:
    """Raises an error for data that are too large for the size of their file.

    Args:
        place: File, or part of a file, for the message.
        unpacked: Bytes in memory, as declared by the file; infinity if not declared.
        stored: Size of the file in bytes.
        advice: Advice for the error message.
        expansion: Bytes of memory per unpacked byte.

    Example:
        >>> check_unpacked_bytes("events.npz:times", 2e9, 2_000_000)
        Traceback (most recent call last):
        ...
        flax_linattn.data.files.unpacking.UnpackedSizeError: events.npz:times: expected at most ...
    """
    limit = max_unpacked_bytes(stored, expansion)
    if unpacked > limit:
        got = "more" if math.isinf(unpacked) else format_bytes(unpacked)
        raise UnpackedSizeError(
            f"{place}: expected at most {format_bytes(limit)} unpacked from "
            f"{format_bytes(stored)}, got {got}; {advice}"
        )


def array_bytes(shape: Iterable[int], dtype: np.dtype[Any]) -> int:
    """Returns the bytes of an array in memory after readers converted it to 64 bits."""
    return math.prod(shape) * max(dtype.itemsize, _MIN_VALUE_BYTES)


def limit_stream(file: IO[bytes], path: Path, expansion: int) -> io.BufferedReader:
    """Wraps a stream that is unpacked while it is read; raises an error if it grows too long."""
    return io.BufferedReader(_LimitedStream(file, path, expansion), 2**18)


class _LimitedStream(io.RawIOBase):
    """Unpacked bytes of a compressed file, up to the limit for its size."""

    def __init__(self, file: IO[bytes], path: Path, expansion: int) -> None:
        self._file, self._path, self._expansion = file, path, expansion
        self._stored = path.stat().st_size
        self._limit = max_unpacked_bytes(self._stored, expansion)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        self._check(self._file.tell())
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == io.SEEK_SET:  # all before it would be unpacked
            self._check(offset)
        return self._file.seek(offset, whence)

    def _check(self, place: int) -> None:
        if place > self._limit:
            check_unpacked_bytes(self._path, math.inf, self._stored, expansion=self._expansion)

    def close(self) -> None:
        self._file.close()
        super().close()
