"""Images in one folder per class, and Tiny ImageNet, whose validation labels are in a file."""

from __future__ import annotations

from collections.abc import Collection

from flax_linattn.checks import itemize, quote
from flax_linattn.data.errors import REPAIR_ADVICE, DataFormatError
from flax_linattn.data.files.class_folders import (
    ClassFolders,
    about_others,
    files_by_class,
    find_class_folders,
    make_split,
)
from flax_linattn.data.files.file_tree import FileTree
from flax_linattn.data.images.decode import is_image
from flax_linattn.data.labels import in_order

ANNOTATIONS = "val/val_annotations.txt"
"""Tiny ImageNet's annotations: one line per image with name, class and box, separated by tabs."""

MAX_ANNOTATION_BYTES = 2**26
"""Maximum size in bytes of that file; each byte may be a line, which takes 50 bytes of memory."""


def find_image_folders(tree: FileTree) -> ClassFolders:
    """Finds the images of each class in a tree; see ``find_class_folders``."""
    tops = [
        name.removesuffix(ANNOTATIONS)
        for name in tree.sizes
        if f"/{name}".endswith(f"/{ANNOTATIONS}")
    ]
    if len(tops) == 1:
        return _tiny_imagenet(tree, tops[0])
    return find_class_folders(tree, is_image, "images")


def _tiny_imagenet(tree: FileTree, top: str) -> ClassFolders:
    """Returns the images of ``val`` with the classes of the annotations."""
    images = [name for name in tree.sizes if is_image(name)]
    train = files_by_class(images, f"{top}train/")
    if not train:
        raise DataFormatError(
            f"{tree.place(top + 'train')}: expected a folder for each class with images in it, got "
            "none; fetch the data set again"
        )
    label_of = _annotations(tree, top, train)
    by_class: dict[str, list[str]] = {}
    for name, label in label_of.items():
        by_class.setdefault(label, []).append(name)
    classes = in_order(train)
    notes = ["tested on the images of val, because the images of test have no labels"]
    if missing := [name for name in classes if name not in by_class]:
        notes.append(f"no images of {itemize(missing, 10)} to test on")
    in_val = sum(name.startswith(f"{top}val/images/") for name in images)
    if in_val > len(label_of):
        notes.append(f"images of val without labels, left out: {in_val - len(label_of):,}")
    return ClassFolders(
        classes,
        make_split(train, classes),
        make_split(by_class, classes),
        (*notes, *about_others(tree, len(images), "images")),
    )


def _annotations(tree: FileTree, top: str, train: Collection[str]) -> dict[str, str]:
    """Reads the class of each image of ``val``."""
    annotations, place = f"{top}{ANNOTATIONS}", tree.place(f"{top}{ANNOTATIONS}")
    text = tree.read_all([annotations], MAX_ANNOTATION_BYTES)[annotations].decode(
        "utf-8", "backslashreplace"
    )
    labels: dict[str, str] = {}
    for line, row in enumerate(text.splitlines(), 1):
        file, *rest = row.split("\t")
        name = f"{top}val/images/{file}"
        if not rest or rest[0] not in train:
            got = quote(rest[0]) if rest else f"the line {quote(row)}"
            raise DataFormatError(
                f"{place}:{line}: expected the name of an image, a tab and a class of "
                f"{itemize(sorted(train), 3)}, got {got}; {REPAIR_ADVICE}"
            )
        if name not in tree.sizes or not is_image(name) or name in labels:
            got = f"{quote(file)} again" if name in labels else f"no {quote(file)} there"
            raise DataFormatError(
                f"{place}:{line}: expected an image in val/images, one a line, got {got}; fetch "
                "the data set again"
            )
        labels[name] = rest[0]
    if not labels:
        raise DataFormatError(
            f"{place}:1: expected a line for each image, got none; {REPAIR_ADVICE}"
        )
    return labels
