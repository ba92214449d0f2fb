"""Arrays in ``.npz`` files, read as untrusted input.

Nothing is unpickled, and what reading costs is bounded: the directory and the sizes in it are
checked before anything is unpacked, and an array is read only if its header agrees with its size.
"""

from __future__ import annotations

import io
import math
import shutil
import struct
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import quote

MAX_MEMBERS = 10_000
MAX_HEADER_BYTES = (1 << 16) + 10
MAX_AXES = 32
MAX_AXIS_LENGTH = 1 << 48
"""NumPy and memories hold less, and larger numbers would be printed over pages."""
SUFFIX = ".npy"

_PIECE_BYTES = {zipfile.ZIP_STORED: 2**20, zipfile.ZIP_DEFLATED: 2**20, zipfile.ZIP_LZMA: 2**12}
"""Bytes of an entry that are read at a time. Python's zipfile inflates a whole piece of LZMA, to up
to 30 MB; of bzip2 it would inflate one to 4 GB."""

_END = struct.Struct("<4s4H2LH")
"""The last bytes of a zip file: mark, two disks, entries here and in all, size and place of the
directory, length of a comment."""
_END_64 = struct.Struct("<4sQ2H2L4Q4sLQL")
"""What stands before that where the file is larger than 4 GiB: the same in 64 bits, its place."""


class NpzError(ValueError):
    """An ``.npz`` file, or an array in it, is damaged or hostile; says which array, and why."""


class ArrayHeader(NamedTuple):
    """Header of an array in an ``.npz`` file.

    Attributes:
        shape: Its shape.
        dtype: Its dtype; one that NumPy does not know, such as bfloat16, is stored as raw bytes.
        order: Memory order of the values, "C" or "F".
        start: Byte of the member at which the values begin.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Any
    start: int

    @property
    def num_bytes(self) -> int:
        """Size of the values in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class NpzFile:
    """The arrays of an ``.npz`` file, each read on access.

    Args:
        file: Open for as long as arrays are read.
        strict: Refuse members that are compressed or overlap, or are no arrays: then no more is
            unpacked than the file takes on the disk.

    Attributes:
        sizes: Bytes of each member when unpacked, by the name of its array.

    Raises:
        NpzError: If the file is not an ``.npz`` file, is truncated, or has too many members or a
            duplicate name.

    Example:
        >>> file = io.BytesIO()
        >>> np.savez(file, times=np.arange(3.0))
        >>> npz = NpzFile(file)
        >>> npz.header("times").shape, npz.read("times")
        ((3,), array([0., 1., 2.]))
    """

    def __init__(self, file: BinaryIO, *, strict: bool = False) -> None:
        with _guard():
            size = _check_end(file)
            self._zip = zipfile.ZipFile(file)
            members = self._zip.infolist()
            named = [info for info in members if strict or info.filename.endswith(SUFFIX)]
            self._members = {info.filename.removesuffix(SUFFIX): info for info in named}
            if len(self._members) < len(named):
                raise ValueError("its entries must be arrays with distinct names")
            if strict:
                _check_stored(members, size)
        self.sizes = {name: info.file_size for name, info in self._members.items()}

    def header(self, name: str) -> ArrayHeader:
        """The header of an array, which has to agree with the size of the member."""
        with _guard(name), self._zip.open(self._members[name]) as file:
            return _parsed(file.read(MAX_HEADER_BYTES), self.sizes[name])

    def read(self, name: str) -> NDArray:
        """Reads an array, and compares its checksum; Python objects are refused."""
        with _guard(name):
            content = read_zip_entry(self._zip, self._members[name])
            shape, dtype, order, start = _parsed(content[:MAX_HEADER_BYTES], len(content))
            values = np.frombuffer(content, dtype, offset=start)  # a slice would be a copy
            return values.reshape(shape, order=order)

    def check(self) -> None:
        """Compares all checksums, one block at a time."""
        with _guard():
            damaged = self._zip.testzip()
            if damaged is not None:
                raise ValueError(f"the checksum of {damaged} does not match")


def read_zip_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Reads an entry of a zip file, of which no more is unpacked than the size that it declares.

    ``ZipFile.read`` first inflates up to 2 GiB, or all of it, and then cuts off what is too long.
    """
    if info.compress_type not in _PIECE_BYTES:
        raise ValueError(f"{quote(info.filename)} is compressed by neither deflate nor LZMA")
    content = io.BytesIO()  # which shares its memory with what it returns
    with archive.open(info) as file:
        shutil.copyfileobj(file, content, _PIECE_BYTES[info.compress_type])
    return content.getvalue()


def _parsed(content: bytes, size: int) -> ArrayHeader:
    """Parses the header at the beginning of a member."""
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):  # others are of structured arrays
        raise ValueError("an array has an unknown format version")
    with warnings.catch_warnings(action="ignore"):  # of headers of Python 2, which are fine
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
    header = ArrayHeader(shape, dtype, "F" if by_columns else "C", file.tell())
    if len(shape) > MAX_AXES or any(length >= MAX_AXIS_LENGTH for length in shape):
        raise ValueError("an array has too many or too long axes")
    plain = dtype.fields is None and dtype.subdtype is None and dtype.itemsize
    if not plain or any(length < 0 for length in shape):
        raise ValueError("an array has an unsupported dtype or shape")
    # Python objects are pickles of any length, which `read` refuses.
    if header.num_bytes != size - header.start and not dtype.hasobject:
        raise ValueError("the shape of an array does not match its values")
    return header


@contextmanager
def _guard(name: str = "") -> Iterator[None]:
    """Raises ``NpzError`` for every exception of Python's zipfile and NumPy's header parser."""
    try:
        yield
    except Exception as error:
        reason = quote(str(error), 100)[1:-1] if type(error) is ValueError else type(error).__name__
        raise NpzError(f"{quote(name, 80)[1:-1]}: {reason}" if name else reason) from error


def _check_end(file: BinaryIO) -> int:
    """The size of the file; refuses truncated files and directories that are too long to read."""
    longest = _END_64.size + _END.size
    size = file.seek(0, 2)
    file.seek(max(0, size - longest))
    tail = file.read(longest)
    if len(tail) < _END.size:
        raise ValueError("it is truncated")
    signature, _, _, _, entries, directory, _, comment = _END.unpack(tail[-_END.size :])
    if signature != b"PK\x05\x06" or comment:
        raise ValueError("it is truncated, or is not an .npz file")
    if tail[: -_END.size][-20:].startswith(b"PK\x06\x07"):
        if len(tail) < longest or not tail.startswith(b"PK\x06\x06"):
            raise ValueError("its end is damaged")
        _, _, _, _, _, _, _, entries, directory, *_ = _END_64.unpack(tail[: _END_64.size])
    if entries > MAX_MEMBERS + 1 or directory > 200 * (MAX_MEMBERS + 1):
        raise ValueError(f"it contains more than {MAX_MEMBERS:,} entries")
    return size


def _check_stored(members: list[zipfile.ZipInfo], size: int) -> None:
    """Refuses members that are compressed or overlap."""
    for info in members:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise ValueError("an entry is compressed or encrypted")
        if info.file_size != info.compress_size:
            raise ValueError("the sizes of an entry contradict each other")
    if sum(info.file_size for info in members) > size:
        raise ValueError("its entries overlap")
