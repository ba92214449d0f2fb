"""Limits on the memory that a file takes once unpacked, checked before it is unpacked."""

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
"""Bytes that any file may take in memory, however small it is."""

MAX_RATIO = 100
"""Bytes that a larger file may take in memory for each of its own.

Tables, arrays and texts of real data sets are compressed 2 to 30 times. Constant bytes are
compressed 1,000 times by deflate and 7,000 times by xz.
"""

TEXT_EXPANSION = 8
"""Bytes of memory for each byte of a text: an empty cell is a separator, and becomes a float64."""

_MIN_VALUE_BYTES = 8
"""Readers convert narrower values to float64 or int64."""


class UnpackedSizeError(DataFormatError):
    """A file takes far more memory than its size suggests."""


def max_unpacked_bytes(stored: int, expansion: int = 1) -> int:
    """Bytes to which a file of ``stored`` bytes may unpack; fewer where memory is a multiple.

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
    """Refuses data that take too many bytes for the size of their file.

    Args:
        place: The file, or the part of it, for the message.
        unpacked: Bytes in memory, as the file declares them; infinity if it does not.
        stored: Bytes of the file.
        advice: Advice for the error message.
        expansion: Bytes of memory for each unpacked byte.

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
    """Bytes that an array takes in memory once readers have converted it to 64 bits."""
    return math.prod(shape) * max(dtype.itemsize, _MIN_VALUE_BYTES)


def limit_stream(file: IO[bytes], path: Path, expansion: int) -> io.BufferedReader:
    """A stream that is unpacked while it is read, and refused where it grows too long."""
    return io.BufferedReader(_LimitedStream(file, path, expansion), 2**18)


class _LimitedStream(io.RawIOBase):
    """The unpacked bytes of a compressed file, up to the limit for its size."""

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
