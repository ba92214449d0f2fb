"""Arrays of numbers from ``.npz`` files, within memory limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from numpy.typing import NDArray

from flax_linattn.checks import itemize
from flax_linattn.data.errors import DataFormatError, printed, report_damage
from flax_linattn.data.files.text_files import check_is_file
from flax_linattn.data.files.unpacking import array_bytes, check_unpacked_bytes
from flax_linattn.safe_npz import NpzFile


def read_arrays(path: str | Path, names: Sequence[str], expansion: int) -> dict[str, NDArray]:
    """Reads arrays of a file by name, without pickles; see ``safe_npz.NpzFile``.

    Names that the file lacks are skipped. Arrays that need far more memory than the size of the
    file suggests are rejected before they are unpacked; ``expansion`` is the memory for checks and
    conversions, as a multiple of the size of the arrays.
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
        advice = "save it with numpy.savez, without compression, if you trust its source"
        stored, unpacked = path.stat().st_size, 0
        declared = sum(npz.sizes[name] for name in chosen)
        check_unpacked_bytes(path, declared, stored, advice, expansion)
        for name in chosen:
            header = npz.header(name)
            if header.dtype.hasobject:
                raise DataFormatError(
                    f"{path}:{name}: expected numbers, got Python objects, whose pickles may "
                    "run any program when they are read; save numbers: pad sequences of "
                    "different lengths and add masks, or concatenate them and add lengths"
                )
            unpacked += array_bytes(header.shape, header.dtype)
            check_unpacked_bytes(f"{path}:{name}", unpacked, stored, advice, expansion)
        return {name: npz.read(name) for name in chosen}
