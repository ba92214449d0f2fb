"""``LabeledTexts``, labeled texts as bytes, and its reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files.class_folders import Split, find_class_folders
from flax_linattn.data.files.file_tree import FileTree
from flax_linattn.data.labels import LabeledExamples, check_classes, check_labels


@dataclass(frozen=True, eq=False)
class LabeledTexts(LabeledExamples):
    """Labeled texts of different lengths; each text is the bytes of a file.

    Attributes:
        name: The data set's name.
        classes: The class names, in the order of ``data.labels.in_order``, or in that of text.
        labels: Indices into ``classes``, int32 ``[N]``.
        texts: N strings of at least one byte.
        notes: Notes on the texts.

    Raises:
        ValueError: If the parts do not match.
        TypeError: If a text is not bytes.

    Example:
        >>> texts = LabeledTexts("toy", ("neg", "pos"), np.array([1, 0], np.int32),
        ...                       (b"good", b"not so good"))
        >>> texts.num_examples, texts.lengths.tolist()
        (2, [4, 11])
    """

    name: str
    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    texts: tuple[bytes, ...]
    notes: tuple[str, ...] = ()
    _examples: ClassVar[str] = "texts"

    def __post_init__(self) -> None:
        check_labels(self.labels, len(self.texts), self.classes)
        check_classes(self.classes)
        for index, text in enumerate(self.texts):
            if not isinstance(text, bytes):
                raise TypeError(
                    f"expected text {index} as bytes, got {type(text).__name__}; encode it, say by "
                    'text.encode("utf-8")'
                )
            if not text:
                raise ValueError(
                    f"expected texts of at least a byte, got none in text {index}; drop it"
                )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each text, int64 ``[N]``."""
        return np.array([len(text) for text in self.texts], np.int64)

    def map(self, change: Callable[[bytes], bytes]) -> LabeledTexts:
        """Returns the same examples with every text changed, such as by ``taylorshift_bytes``.

        Example:
            >>> texts = LabeledTexts("toy", ("a",), np.zeros(1, np.int32), (b"Good",))
            >>> texts.map(bytes.lower).texts
            (b'good',)
        """
        return replace(self, texts=tuple(change(text) for text in self.texts))


MAX_BYTES = 2**33
"""Maximum size in bytes of all texts of a data set."""

UNLABELED = {"unsup": "the texts of unsup, which have no labels, are left out"}
"""Folders without classes, in the Large Movie Review Dataset (aclImdb)."""


def load_texts(path: str | Path) -> tuple[LabeledTexts, LabeledTexts]:
    """Loads training and test texts, the exact bytes of files.

    The files are ``train/CLASS/*.txt`` and ``test/CLASS/*.txt`` (or ``val``), as in the Large Movie
    Review Dataset (aclImdb, IMDB), in a folder, at its top or below, or in a ``.tar``, ``.tar.gz``,
    ``.tar.xz`` or ``.zip``, which is read without unpacking to disk. Texts are sorted by class and
    file name. Hidden files, files with other suffixes, and aclImdb's folder ``unsup`` are skipped.

    Args:
        path: The folder or the archive.

    Returns:
        Training set and test set, with the same classes.

    Raises:
        FileNotFoundError: If ``path`` does not exist.
        DataFormatError: If there is no such tree, an archive is damaged, a file is empty, or all
            take more than 8 GiB.

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
    folders = find_class_folders(
        tree, lambda name: name.lower().endswith(".txt"), "texts", no_class=UNLABELED
    )
    names = (*folders.train.names, *folders.test.names)
    if (needed := sum(tree.sizes[name] for name in names)) > MAX_BYTES:
        raise DataFormatError(
            f"{tree.path}: expected texts of at most {MAX_BYTES:,} bytes, got {needed:,}; take "
            "fewer of them"
        )
    for name in names:
        if not tree.sizes[name]:
            raise DataFormatError(
                f"{tree.place(name)}: expected a text of at least a byte, got an empty file; fetch "
                "the data set again, or take the file away"
            )
    texts = tree.read_all(names)

    def chosen(split: Split) -> LabeledTexts:
        return LabeledTexts(
            tree.name,
            folders.classes,
            np.array(split.labels, np.int32),
            tuple(texts[name] for name in split.names),
            folders.notes,
        )

    return chosen(folders.train), chosen(folders.test)
