"""Checks of values, most of them from files, against type annotations."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from flax_linattn.checks import check_choice, quote


def type_hints(kind: type) -> Mapping[str, Any]:
    """The annotations of a class and its bases.

    Example:
        >>> class Size:
        ...     features: "int"
        >>> dict(type_hints(Size))
        {'features': <class 'int'>}
    """
    known: Any = kind
    return _cached_hints(known)


@functools.lru_cache(maxsize=256)  # evaluating annotations is the slowest part of a check
def _cached_hints(kind: Any) -> Mapping[str, Any]:
    return types.MappingProxyType(typing.get_type_hints(kind))


def check_type(hint: Any, **values: Any) -> None:
    """Raises TypeError for values of another type than an annotation.

    Example:
        >>> check_type(int, features="8")
        Traceback (most recent call last):
        ...
        TypeError: features must be an integer, got '8'.
    """
    for name, value in values.items():
        if not fits(value, hint):
            raise TypeError(f"{name} must be {_describe(hint)}, got {quote(value, 200)}.")


def check_types(part: Any) -> None:
    """Raises TypeError for a dataclass with a field of another type than its annotation."""
    for name, hint in type_hints(type(part)).items():
        if hasattr(part, name) and get_origin(hint) is not typing.ClassVar:
            check_type(hint, **{name: getattr(part, name)})


def check_fields(part: Any) -> None:
    """Raises ValueError for options outside their choices, TypeError for wrong types."""
    for name, hint in type_hints(type(part)).items():
        if annotation_origin(hint) is Literal:
            check_choice(get_args(hint), **{name: getattr(part, name)})
        check_type(hint, **{name: getattr(part, name)})


def annotation_origin(hint: Any) -> Any:
    """The class behind an annotation; None of a plain one.

    NumPy's ``NDArray`` is an alias of its own from Python 3.12 on, whose ``get_origin`` is itself.

    Example:
        >>> import numpy as np
        >>> from numpy.typing import NDArray
        >>> annotation_origin(NDArray[np.float64]), annotation_origin(int)
        (<class 'numpy.ndarray'>, None)
    """
    origin = get_origin(hint)
    alias = getattr(hint if origin is None else origin, "__value__", None)
    return origin if alias is None else get_origin(alias) or alias


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has an annotated type: a list passes as a tuple, an integer as a float.

    Other classes are checked by ``isinstance`` only.

    Example:
        >>> fits([1, 2], tuple[int, ...]), fits([1, 2.5], tuple[int, ...]), fits(True, int)
        (True, False, False)
    """
    origin, of = annotation_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return True
    if hint is None:
        return value is None
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in of)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in of)
    if hint is int:
        return not isinstance(value, bool) and isinstance(value, Integral)
    if hint is float:
        return not isinstance(value, bool) and isinstance(value, Real) and _is_float(value)
    if hint is Path:
        return isinstance(value, (Path, str))
    if origin is tuple and of[-1:] != (Ellipsis,):
        return (
            isinstance(value, (list, tuple)) and len(value) == len(of) and all(map(fits, value, of))
        )
    if origin in (tuple, list):
        return isinstance(value, (list, tuple)) and all(fits(item, of[0]) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            fits(key, of[0]) and fits(item, of[1]) for key, item in value.items()
        )
    if typing.is_typeddict(hint):
        hints = type_hints(hint)
        return isinstance(value, Mapping) and all(
            name in value and fits(value[name], part) for name, part in hints.items()
        )
    return isinstance(value, origin or hint)


def _is_float(value: Any) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


_KINDS = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
    None: "null",
    type(None): "null",
}


def _describe(hint: Any) -> str:
    """An annotation in words, for error messages."""
    origin, of = annotation_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_describe, of)))
    if origin is Literal:
        return "one of " + ", ".join(map(str, of))
    if origin in (tuple, list):
        return f"a list, each {_describe(of[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "names and values"
    return _KINDS.get(hint) or f"a {getattr(origin or hint, '__name__', hint)}"
