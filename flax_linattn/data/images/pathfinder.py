"""Pathfinder, as Long Range Arena released it: are two dots joined by a dashed path?

Sources: D. Linsley et al., "Learning long-range spatial dependencies with horizontal gated
recurrent units" (2018); Y. Tay et al., "Long Range Arena" (2021),
``lra_benchmarks/data/pathfinder.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from flax_linattn.checks import at_least, choice, listed, shown
from flax_linattn.data.file_tree import FileTree
from flax_linattn.data.files import MEND, DataFormatError
from flax_linattn.data.images.decode import LARGEST_SIDE, decode_images
from flax_linattn.data.images.images import LabelledImages

Difficulty = Literal["easy", "intermediate", "hard"]
"""Long Range Arena's names of the three lengths of paths; later papers take "hard"."""

FOLDERS: dict[str, str] = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}
"""Their folders in the release."""

CLASSES = ("apart", "joined")
"""Of labels 0 and 1."""


def load_pathfinder(
    path: str | Path, *, difficulty: Difficulty = "hard", size: int | None = None
) -> LabelledImages:
    r"""Loads the images of one difficulty, in grey, in the order of the metadata.

    The release has 200,000 a difficulty: ``pathfinder32/curv_contour_length_14/metadata/0.npy`` and
    so on are lines of text (``imgs/0 sample_0.png 0 1 ...``: folder, file, number, label), beside
    ``imgs``. One image of the release is an empty file; such are left out and noted, as in Long
    Range Arena, which then takes 80, 10 and 10 percent to learn from, to select by and to test on,
    in an order of its library's own: split them by ``data.stratified_split`` or ``subset``.

    Args:
        path: The folder of one resolution, such as ``pathfinder32``, one above or below it, or an
            archive of it, see ``load_images``.
        difficulty: Which of the three.
        size: As in ``load_images``.

    Returns:
        The images, of classes "apart" and "joined", C = 1.

    Raises:
        FileNotFoundError: There is nothing.
        OptionError: There is no such difficulty, or the size is out of range.
        ValueError: Pillow is not installed.
        DataFormatError: There is no such tree, or a file is missing, damaged or of another shape;
            names the line of metadata.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp(), "curv_contour_length_14")
        >>> for name in ("metadata", "imgs/0"):
        ...     (folder / name).mkdir(parents=True)
        >>> _ = (folder / "metadata/0.npy").write_text("imgs/0 sample_0.png 0 1 2.1\n")
        >>> Image.new("L", (32, 32)).save(folder / "imgs/0/sample_0.png")
        >>> images = load_pathfinder(folder.parent)
        >>> images.classes, images.labels.tolist(), images.image_shape
        (('apart', 'joined'), [1], (32, 32, 1))
    """
    choice(FOLDERS, difficulty=difficulty)
    at_least(1, LARGEST_SIDE, size=size)
    tree = FileTree(path)
    top, tables = _tables(tree, FOLDERS[difficulty])
    label_of: dict[str, int] = {}
    contents = tree.read_all(tables)
    for table in tables:
        _add_rows(tree, top, table, contents[table], label_of)
    names = [name for name in label_of if tree.sizes[name]]
    if not names:
        raise DataFormatError(
            f"{tree.place(tables[0])}:1: expected a line for each image, got none; {MEND}"
        )
    pixels, notes = decode_images(tree, names, size, "L")
    if empty := len(label_of) - len(names):
        notes = (f"{empty:,} empty image files are left out", *notes)
    labels = np.array([label_of[name] for name in names], np.int32)
    return LabelledImages(f"{tree.name} {difficulty}", CLASSES, labels, pixels, notes)


def _tables(tree: FileTree, folder: str) -> tuple[str, list[str]]:
    """What stands in front of the images' names, and the files of metadata by their numbers."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in tree.sizes:
        parts = (tree.name, *name.split("/"))
        file = parts[-1].removesuffix(".npy")
        if parts[-3:-1] == (folder, "metadata") and file.isascii() and file.isdigit():
            top = name[: len(name) - len(f"metadata/{parts[-1]}")]
            found.setdefault(top, []).append((int(file), name))
    if len(found) != 1:
        got = f"several: {listed(sorted(found))}" if found else "none"
        raise DataFormatError(
            f"{tree.path}: expected the files {folder}/metadata/0.npy and so on of one resolution, "
            f"got {got}; give the path of a folder such as pathfinder32"
        )
    ((top, tables),) = found.items()
    return top, [name for _, name in sorted(tables)]


def _add_rows(
    tree: FileTree, top: str, table: str, content: bytes, label_of: dict[str, int]
) -> None:
    """Reads the lines of a file of metadata."""
    for line, row in enumerate(content.decode("utf-8", "backslashreplace").splitlines(), 1):
        place, cells = f"{tree.place(table)}:{line}", row.split()
        if len(cells) < 4 or cells[3] not in ("0", "1"):
            raise DataFormatError(
                f"{place}: expected a folder, a file, a number and a label 0 or 1, got "
                f"{shown(row)}; {MEND}"
            )
        name = f"{top}{cells[0]}/{cells[1]}"
        if name not in tree.sizes or name in label_of:
            got = "its name again" if name in label_of else "no such file"
            raise DataFormatError(
                f"{place}: expected the image {shown(f'{cells[0]}/{cells[1]}', 80)}, one a line, "
                f"got {got}; fetch the data set again"
            )
        label_of[name] = int(cells[3])
