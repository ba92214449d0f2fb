"""Arrays of numbers from ``.npz`` files, within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from numpy.typing import NDArray

from flax_linattn.checks import itemize
from flax_linattn.data.errors import DataFormatError, printed, report_damage
from flax_linattn.data.files.text_files import check_is_file
from flax_linattn.safe_npz import NpzFile

MAX_BYTES = 2**31
"""Of all arrays that are read."""


def read_arrays(path: str | Path, names: Sequence[str]) -> dict[str, NDArray]:
    """Reads the named arrays that the file has; see ``safe_npz.NpzFile``.

    Those that the file has of ``names``, of at most 2 GiB in all and without pickles.
    """
    path = Path(path)
    check_is_file(path)
    advice = "fetch it again, or save it with numpy.savez"
    with report_damage(path, "a whole .npz file", advice), open(path, "rb") as file:
        npz = NpzFile(file)
        chosen = [name for name in names if name in npz.sizes]
        if not chosen:
            raise DataFormatError(
                f"{path}: expected arrays {itemize([*names])}, got {printed([*npz.sizes])}; save "
                "them under these names"
            )
        total = sum(npz.sizes[name] for name in chosen)
        if total > MAX_BYTES:
            raise DataFormatError(
                f"{path}: expected arrays of at most {MAX_BYTES:,} bytes, got {total:,} of "
                f"{itemize(chosen)}; split the file"
            )
        for name in chosen:
            if npz.header(name).dtype.hasobject:
                raise DataFormatError(
                    f"{path}:{name}: expected numbers, got Python objects, whose pickles may "
                    "run any program when they are read; save numbers: pad sequences of "
                    "different lengths and add masks, or concatenate them and add lengths"
                )
        return {name: npz.read(name) for name in chosen}
