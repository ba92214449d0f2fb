"""Pickles of plain values and arrays of bytes, which are read and never run.

CIFAR-10's Python version is such files. A pickle is a program for Python's ``pickle``: it may name
any function of any library and call it. Here nothing is given to ``pickle``: its opcodes are read
one by one, and those that build containers, numbers, texts, bytes and arrays of bytes do so. A name
is a mark on a stack, of which five are known; any other name, call or opcode is an error.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import shown
from flax_linattn.data.files import DataFormatError

_VALUES = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    )
)
"""Opcodes of the value that stands behind them; none of them says how much memory to take."""

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

_NAMES = {
    "numpy.core.multiarray _reconstruct": "array",
    "numpy._core.multiarray _reconstruct": "array",
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "bytes",
}
"""What arrays of bytes, and bytes that Python 3 wrote for Python 2, name."""


class _Name(NamedTuple):
    """One of the names, on the stack."""

    name: str


class _Made:
    """What a call would make, an array or a dtype, with the state that it is given."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None


def read_pickle(place: str, content: bytes) -> Any:
    """The value of a pickle: plain containers, numbers, texts, and arrays uint8.

    Args:
        place: The file, for messages.
        content: Its bytes.

    Returns:
        The value. Texts of Python 2 are Latin-1; keys of a dict that are bytes become texts. It is
        not to be printed: a damaged one may hold itself, or one list very many times.

    Raises:
        DataFormatError: It is damaged, or names or holds anything else.

    Example:
        >>> import pickle
        >>> read_pickle("a", pickle.dumps({b"data": np.arange(3, dtype=np.uint8)}, protocol=2))
        {'data': array([0, 1, 2], dtype=uint8)}
        >>> read_pickle("a", pickle.dumps(print, protocol=2))
        Traceback (most recent call last):
        ...
        flax_linattn.data.files.DataFormatError: a: expected a pickle of plain values and arrays...
    """
    try:
        value = _value(content)
        if isinstance(value, dict):
            return {_key(key): _plain(part) for key, part in value.items()}
        return _plain(value)
    except Exception as error:  # what a damaged one may raise, here and in genops, is no short list
        raise DataFormatError(
            f"{place}: expected a pickle of plain values and arrays uint8, got a damaged one, or "
            f"another kind of file ({shown(error, 100)}); fetch it again from its official source"
        ) from error


def _value(content: bytes) -> Any:
    """What the opcodes build."""
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stacks under each mark
    memory: dict[int, Any] = {}
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memory[int(argument or 0)] = stack[-1]
        elif name == "MEMOIZE":
            memory[len(memory)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memory[int(argument or 0)])
        elif name in _TUPLES:
            stack.append(tuple(_taken(stack, _TUPLES[name])))
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "MARK":
            below.append(stack)
            stack = []
        elif name in ("TUPLE", "LIST", "DICT", "POP_MARK", "APPENDS", "SETITEMS"):
            items, stack = stack, below.pop()
            _take_items(name, stack, items)
        elif name == "APPEND":
            _list(stack[-2]).append(stack.pop())
        elif name == "SETITEM":
            _set_items(stack[-3], _taken(stack, 2))
        elif name == "POP":
            stack.pop()
        elif name == "GLOBAL":
            stack.append(_known(str(argument)))
        elif name == "STACK_GLOBAL":
            stack.append(_known(" ".join(_taken(stack, 2))))
        elif name == "REDUCE":
            stack.append(_called(*_taken(stack, 2)))
        elif name == "BUILD":
            state = stack.pop()
            if not isinstance(stack[-1], _Made):
                raise ValueError("a state of what is no array")
            stack[-1].state = state
        elif name == "STOP":
            (value,) = stack
            return value
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"the opcode {name}")
    raise ValueError("its end is missing")


def _taken(stack: list[Any], number: int) -> list[Any]:
    """The last so many values, which leave the stack."""
    if len(stack) < number:
        raise ValueError("too few values")
    taken = stack[len(stack) - number :]
    del stack[len(stack) - number :]
    return taken


def _take_items(name: str, stack: list[Any], items: list[Any]) -> None:
    """What is done with the values above a mark."""
    if name == "TUPLE":
        stack.append(tuple(items))
    elif name == "LIST":
        stack.append(items)
    elif name == "DICT":
        stack.append({})
        _set_items(stack[-1], items)
    elif name == "APPENDS":
        _list(stack[-1]).extend(items)
    elif name == "SETITEMS":
        _set_items(stack[-1], items)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("values for what is no list")
    return value


def _set_items(value: Any, items: list[Any]) -> None:
    """Keys are texts, bytes or numbers: one of tuples in tuples is a way to end the process."""
    if not isinstance(value, dict) or len(items) % 2:
        raise ValueError("keys and values for what is no dict")
    for key, part in _pairs(items):
        if not isinstance(key, (str, bytes, int)):
            raise ValueError(f"a key that is a {type(key).__name__}")
        value[key] = part


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(items[::2], items[1::2], strict=True)


def _known(name: str) -> _Name:
    if name not in _NAMES:
        raise ValueError(f"the name {shown(name, 80)}")
    return _Name(_NAMES[name])


def _called(function: Any, arguments: Any) -> Any:
    """The bytes or what stands for an array or a dtype; nothing else is called."""
    if not isinstance(function, _Name) or not isinstance(arguments, tuple):
        raise ValueError("a call of what is no name")
    if function.name == "bytes":
        text, encoding = arguments
        if encoding != "latin1" or not isinstance(text, str):
            raise ValueError("a text that is no bytes")
        return text.encode("latin1")
    if function.name == "ndarray":
        raise ValueError("an array that is made in another way")
    return _Made(function.name, arguments)


def _key(key: Any) -> Any:
    return key.decode("latin1") if isinstance(key, bytes) else key


def _plain(value: Any) -> Any:
    """The value, or the array that it stands for."""
    if isinstance(value, _Name):
        raise ValueError("a name instead of a value")
    return _array(value) if isinstance(value, _Made) else value


def _array(made: _Made) -> NDArray[np.uint8]:
    _, shape, dtype, fortran, data = made.state
    if made.name != "array" or not isinstance(dtype, _Made) or dtype.name != "dtype":
        raise ValueError("something else than an array")
    if dtype.arguments[0] != "u1":
        raise ValueError("an array of something else than u1")
    data = data.encode("latin1") if isinstance(data, str) else data
    if len(shape) > 8 or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("an array of a shape that is none")
    if not isinstance(data, bytes) or len(data) != math.prod(shape):
        raise ValueError(f"an array {[*shape]} of another number of bytes")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")
