"""Arrays and facts in one ``.npz`` file, which is read as if a stranger had made it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from flax_linattn.safe_npz import MAX_MEMBERS, SUFFIX, NpzFile

MAX_BYTES_OF_FACTS = 1 << 20
_FACTS = "facts"


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
    if len(arrays) > MAX_MEMBERS or text.nbytes > MAX_BYTES_OF_FACTS // 2:
        raise ValueError(
            f"expected at most {MAX_MEMBERS:,} arrays and {MAX_BYTES_OF_FACTS // 8:,} characters "
            f"of facts, got {len(arrays):,} and {text.nbytes // 4:,}."
        )
    names = [*map(str, range(len(arrays))), _FACTS]
    # As np.savez does, which before NumPy 2.2 took allow_pickle as the name of an array.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in zip(names, [*arrays, text], strict=True):
            with archive.open(name + SUFFIX, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, version=(1, 0), allow_pickle=False)


class Archive:
    """An archive to read from: facts and headers now, each array when it is asked for.

    Args:
        file: open for as long as the archive is used.

    Attributes:
        facts: as written.
        arrays: the headers of its arrays.

    Raises:
        ValueError: the file is none that ``write_archive`` wrote (``NpzError``), or its facts are
            none.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._npz = NpzFile(file, strict=True)
        sizes = self._npz.sizes
        if {*sizes} != {*map(str, range(len(sizes) - 1)), _FACTS}:
            raise ValueError("it holds other entries than a state's")
        if sizes[_FACTS] > MAX_BYTES_OF_FACTS:
            raise ValueError(f"its facts are longer than {MAX_BYTES_OF_FACTS:,} bytes")
        text = self._npz.read(_FACTS)
        if text.shape or text.dtype.kind != "U":
            raise ValueError("its facts are no text")
        self.facts = json.loads(str(text))
        if not isinstance(self.facts, dict):
            raise ValueError("its facts are no names and values")
        self.arrays = [self._npz.header(str(index)) for index in range(len(sizes) - 1)]
        if any(header.dtype.kind not in "biufcV" for header in self.arrays):
            raise ValueError("an array is of another kind")

    def check(self) -> None:
        """Compares all checksums, a piece at a time."""
        self._npz.check()

    def read(self, index: int) -> NDArray:
        """Reads an array, whose size is that of ``arrays[index]``, and checks its checksum."""
        return self._npz.read(str(index))
