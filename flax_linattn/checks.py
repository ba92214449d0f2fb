"""Checks of arguments, and the error of an invalid option."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Sequence, Sized
from numbers import Integral
from typing import Any

from flax_linattn.terminal import escape_controls

__all__ = ["OptionError"]

MAX_INTEGER = 2**32 - 1
"""Maximum of integers that have no smaller maximum."""
MAX_SEED = 2**128 - 1
"""Maximum seed of NumPy's generators, which keep 128 bits."""


class OptionError(ValueError):
    """An invalid value of an option, or values of several options that conflict.

    The message is in terms of Python. ``options`` name the options concerned, so that a program
    with its own spelling, such as a command line, can add its names without parsing the text;
    ``values`` are values that would be accepted.

    Args:
        message: What was expected, what was found, and what to do.
        *options: Names of arguments or fields, such as "batch_size".
        **values: Further options, each with a value that would be accepted.

    Example:
        >>> error = OptionError("12 rows do not go over 8 devices.", "batch_size", mesh="data=4")
        >>> str(error), error.options, error.values
        ('12 rows do not go over 8 devices.', ('batch_size', 'mesh'), {'mesh': 'data=4'})
    """

    def __init__(self, message: str, *options: str, **values: bool | str) -> None:
        super().__init__(escape_controls(message))  # it may quote a file
        self.options = tuple(dict.fromkeys((*options, *values)))
        self.values = values


def check_integers(minimum: int, maximum: int = MAX_INTEGER, /, **numbers: int | None) -> None:
    """Refuses numbers that are not integers in a range; accepts None for "not given".

    The default maximum prevents a typing error from costing memory or hours.

    Example:
        >>> check_integers(1, chunk_size=0)
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: chunk_size must be at least 1, got 0.
    """
    for name, value in numbers.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name} must be an integer, got {quote(value)}.")
        if value < minimum:
            raise OptionError(f"{name} must be at least {minimum}, got {quote(value)}.", name)
        if value > maximum:
            raise OptionError(f"{name} must be at most {maximum}, got {quote(value)}.", name)


def check_positive(**numbers: float) -> None:
    """Refuses zero, negative numbers and NaN.

    Example:
        >>> check_positive(learning_rate=0.0)
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: learning_rate must be positive, got 0.0.
    """
    for name, value in numbers.items():
        if not value > 0:
            raise OptionError(f"{name} must be positive, got {value}.", name)


def check_rate(**numbers: float) -> None:
    """Refuses dropout rates outside [0, 1).

    Example:
        >>> check_rate(dropout_rate=1.0)
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: dropout_rate must be in [0, 1), got 1.0.
    """
    for name, value in numbers.items():
        if not 0 <= value < 1:
            raise OptionError(f"{name} must be in [0, 1), got {value}.", name)


def check_choice(choices: Iterable[str], **values: str) -> None:
    """Refuses values that are not among the choices, and names the nearest choice.

    Example:
        >>> check_choice(["gelu", "relu"], unit="glu")
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: unit must be one of gelu, relu, got 'glu'; did you mean...
    """
    choices = list(choices)
    for name, value in values.items():
        if value not in choices:
            raise OptionError(
                f"{name} must be one of {', '.join(choices)}, got {value!r}"
                f"{suggest(str(value), choices)}",
                name,
            )


def suggest(name: str, known: Iterable[str], otherwise: str = ".") -> str:
    """Ends a message about an unknown name: with the nearest known name, or with ``otherwise``.

    Example:
        >>> suggest("glu", ["gelu", "relu"]), suggest("x", ["gelu", "relu"])
        ("; did you mean 'gelu'?", '.')
    """
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else otherwise


def check_array(layout: str, **arrays: Any) -> None:
    """Refuses values that are not arrays, such as lists, and names the axes of the layout.

    Example:
        >>> check_array("[B, T, C]", x=[[1.0]])
        Traceback (most recent call last):
        ...
        TypeError: expected x as an array [B, T, C], got list; convert it with jnp.asarray.
    """
    for name, value in arrays.items():
        if not hasattr(value, "ndim"):
            raise TypeError(
                f"expected {name} as an array {layout}, got {type(value).__name__}; convert it "
                "with jnp.asarray."
            )


def check_same_length(**sequences: Sized) -> None:
    """Refuses sequences of different lengths."""
    lengths = {name: len(sequence) for name, sequence in sequences.items()}
    if len(set(lengths.values())) > 1:
        numbers = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        raise ValueError(f"expected sequences of the same length, got {numbers}.")


def quote(value: Any, max_length: int = 40) -> str:
    """A value for a message, cut off: strings in quotes, the text of errors, else its ``repr``.

    Control characters are escaped, so that text of a file cannot command a terminal.

    Example:
        >>> quote("0.25,0.5,0.75", 8), quote([1, 2], 4), quote(ValueError("too few."))
        ("'0.25,0.5...'", '[1, ...', 'too few.')
    """
    if isinstance(value, str):
        return repr(_cut(value, max_length))
    try:
        is_error = isinstance(value, BaseException)
        text = str(value) or type(value).__name__ if is_error else repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list as deep
        text = f"a very large {type(value).__name__}"
    return escape_controls(_cut(text, max_length))


def format_count(number: int, noun: str) -> str:
    """A number with the singular or plural of a noun.

    Example:
        >>> format_count(1, "step"), format_count(1200, "step")
        ('1 step', '1,200 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def itemize(names: Sequence[str], max_items: int = 20) -> str:
    """The first ``max_items`` names for a message, cut off if long, and the number of others.

    Example:
        >>> itemize(["a", "b", "c", "d"], max_items=2)
        'a, b and 2 more'
    """
    more = f" and {len(names) - max_items:,} more" if len(names) > max_items else ""
    return escape_controls(", ".join(_cut(name, 80) for name in names[:max_items])) + more


def format_bytes(count: float) -> str:
    """A number of bytes in GB, MB or kB, to three digits.

    Example:
        >>> format_bytes(2**30), format_bytes(1500), format_bytes(64)
        ('1.07 GB', '1.5 kB', '64 bytes')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.3g} {unit}"
    return f"{count:.0f} bytes"


def _cut(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else f"{text[:max_length]}..."


def import_extra(module: str, message: str, *options: str) -> Any:
    """Imports an optional dependency; where it is missing, raises OptionError with the message.

    Example:
        >>> import_extra("nothing_of_this_name", "playing takes nothing: pip install nothing")
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: playing takes nothing: pip install nothing
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise OptionError(message, *options) from None
