"""Begin and end of the observation, as a user gives them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from flax_linattn.checks import OptionError, shown
from flax_linattn.data.cells import is_number
from flax_linattn.data.events.clock import Clock, SkippedTimeError
from flax_linattn.data.events.gather import LARGEST_TIME


def read_bound(
    name: str, value: float | str | None, path: Path, clock: Clock | None = None
) -> float | None:
    """A begin or an end in the unit of the times of a file.

    Args:
        name: Of the option, for messages.
        value: A number in that unit, also as text, or a date; None is none.
        path: The file, for messages.
        clock: Reads dates; None where the times of the file are numbers.

    Raises:
        TypeError: It is neither a number nor a text.
        OptionError: It is not finite, or no such text.

    Example:
        >>> read_bound("begin", "1970-01-02", Path("a.csv"), Clock())
        86400.0
        >>> read_bound("begin", "1970-01-02", Path("a.csv"))
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: begin must be a number, as the times of a.csv are, got ...
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, str, np.number)):
        raise TypeError(f"{name} must be a number or a date as text, got {shown(value)}.")
    seconds: float | None
    if not isinstance(value, str):
        seconds = _float(value)
    elif is_number(value):
        seconds = float(value)
    elif clock is None:
        raise OptionError(
            f"{name} must be a number, as the times of {path} are, got {shown(value)}.", name
        )
    else:
        seconds = _date(name, value, clock)
    if seconds is None or not abs(seconds) <= LARGEST_TIME:
        dates = "" if clock is None else " or a date such as 2016-07-01 00:00:00"
        raise OptionError(
            f"{name} must be a finite number{dates}, at most {LARGEST_TIME:g}, got {shown(value)}.",
            name,
        )
    return seconds


def _float(value: float | np.number) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _date(name: str, text: str, clock: Clock) -> float | None:
    try:
        return clock.seconds(text.strip())
    except SkippedTimeError as error:
        raise OptionError(
            f"{name} must be a time that there is, got {shown(text)}, but {error}; give it in "
            "UTC, as 2016-07-01 00:00:00+00:00.",
            name,
        ) from None
