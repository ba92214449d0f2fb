"""Readers of CIFAR-10's official files, the binary version and the Python version."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import format_count, itemize, quote
from flax_linattn.data.errors import DataFormatError, report_damage
from flax_linattn.data.files.file_tree import FileTree
from flax_linattn.data.images.images import LabeledImages
from flax_linattn.data.labels import in_order

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
"""Official class names, for folders without the file of names."""

SIDE = 32
_PIXELS = 3 * SIDE * SIDE
_RECORD = 1 + _PIXELS
_OFFICIAL = {"train": 50_000, "test": 10_000}
MAX_PICKLE_SIZE = 2**26
"""Maximum size in bytes of a pickle, about twice that of an official one, and of all its encoded
strings."""

MAX_PICKLE_STEPS = 2**20
"""Maximum number of operations of a pickle; each may create an object. Official files have
60,000."""


def has_cifar10(tree: FileTree) -> bool:
    """Whether a folder or archive has CIFAR-10 files, of either version."""
    return _version(tree) is not None


def read_cifar10(tree: FileTree) -> tuple[LabeledImages, LabeledImages]:
    """Reads ``data_batch_*`` as training data and ``test_batch`` as test data, in file order.

    The binary version's files end in ``.bin``: records of a label and 1024 red, 1024 green and 1024
    blue values. The Python version's are pickles, which cannot execute code: see ``read_pickle``.
    """
    version = _version(tree)
    if version is None:
        raise DataFormatError(f"{tree.path}: expected CIFAR-10's files, got none; check the path")
    top, suffix = version
    batches = sorted(
        (name for name in tree.sizes if _is_batch(name.removeprefix(top), suffix)),
        key=lambda name: int(re.findall(r"[0-9]+", name)[-1]),
    )
    test_batch = f"{top}test_batch{suffix}"
    if test_batch not in tree.sizes:
        raise DataFormatError(
            f"{tree.path}: expected test_batch{suffix} next to {batches[0]}, but it is "
            "missing; fetch the data set again"
        )
    names = _class_names(tree, top, suffix)
    classes = in_order(names)
    position = np.array([classes.index(name) for name in names], np.int32)
    contents = tree.read_all([*batches, test_batch])

    def read(part: str, files: list[str]) -> LabeledImages:
        labels, pixels = [], []
        for name in files:
            place = tree.place(name)
            rows, own = (_from_binary if suffix else _from_pickle)(place, contents.pop(name))
            if own.max() >= len(names):
                raise DataFormatError(
                    f"{place}: expected labels below {len(names)}, the number of classes, got "
                    f"{own.max()}; check that this is the right file"
                )
            labels.append(position[own])
            # Planes of red, green and blue become pixels with their channels last.
            planes = rows.reshape(-1, 3, SIDE, SIDE)
            pixels.append(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)))
        count, official = sum(map(len, labels)), _OFFICIAL[part]
        images = format_count(count, "image")
        note = f"{images} to {part}, where the official data set has {official:,}"
        return LabeledImages(
            tree.name,
            classes,
            np.concatenate(labels),
            np.concatenate(pixels),
            () if count == official else (note,),
        )

    return read("train", batches), read("test", [test_batch])


def _version(tree: FileTree) -> tuple[str, str] | None:
    """Finds the path before the names of the batches, and their suffix; binary files first."""
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


def _class_names(tree: FileTree, top: str, suffix: str) -> tuple[str, ...]:
    """Class names in the order of the labels, as in the file of names."""
    name = f"{top}batches.meta.txt" if suffix else f"{top}batches.meta"
    if name not in tree.sizes:
        return CLASSES
    place, content = tree.place(name), tree.read_all([name], MAX_PICKLE_SIZE)[name]
    if suffix:
        lines = content.decode("utf-8", "backslashreplace").splitlines()
        names = [line.strip() for line in lines if line.strip()]
    else:
        label_names = read_pickle(place, content).get("label_names")
        values = label_names if isinstance(label_names, list) else []
        texts = [v.decode("utf-8", "backslashreplace") if type(v) is bytes else v for v in values]
        names = [text if isinstance(text, str) else "" for text in texts]
    if not names or len(set(names)) < len(names) or not all(names):
        raise DataFormatError(
            f"{place}: expected the distinct names of the classes, got "
            f"{itemize(names, 12) or 'none'}; fetch the data set again, or remove this "
            "file to use CIFAR-10's names"
        )
    return tuple(names)


def _from_binary(place: str, content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Values uint8 [N, 3072] and labels uint8 [N]."""
    if not content or len(content) % _RECORD:
        raise DataFormatError(
            f"{place}: expected records of {_RECORD:,} bytes, a label and {_PIXELS:,} values, got "
            f"{len(content):,} bytes; fetch the file again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    return records[:, 1:], records[:, 0]


def _from_pickle(place: str, content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Values uint8 [N, 3072] and labels uint8 [N]."""
    batch = read_pickle(place, content)
    data: Any = batch.get("data")
    labels: Any = batch.get("labels")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != _PIXELS:
        got = list(data.shape) if isinstance(data, np.ndarray) else type(data).__name__
        raise DataFormatError(
            f"{place}: expected an array uint8 [N, {_PIXELS}] under 'data', got {got}; check that "
            "this is the right file"
        )
    values: list[object] = labels if isinstance(labels, list) else [None]
    is_label = [type(value) is int and 0 <= value < 256 for value in values]
    if len(values) != len(data) or not all(is_label):
        # Its values are not printed: a damaged list may hold itself, or one list very many times.
        got = f"a list of {len(labels):,}" if isinstance(labels, list) else type(labels).__name__
        raise DataFormatError(
            f"{place}: expected a list of {len(data):,} integers from 0 to 255 under "
            f"'labels', got {got}; check that this is the right file"
        )
    if not labels:
        raise DataFormatError(f"{place}: expected images, got none; fetch the file again")
    return data, np.array(labels, np.uint8)


class _Dtype:
    """A dtype on the stack of the unpickler."""

    def __init__(self, code: object) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Ignores byte order and alignment, which have no meaning for bytes."""


class _Array:
    """Array on the stack of the unpickler: always a view of the bytes of the file."""

    values: NDArray[np.uint8] | None = None

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        self._encode = encode

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, content = state
        if not isinstance(dtype, _Dtype) or dtype.code != "u1":
            raise ValueError("an array of something else than u1")
        content = self._encode(content) if isinstance(content, str) else content
        order: Any = "F" if is_fortran else "C"
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order=order)


_PythonUnpickler: Any = vars(pickle)["_Unpickler"]
"""The pure-Python unpickler; the memo of the C version is an array as long as a file requests."""


class _Steps(dict[int, Any]):
    """Dispatch table of an unpickler that limits the number of operations."""

    left = MAX_PICKLE_STEPS

    def __getitem__(self, operation: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"more than {MAX_PICKLE_STEPS:,} operations")
        return super().__getitem__(operation)


class _Unpickler(_PythonUnpickler):
    """An unpickler of plain values and arrays of bytes, which imports and calls nothing else."""

    # Tuples are lists: the hash of one nested deeply, as a key, would end the process.
    dispatch: ClassVar[dict[int, Any]] = _PythonUnpickler.dispatch | {
        pickle.EMPTY_TUPLE[0]: _PythonUnpickler.load_empty_list,
        pickle.TUPLE[0]: _PythonUnpickler.load_list,
        pickle.TUPLE1[0]: lambda self: self.load_short_list(1),
        pickle.TUPLE2[0]: lambda self: self.load_short_list(2),
        pickle.TUPLE3[0]: lambda self: self.load_short_list(3),
    }
    del dispatch[pickle.BYTEARRAY8[0]]  # which is allocated before it is read
    for code in (pickle.EMPTY_SET, pickle.FROZENSET, pickle.ADDITEMS):
        del dispatch[code[0]]  # sets, which take the most memory for a byte of a file
    encoded = 0

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="latin1")
        self.__dict__["dispatch"] = _Steps(type(self).dispatch)

    def encode(self, text: str) -> bytes:
        """Encodes a string that Python 2 wrote as bytes."""
        self.encoded += len(text)
        if self.encoded > MAX_PICKLE_SIZE:
            raise ValueError(f"texts of more than {MAX_PICKLE_SIZE:,} characters")
        return text.encode("latin1")

    def load_short_list(self, length: int) -> None:
        self.stack[-length:] = [self.stack[-length:]]

    def find_class(self, module: str, name: str) -> Any:
        """Returns a new stand-in for a name each time, since a pickle may set its attributes."""
        known: dict[tuple[str, str], Any] = {
            ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(self.encode),
            ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(self.encode),
            ("numpy", "ndarray"): None,  # only passed on
            ("numpy", "dtype"): lambda code, *_: _Dtype(code),
            ("_codecs", "encode"): lambda text, _: self.encode(text),  # bytes for Python 2
        }
        if (module, name) not in known:
            raise ValueError(f"the name {quote(f'{module} {name}', 80)}")
        return known[module, name]


def read_pickle(place: str, content: bytes) -> dict[str, Any]:
    """Reads the dict of a pickle of plain values and uint8 arrays; its keys become strings.

    Example:
        >>> read_pickle("a", pickle.dumps({b"data": np.arange(3, dtype=np.uint8)}, protocol=2))
        {'data': array([0, 1, 2], dtype=uint8)}
        >>> read_pickle("a", pickle.dumps(print, protocol=2))
        Traceback (most recent call last):
        ...
        flax_linattn.data.errors.DataFormatError: a: expected a pickle of plain values and arrays...
    """
    expected = "a pickle of plain values and arrays uint8"
    with report_damage(place, expected, "fetch it again from its official source"):
        if len(content) > MAX_PICKLE_SIZE:
            raise ValueError(f"{len(content):,} bytes, more than {MAX_PICKLE_SIZE:,}")
        batch = _Unpickler(content).load()
        if not isinstance(batch, dict):
            raise ValueError(f"a {type(batch).__name__} instead of a dict")
        return {
            key.decode("latin1") if isinstance(key, bytes) else key: (
                value.values if isinstance(value, _Array) else value
            )
            for key, value in batch.items()
        }
