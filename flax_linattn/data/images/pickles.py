"""Pickles of plain values and arrays of bytes, in which nothing can be named or called.

CIFAR-10's Python version is such files.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import shown
from flax_linattn.data.files import report_damage

_OPCODES = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "GLOBAL", "STACK_GLOBAL"),
    *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
    *("FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("EMPTY_TUPLE", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "REDUCE", "BUILD"),
    *("PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET", "MEMOIZE"),
)
"""None of them takes memory for what is not in the file."""
_VALUES = (type(None), int, float, str, bytes, list, tuple, dict)


class _Name:
    """A name on the stack, which may be called; without attributes, so that nothing sets one."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    def __call__(self, *arguments: Any) -> Any:
        return self.make(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise ValueError("a state of what is no array")


class _Dtype:
    def __init__(self, code: object, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Ignores byte order and alignment, which bytes do not have."""


class _Array:
    values: NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or dtype.code != "u1":
            raise ValueError("an array of something else than u1")
        data = data.encode("latin1") if isinstance(data, str) else data
        if len(shape) > 8 or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError("an array of a shape that is none")
        if not isinstance(data, bytes) or len(data) != math.prod(shape):
            raise ValueError(f"an array {[*shape]} of another number of bytes")
        order: Any = "F" if fortran else "C"
        self.values = np.frombuffer(data, np.uint8).reshape(shape, order=order)


def _encode(text: str, encoding: object) -> bytes:
    if encoding != "latin1":
        raise ValueError("a text that is no bytes")
    return text.encode("latin1")


_NAMES: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): lambda *_: None,  # only passed on
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,  # bytes that Python 3 wrote for Python 2
}


_InPython: Any = vars(pickle)["_Unpickler"]
"""Python's unpickler in Python. That in C takes memory by the numbers in a file: its memo is an
array."""


class _Unpickler(_InPython):
    """Python's unpickler, restricted to the opcodes and names of plain values and arrays."""

    dispatch = {  # noqa: RUF012
        code[0]: _InPython.dispatch[code[0]]
        for code in (getattr(pickle, name) for name in _OPCODES)
    }

    def find_class(self, module: str, name: str) -> _Name:
        if (module, name) not in _NAMES:
            raise ValueError(f"the name {shown(f'{module} {name}', 80)}")
        return _Name(_NAMES[module, name])

    def _set_items(self, items: list[Any]) -> None:
        """Keys are texts, bytes or numbers: a tuple of tuples of tuples ends the process."""
        if not isinstance(self.stack[-1], dict) or len(items) % 2:
            raise ValueError("keys and values for what is no dict")
        if not all(isinstance(key, (str, bytes, int)) for key in items[::2]):
            raise ValueError("a key that is neither text nor number")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set_items(items)

    def _load_item(self) -> None:
        value = self.stack.pop()
        self._set_items([self.stack.pop(), value])

    def _load_items(self) -> None:
        self._set_items(self.pop_mark())

    dispatch |= {
        pickle.DICT[0]: _load_dict,
        pickle.SETITEM[0]: _load_item,
        pickle.SETITEMS[0]: _load_items,
    }


def read_pickle(place: str, content: bytes) -> Any:
    """The value of a pickle: plain containers, numbers, texts, and arrays uint8.

    A pickle is a program for Python's ``pickle``: it may name any function of any library and call
    it. Here five names are known, each of which stands for a few lines of this file; any other
    name, and any opcode that builds something else, is an error.

    Args:
        place: The file, for messages.
        content: Its bytes.

    Returns:
        The value. Texts of Python 2 are Latin-1; keys of a dict that are bytes become texts. It is
        not to be printed: a damaged one may hold itself, or one list very many times.

    Raises:
        DataFormatError: It is damaged, or names or holds anything else.

    Example:
        >>> read_pickle("a", pickle.dumps({b"data": np.arange(3, dtype=np.uint8)}, protocol=2))
        {'data': array([0, 1, 2], dtype=uint8)}
        >>> read_pickle("a", pickle.dumps(print, protocol=2))
        Traceback (most recent call last):
        ...
        flax_linattn.data.files.DataFormatError: a: expected a pickle of plain values and arrays...
    """
    expected = "a pickle of plain values and arrays uint8"
    with report_damage(place, expected, "fetch it again from its official source"):
        value = _Unpickler(io.BytesIO(content), encoding="latin1").load()
        if not isinstance(value, dict):
            return _plain(value)
        return {
            key.decode("latin1") if isinstance(key, bytes) else key: _plain(part)
            for key, part in value.items()
        }


def _plain(value: Any) -> Any:
    """The value, or the array that it stands for."""
    if isinstance(value, _Array):
        return value.values
    if not isinstance(value, _VALUES):
        raise ValueError("a name instead of a value")
    return value
