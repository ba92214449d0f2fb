"""Reader of MNIST's files, and of data sets in the same format, such as Fashion-MNIST."""

from __future__ import annotations

import gzip
import io
import math
import struct
import sys
import zlib

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files.file_tree import FileTree
from flax_linattn.data.files.unpacking import check_unpacked_bytes
from flax_linattn.data.images.images import LabeledImages

PARTS = ("train", "t10k")
"""Prefixes of the names of training and test files."""


def has_idx(tree: FileTree) -> bool:
    """Whether a folder or archive has files in MNIST's format."""
    return any(_find(tree, part, "images", 3) for part in PARTS)


def read_idx(tree: FileTree) -> tuple[LabeledImages, LabeledImages]:
    """Reads training and test images of ``{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]``.

    Classes are named by number, since MNIST's and Fashion-MNIST's files are indistinguishable.
    """
    pairs = [(_read(tree, part, "images", 3), _read(tree, part, "labels", 1)) for part in PARTS]
    for (image_place, images), (label_place, labels) in pairs:
        if len(images) != len(labels):
            raise DataFormatError(
                f"{label_place}: expected {len(images):,} labels, one for each image, got "
                f"{len(labels):,}; fetch both files again"
            )
        if not images.size or images.shape[1:] != pairs[0][0][1].shape[1:]:
            raise DataFormatError(
                f"{image_place}: expected images of one shape, at least one, got "
                f"{list(images.shape)}; fetch the files again"
            )
    num_classes = 1 + max(int(labels.max()) for _, (_, labels) in pairs)
    classes = tuple(map(str, range(num_classes)))
    train, test = (
        LabeledImages(tree.name, classes, labels.astype(np.int32), images[..., None])
        for (_, images), (_, labels) in pairs
    )
    return train, test


def _find(tree: FileTree, part: str, what: str, axes: int) -> str | None:
    """Finds a file, preferring the plain one to ``.gz`` if both exist."""
    for suffix in ("", ".gz"):
        end = f"{part}-{what}-idx{axes}-ubyte{suffix}"
        for name in sorted(tree.sizes, key=lambda name: (name.count("/"), name)):
            if name.rpartition("/")[2] == end:
                return name
    return None


def _read(tree: FileTree, part: str, what: str, axes: int) -> tuple[str, NDArray[np.uint8]]:
    """Reads the array of a file: two zeros, type, number of axes, their lengths, bytes."""
    name = _find(tree, part, what, axes)
    if name is None:
        raise DataFormatError(
            f"{tree.path}: expected {part}-{what}-idx{axes}-ubyte, or the same with "
            ".gz, next to the other three files of the data set, but it is missing; "
            "fetch it too"
        )
    place, content = tree.place(name), tree.read_all([name])[name]
    is_packed, header = name.endswith(".gz"), 4 + 4 * axes
    try:
        with gzip.open(io.BytesIO(content)) if is_packed else io.BytesIO(content) as file:
            start = file.read(header)
            # The type 8 is that of whole numbers of eight bits without a sign.
            if start[:4] != bytes([0, 0, 8, axes]) or len(start) < header:
                raise DataFormatError(
                    f"{place}: expected a file that begins with 00 00 08 {axes:02} and the lengths "
                    f"of {axes} axes, got {start[:4].hex(' ')}; check that this is the right file"
                )
            shape = struct.unpack(f">{axes}I", start[4:])
            size = math.prod(shape)
            if is_packed:
                check_unpacked_bytes(place, size, tree.stored_bytes(name))
            # One more, to find the end and compare the checksum.
            values = file.read(min(size + 1, sys.maxsize))
    except (EOFError, zlib.error, gzip.BadGzipFile, MemoryError) as error:
        raise DataFormatError(
            f"{place}: expected a whole .gz stream, got a damaged or truncated one ({error}); "
            "fetch the file again"
        ) from error
    if len(values) != size:
        got = "more" if len(values) > size else f"{len(values):,}"
        raise DataFormatError(
            f"{place}: expected {size:,} bytes for an array {list(shape)}, got {got}; fetch the "
            "file again"
        )
    return place, np.frombuffer(values, np.uint8).reshape(shape)
