"""Loading of texts, one file each, in one folder a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flax_linattn.data.class_folders import Split, find_class_folders
from flax_linattn.data.file_tree import FileTree
from flax_linattn.data.files import DataFormatError
from flax_linattn.data.texts.texts import LabelledTexts

MOST_BYTES = 2**33
"""Of all texts of a data set."""

UNLABELLED = {"unsup": "the texts of unsup, which have no labels, are left out"}
"""Folders beside those of classes: of the Large Movie Review Dataset (aclImdb)."""


def load_texts(path: str | Path) -> tuple[LabelledTexts, LabelledTexts]:
    """Loads texts to learn from, and texts to test on: the exact bytes of the files.

    A tree ``train/CLASS/*.txt`` with ``test/CLASS/*.txt`` (or ``val``) beside, as that of the Large
    Movie Review Dataset (aclImdb, IMDB), in a folder, at its top or below, or in a ``.tar``,
    ``.tar.gz``, ``.tar.xz`` or ``.zip``, which is read without unpacking it to disk. Texts are
    sorted by class and name of file. Hidden files, those of other suffixes, and aclImdb's folder
    ``unsup`` are left out.

    Args:
        path: The folder or the archive.

    Returns:
        The training set and the test set, of the same classes.

    Raises:
        FileNotFoundError: There is nothing.
        DataFormatError: There is no such tree; an archive is damaged; a file is empty; or all take
            more than 8 GiB.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("train/neg/1.txt", "train/pos/1.txt", "test/neg/2.txt", "test/pos/2.txt"):
        ...     (folder / name).parent.mkdir(parents=True)
        ...     _ = (folder / name).write_bytes(f"a {name[6:9]} text".encode())
        >>> train, test = load_texts(folder)
        >>> train.classes, train.labels.tolist(), train.texts[1]
        (('neg', 'pos'), [0, 1], b'a pos text')
    """
    tree = FileTree(path)
    found = find_class_folders(tree, _is_text, "texts", no_class=UNLABELLED)
    names = (*found.train.names, *found.test.names)
    if (needed := sum(tree.sizes[name] for name in names)) > MOST_BYTES:
        raise DataFormatError(
            f"{tree.path}: expected texts of at most {MOST_BYTES:,} bytes, got {needed:,}; take "
            "fewer of them"
        )
    for name in names:
        if not tree.sizes[name]:
            raise DataFormatError(
                f"{tree.place(name)}: expected a text of at least a byte, got an empty file; fetch "
                "the data set again, or take the file away"
            )
    texts = tree.read_all(names)

    def chosen(split: Split) -> LabelledTexts:
        return LabelledTexts(
            tree.name,
            found.classes,
            np.array(split.labels, np.int32),
            tuple(texts[name] for name in split.names),
            found.notes,
        )

    return chosen(found.train), chosen(found.test)


def _is_text(name: str) -> bool:
    return name.lower().endswith(".txt")
