"""Arrays of numbers from ``.npz`` files, without pickles and within bounds."""

from __future__ import annotations

import lzma
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import listed, shown
from flax_linattn.data.files import DataFormatError, LineReader

LARGEST = 2**31
"""Bytes of all arrays that are read."""

_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError, struct.error),
    *(EOFError, OSError, RuntimeError, ValueError, TypeError, KeyError, IndexError, SyntaxError),
    *(OverflowError, MemoryError, AssertionError, AttributeError),
)
"""What reading a damaged file raises, in Python's zipfile or NumPy's parser of headers."""


def read_arrays(path: str | Path, names: Sequence[str]) -> dict[str, NDArray]:
    """Reads those of the arrays that the file has.

    Args:
        path: The file.
        names: Of the arrays.

    Raises:
        FileNotFoundError: There is no such file.
        DataFormatError: It is no such file, or damaged; it has none of the arrays; one holds Python
            objects; they take more than 2 GiB, by the headers, before anything is decompressed.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.npz")
        ...     np.savez_compressed(path, times=np.arange(3.0), other=np.zeros(2))
        ...     read_arrays(path, ["times", "marks"])
        {'times': array([0., 1., 2.])}
    """
    with LineReader(path) as reader:  # there is such a file
        path = reader.path
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            chosen = [name for name in names if f"{name}.npy" in sizes]
            if not chosen:
                raise DataFormatError(
                    f"{path}: expected arrays {listed([*names])}, got "
                    f"{listed([shown(name, 80)[1:-1] for name in sizes])}; save "
                    "them under these names"
                )
            total = sum(sizes[f"{name}.npy"] for name in chosen)
            if total > LARGEST:
                raise DataFormatError(
                    f"{path}: expected arrays of at most {LARGEST:,} bytes, got {total:,} of "
                    f"{listed(chosen)}; split the file"
                )
            arrays = {}
            for name in chosen:
                with archive.open(f"{name}.npy") as file:
                    arrays[name] = _array(f"{path}:{name}", file, sizes[f"{name}.npy"])
            return arrays
    except DataFormatError:
        raise
    except _DAMAGE as error:
        raise DataFormatError(
            f"{path}: expected a whole .npz file, got a damaged one, or another kind of file "
            f"({shown(error, 100)}); fetch it again, or save it with numpy.savez"
        ) from error


def _array(place: str, file: IO[bytes], size: int) -> NDArray:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of its format")
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    with warnings.catch_warnings():  # headers of Python 2 are fine
        warnings.simplefilter("ignore", UserWarning)
        shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise DataFormatError(
            f"{place}: expected numbers, got Python objects, whose pickles may run any program "
            "when they are read; save numbers: pad sequences of different lengths and add "
            "masks, or concatenate them and add lengths"
        )
    stored, bytes_needed = size - file.tell(), math.prod(shape) * dtype.itemsize
    if stored != bytes_needed:
        raise ValueError(f"an array {list(shape)} of {bytes_needed:,} bytes in {stored:,}")
    return np.frombuffer(file.read(), dtype).reshape(shape, order="F" if fortran else "C")
