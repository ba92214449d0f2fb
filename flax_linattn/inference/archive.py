"""Arrays and facts in one ``.npz`` file, which is read as if a stranger had made it.

Nothing is unpickled or unpacked, and nothing is read before its size is known to be there: what
reading costs is bounded by what is asked for.
"""

from __future__ import annotations

import json
import math
import struct
import warnings
import zipfile
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_ARRAYS = 10_000
MOST_BYTES_OF_FACTS = 1 << 20
MOST_AXES = 32
MOST_ALONG_AN_AXIS = 1 << 48
"""What NumPy and memories have is less, and numbers above would be printed over pages."""
_FACTS = "facts"
_SUFFIX = ".npy"

_END = struct.Struct("<4s4H2LH")
"""The last bytes of a zip file: mark, two disks, entries here and in all, size and place of the
directory, length of a comment."""
_END_64 = struct.Struct("<4sQ2H2L4Q4sLQL")
"""What stands before that where the file is larger than 4 GiB: the same in 64 bits, its place."""


class Stored(NamedTuple):
    """An array of an archive.

    Attributes:
        shape: its own.
        dtype: its own; one that NumPy does not know, such as bfloat16, is stored as raw bytes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        """Of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_archive(file: BinaryIO, arrays: Sequence[NDArray], facts: dict[str, Any]) -> None:
    """Writes an archive.

    Args:
        file: to write to.
        arrays: without Python objects.
        facts: JSON values.

    Raises:
        ValueError: too many arrays, facts that are too long, or Python objects.
        TypeError: facts that are no JSON values.
    """
    text = np.array(json.dumps(facts))
    if len(arrays) > MOST_ARRAYS or text.nbytes > MOST_BYTES_OF_FACTS // 2:
        raise ValueError(
            f"expected at most {MOST_ARRAYS:,} arrays and {MOST_BYTES_OF_FACTS // 8:,} characters "
            f"of facts, got {len(arrays):,} and {text.nbytes // 4:,}."
        )
    names = [*map(str, range(len(arrays))), _FACTS]
    # As np.savez does, which before NumPy 2.2 took allow_pickle as the name of an array.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in zip(names, [*arrays, text], strict=True):
            with archive.open(name + _SUFFIX, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, version=(1, 0), allow_pickle=False)


class Archive:
    """An archive to read from: facts and headers now, each array when it is asked for.

    Args:
        file: open for as long as the archive is used.

    Attributes:
        facts: as written.
        arrays: what there is.

    Raises:
        Exception: of many kinds, where the file is none that ``write_archive`` wrote.
    """

    def __init__(self, file: BinaryIO) -> None:
        size = _check_end(file)
        self._zip = zipfile.ZipFile(file)
        entries = {entry.filename: entry for entry in self._zip.infolist()}
        count = len(entries) - 1
        names = [*(f"{i}{_SUFFIX}" for i in range(count)), _FACTS + _SUFFIX]
        if set(entries) != set(names) or len(self._zip.infolist()) != len(entries):
            raise ValueError("it holds other entries than a state's")
        for entry in entries.values():
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise ValueError("an entry is compressed or encrypted")
            if entry.file_size != entry.compress_size:
                raise ValueError("the sizes of an entry contradict each other")
        if sum(entry.file_size for entry in entries.values()) > size:
            raise ValueError("its entries overlap")
        *self._entries, about = (entries[name] for name in names)
        self.facts = self._facts(about)
        self.arrays = [self._header(entry)[0] for entry in self._entries]

    def check(self) -> None:
        """Compares all checksums, a piece at a time."""
        damaged = self._zip.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} is not as written")

    def read(self, index: int) -> NDArray:
        """Reads an array, whose size is that of ``arrays[index]``, and checks its checksum."""
        stored, start, order = self._header(self._entries[index])
        data = self._zip.read(self._entries[index])
        values = np.frombuffer(data, stored.dtype, offset=start)  # a slice would be a copy
        return values.reshape(stored.shape, order=order)

    def _facts(self, entry: zipfile.ZipInfo) -> dict[str, Any]:
        if entry.file_size > MOST_BYTES_OF_FACTS:
            raise ValueError(f"its facts are longer than {MOST_BYTES_OF_FACTS:,} bytes")
        stored, start, _ = self._header(entry)
        if stored.shape or stored.dtype.kind != "U":
            raise ValueError("its facts are no text")
        text = str(np.frombuffer(self._zip.read(entry), stored.dtype, offset=start)[0])
        facts = json.loads(text)
        if not isinstance(facts, dict):
            raise ValueError("its facts are no names and values")
        return facts

    def _header(self, entry: zipfile.ZipInfo) -> tuple[Stored, int, Any]:
        """What an entry says of its array, where the values begin, and their order."""
        with self._zip.open(entry) as file, warnings.catch_warnings(action="error"):
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError("an array has another format")
            header: Any = np.lib.format.read_array_header_1_0(file)
            shape, by_columns, dtype = header
            start = file.tell()
        stored = Stored(shape, dtype)
        plain = dtype.kind in "biufcVU" and dtype.fields is None and dtype.subdtype is None
        if len(shape) > MOST_AXES or any(size >= MOST_ALONG_AN_AXIS for size in shape):
            raise ValueError("an array is larger than any")
        if not plain or not dtype.itemsize or any(size < 0 for size in shape):
            raise ValueError("an array is of another kind")
        if stored.num_bytes != entry.file_size - start:
            raise ValueError("an array's shape is not that of its values")
        return stored, start, "F" if by_columns else "C"


def _check_end(file: BinaryIO) -> int:
    """Refuses what is cut short, and directories longer than any of ours before they are read.

    Returns:
        The size of the file.
    """
    longest = _END_64.size + _END.size
    size = file.seek(0, 2)
    file.seek(max(0, size - longest))
    tail = file.read(longest)
    if len(tail) < _END.size:
        raise ValueError("it is cut short")
    mark, _, _, _, entries, directory, _, comment = _END.unpack(tail[-_END.size :])
    if mark != b"PK\x05\x06" or comment:
        raise ValueError("it is cut short, or no .npz file")
    if tail[: -_END.size][-20:].startswith(b"PK\x06\x07"):
        if len(tail) < longest or not tail.startswith(b"PK\x06\x06"):
            raise ValueError("its end is damaged")
        _, _, _, _, _, _, _, entries, directory, *_ = _END_64.unpack(tail[: _END_64.size])
    if entries > MOST_ARRAYS + 1 or directory > 200 * (MOST_ARRAYS + 1):
        raise ValueError("it holds more entries than any state")
    return size
