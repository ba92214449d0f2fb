"""Trees of one folder per class: ``train/CLASS/file``, and ``test`` or ``val``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flax_linattn.checks import itemize, quote
from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files.file_tree import ARCHIVES, FileTree
from flax_linattn.data.labels import in_order

TRAIN = "train"
TESTS = ("test", "val", "valid", "validation")
"""Names of test folders; the first one that has the classes of ``train`` is used."""


class Split(NamedTuple):
    """Files of a training or a test set.

    Attributes:
        names: File names; in a tree, sorted by class, then by name.
        labels: Index of the class of each file.
    """

    names: tuple[str, ...]
    labels: tuple[int, ...]


class ClassFolders(NamedTuple):
    """The labeled files of a tree of folders.

    Attributes:
        classes: Class names in sorted order, see ``data.labels.in_order``.
        train: Training part.
        test: Test part.
        notes: Notes on the folder or archive.
    """

    classes: tuple[str, ...]
    train: Split
    test: Split
    notes: tuple[str, ...]


def find_class_folders(
    tree: FileTree,
    wanted: Callable[[str], bool],
    kind: str,
    *,
    no_class: Mapping[str, str] | None = None,
) -> ClassFolders:
    """Finds the files of each class, at any depth below the folder of the class.

    ``train`` may be below other folders, as in an archive with one top-level folder. ``wanted``
    selects file names, and ``kind`` names these files in messages; folders of ``no_class`` are
    skipped with a note.
    """
    no_class = no_class or {}
    files = [name for name in tree.sizes if wanted(name)]
    top = _top(tree, files, kind)
    notes = []
    parts = {part: files_by_class(files, f"{top}{part}/") for part in (TRAIN, *TESTS)}
    in_classes = sum(len(names) for part in parts.values() for names in part.values())
    for part in parts.values():
        for name in sorted(set(part) & set(no_class)):
            notes.append(no_class[name])
            del part[name]
    train = parts.pop(TRAIN)
    if not train:
        raise DataFormatError(
            f"{tree.place(top + TRAIN)}: expected a folder for each class with {kind} in it, got "
            f"none; put the {kind} of each class into a folder of its own"
        )
    classes = in_order(train)
    of_same = [part for part in parts if parts[part] and set(parts[part]) <= set(train)]
    if not of_same:
        raise DataFormatError(_differ(tree, top, kind, classes, parts))
    chosen = of_same[0]
    others = [part for part in parts if parts[part] and part != chosen]
    test = parts[chosen]
    if chosen != TESTS[0]:
        notes.append(f"tested on the {kind} of {chosen}")
    notes += [f"the {kind} of {part} are left out" for part in others]
    if missing := [name for name in classes if name not in test]:
        notes.append(f"no {kind} of {itemize(missing, 10)} to test on")
    if len(files) > in_classes:
        notes.append(
            f"{kind} outside of the folders of classes, left out: {len(files) - in_classes:,}"
        )
    notes += about_others(tree, len(files), kind)
    return ClassFolders(
        classes, make_split(train, classes), make_split(test, classes), (*dict.fromkeys(notes),)
    )


def about_others(tree: FileTree, num_wanted: int, kind: str) -> list[str]:
    """Adds notes on skipped files of other kinds, and on skipped links of an archive."""
    others = len(tree.sizes) - num_wanted
    notes = [f"files that are no {kind}, left out: {others:,}"] if others else []
    return notes + ([f"links in the archive, left out: {tree.links:,}"] if tree.links else [])


def _top(tree: FileTree, files: Sequence[str], kind: str) -> str:
    """Returns the path of the parent of ``train``: "", or a path that ends with "/"."""
    tops = {
        "/".join(parts[:place]) + "/" * bool(place)
        for parts in (name.split("/")[:-1] for name in files)
        for place in range(len(parts))
        if parts[place] == TRAIN
    }
    shortest = sorted(tops, key=lambda top: (top.count("/"), top))
    same_depth = [top for top in shortest if top.count("/") == shortest[0].count("/")]
    if len(same_depth) == 1:
        return same_depth[0]
    folders = sorted({"/".join(name.split("/")[:2]) for name in files})
    got = f"several: {itemize(same_depth, 10)}" if tops else f"{itemize(folders, 10) or 'none'}"
    archives = [name for name in tree.sizes if name.endswith(ARCHIVES)]
    hint = f", or of an archive, such as {quote(archives[0], 80)[1:-1]}" if archives else ""
    raise DataFormatError(
        f"{tree.path}: expected {kind} in folders train/CLASS and test/CLASS (or val/CLASS), got "
        f"{got}; name the folders so, or give the path of one data set{hint}"
    )


def files_by_class(files: Sequence[str], prefix: str) -> dict[str, list[str]]:
    """Groups the files below a folder by the folder of their class; skips other files."""
    by_class: dict[str, list[str]] = {}
    for name in files:
        label, slash, _ = name.removeprefix(prefix).partition("/")
        if name.startswith(prefix) and slash:
            by_class.setdefault(label, []).append(name)
    return by_class


def make_split(by_class: Mapping[str, Sequence[str]], classes: Sequence[str]) -> Split:
    """Returns files with their labels, sorted by class, then by name."""
    pairs = [
        (name, label)
        for label, of_class in enumerate(classes)
        for name in sorted(by_class.get(of_class, ()))
    ]
    return Split(tuple(name for name, _ in pairs), tuple(label for _, label in pairs))


def _differ(
    tree: FileTree,
    top: str,
    kind: str,
    classes: Sequence[str],
    parts: Mapping[str, Mapping[str, object]],
) -> str:
    """Returns the error message if there is no test folder."""
    for part, labels in parts.items():
        if unknown := sorted(set(labels) - set(classes)):
            return (
                f"{tree.place(top + part)}: expected the classes of {TRAIN}, got "
                f"{itemize([quote(name)[1:-1] for name in unknown], 10)} besides; sort the {kind} "
                f"into the folders of {itemize(classes, 10)}"
            )
    return (
        f"{tree.place(top + TRAIN)}: expected {kind} to test on, in folders test/CLASS "
        f"or val/CLASS, got none; move a part of the {kind} into test"
    )
