"""CIFAR-10's official files: the binary version and the Python version."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import listed
from flax_linattn.data.file_tree import FileTree
from flax_linattn.data.files import DataFormatError
from flax_linattn.data.images.images import LabelledImages
from flax_linattn.data.images.pickles import read_pickle
from flax_linattn.data.labels import in_order

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
"""The official names, where the file that has them is missing."""

SIDE = 32
_PIXELS = 3 * SIDE * SIDE
_RECORD = 1 + _PIXELS
_OFFICIAL = {"train": 50_000, "test": 10_000}


def has_cifar10(tree: FileTree) -> bool:
    """Whether there are such files, of either version."""
    return _version(tree) is not None


def read_cifar10(tree: FileTree) -> tuple[LabelledImages, LabelledImages]:
    """Reads ``data_batch_*`` to learn from and ``test_batch`` to test on, in the files' order.

    The binary version's files end in ``.bin``: records of a label and 1024 red, 1024 green and 1024
    blue values. The Python version's are pickles, which are parsed and never run: see
    ``pickles.read_pickle``. The notes say where images are fewer than the official ones.

    Raises:
        DataFormatError: A file is missing or damaged.
    """
    found = _version(tree)
    if found is None:
        raise DataFormatError(f"{tree.path}: expected CIFAR-10's files, got none; check the path")
    top, suffix = found
    batches = sorted(
        (name for name in tree.sizes if _is_batch(name.removeprefix(top), suffix)), key=_number
    )
    test_batch = f"{top}test_batch{suffix}"
    if test_batch not in tree.sizes:
        raise DataFormatError(
            f"{tree.path}: expected test_batch{suffix} beside {batches[0]}, got none; fetch the "
            "data set again"
        )
    names = _class_names(tree, top, suffix)
    contents = tree.read_all([*batches, test_batch])
    read = _from_binary if suffix else _from_pickle
    arrays = {
        part: [read(tree.place(name), contents.pop(name)) for name in files]
        for part, files in (("train", batches), ("test", [test_batch]))
    }
    for part, files in (("train", batches), ("test", [test_batch])):
        for (labels, _), name in zip(arrays[part], files, strict=True):
            if labels.max(initial=0) >= len(names):
                raise DataFormatError(
                    f"{tree.place(name)}: expected labels below {len(names)}, the number of "
                    f"classes, got {labels.max()}; check that this is the right file"
                )
    classes = in_order(names)
    position = np.array([classes.index(name) for name in names], np.int32)
    train, test = (
        LabelledImages(
            tree.name,
            classes,
            position[np.concatenate([labels for labels, _ in arrays[part]])],
            np.concatenate([pixels for _, pixels in arrays[part]]),
            _notes(part, sum(len(labels) for labels, _ in arrays[part])),
        )
        for part in _OFFICIAL
    )
    return train, test


def _version(tree: FileTree) -> tuple[str, str] | None:
    """What stands in front of the names of the batches, and their suffix; binary files first."""
    for suffix in (".bin", ""):
        tops = {
            name[: len(name) - len(base)]
            for name in tree.sizes
            if _is_batch(base := name.rpartition("/")[2], suffix)
        }
        if tops:
            return min(tops, key=lambda top: (top.count("/"), top)), suffix
    return None


def _is_batch(name: str, suffix: str) -> bool:
    return re.fullmatch(rf"data_batch_[0-9]{{1,3}}{re.escape(suffix)}", name) is not None


def _number(name: str) -> int:
    return int(re.findall(r"[0-9]+", name)[-1])


def _notes(part: str, number: int) -> tuple[str, ...]:
    official = _OFFICIAL[part]
    if number == official:
        return ()
    return (f"{number:,} images to {part}, where the official data set has {official:,}",)


def _class_names(tree: FileTree, top: str, suffix: str) -> tuple[str, ...]:
    """The names by label, in the order of the file that has them."""
    name = f"{top}batches.meta.txt" if suffix else f"{top}batches.meta"
    if name not in tree.sizes:
        return CLASSES
    place, content = tree.place(name), tree.read_all([name])[name]
    if suffix:
        lines = content.decode("utf-8", "backslashreplace").splitlines()
        names = [line.strip() for line in lines if line.strip()]
    else:
        found = read_pickle(place, content)
        kept = found.get("label_names") if isinstance(found, dict) else None
        names = [] if not isinstance(kept, list) else [_text(value) for value in kept]
    if not names or len(set(names)) < len(names) or not all(names):
        raise DataFormatError(
            f"{place}: expected the distinct names of the classes, got "
            f"{listed(names, 12) or 'none'}; fetch the data set again, or take this file away: "
            "classes have CIFAR-10's names then"
        )
    return tuple(names)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, str) else ""


def _from_binary(place: str, content: bytes) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    if not content or len(content) % _RECORD:
        raise DataFormatError(
            f"{place}: expected records of {_RECORD:,} bytes, a label and {_PIXELS:,} values, got "
            f"{len(content):,} bytes; fetch the file again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    return records[:, 0].astype(np.int32), _as_images(records[:, 1:])


def _from_pickle(place: str, content: bytes) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    found = read_pickle(place, content)
    data = found.get("data") if isinstance(found, dict) else None
    labels = found.get("labels") if isinstance(found, dict) else None
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != _PIXELS:
        got = list(data.shape) if isinstance(data, np.ndarray) else type(data).__name__
        raise DataFormatError(
            f"{place}: expected an array uint8 [N, {_PIXELS}] under 'data', got {got}; check that "
            "this is the right file"
        )
    if not isinstance(labels, list) or not _are_labels(labels) or len(labels) != len(data):
        raise DataFormatError(
            f"{place}: expected a list of {len(data):,} whole numbers from 0 to 255 under "
            f"'labels', got {_told(labels)}; check that this is the right file"
        )
    if not labels:
        raise DataFormatError(f"{place}: expected images, got none; fetch the file again")
    return np.array(labels, np.int32), _as_images(data)


def _told(labels: object) -> str:
    """What labels are, for a message; a value of a pickle is not printed, see ``read_pickle``."""
    return f"a list of {len(labels):,}" if isinstance(labels, list) else type(labels).__name__


def _are_labels(values: Sequence[object]) -> bool:
    return all(type(value) is int and 0 <= value < 256 for value in values)


def _as_images(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Planes of red, green and blue as pixels with their channels last, in memory of their own."""
    planes = rows.reshape(-1, 3, SIDE, SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
