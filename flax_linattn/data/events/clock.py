"""Dates and times of the day as seconds since 1970-01-01 UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

import numpy as np

from flax_linattn.checks import OptionError, quote
from flax_linattn.data.tables.cells import is_number, parse_time

MAX_TIME = 1e100
"""Maximum magnitude of times, so that their sums and differences are finite."""

_EPOCH = datetime(1970, 1, 1)
_NANOSECONDS = re.compile(r"[.,]\d{6}(\d+)", re.ASCII)
"""Pattern of fractional seconds with more digits than a ``datetime`` can hold."""


class SkippedTimeError(ValueError):
    """A local time that does not exist, because clocks are set forward over it."""


def parse_date(text: str, zone: tzinfo) -> float | None:
    """Parses a date to seconds since 1970-01-01 UTC, float64; None if the text is not a date.

    When clocks are set back, a time in the repeated hour is the first of the two. A date without a
    time is its midnight.

    Args:
        text: ISO 8601, such as ``2016-07-01 00:00:00.25+02:00``, or ``2016/7/1 0:00``.
        zone: Time zone of dates without their own.

    Raises:
        SkippedTimeError: If clocks of the time zone skip this time.

    Example:
        >>> parse_date("1970-01-02 00:00:00.5", UTC), parse_date("1970-01-01T02:00+01:00", UTC)
        (86400.5, 3600.0)
        >>> parse_date("noon", UTC)
    """
    time = parse_time(text)
    if time is None:
        return None
    offset = _offset(time, zone) if time.tzinfo is None else time.utcoffset() or timedelta()
    seconds = (time.replace(tzinfo=None) - _EPOCH - offset).total_seconds()
    if digits := _NANOSECONDS.search(text):
        seconds += int(digits[1][:12]) / 10 ** (6 + len(digits[1][:12]))
    return seconds


def _offset(time: datetime, zone: tzinfo) -> timedelta:
    first = zone.utcoffset(time) or timedelta()
    if first < (zone.utcoffset(time.replace(fold=1)) or timedelta()):
        raise SkippedTimeError(f"clocks of {zone} skip it")
    return first


def format_date(seconds: float) -> str:
    """Formats a time in seconds since 1970-01-01 UTC for messages, as a date if possible.

    Example:
        >>> format_date(86400.5), format_date(1e22)
        ('1970-01-02 00:00:00.500000+00:00', '1e+22')
    """
    try:
        return str((_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=UTC))
    except OverflowError:
        return str(float(seconds))


def parse_bound(
    name: str, value: float | str | None, path: object, zone: tzinfo | None = None
) -> float | None:
    """Parses the start or end of the observation, in the time unit of a file; None if not given.

    Args:
        name: Name of the option, for messages.
        value: A number in that unit, also as a string, or a date.
        path: The file, for messages.
        zone: Time zone of dates; None if the times of the file are numbers.

    Raises:
        TypeError: If ``value`` is neither a number nor a string.
        OptionError: If ``value`` is not finite, or is neither a number nor a date.

    Example:
        >>> parse_bound("begin", "1970-01-02", "a.csv", UTC)
        86400.0
        >>> parse_bound("begin", "1970-01-02", "a.csv")
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: begin must be a number, like the times of a.csv, got ...
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, str, np.number)):
        raise TypeError(f"{name} must be a number or a date string, got {quote(value)}.")
    seconds: float | None = None
    if not isinstance(value, str):
        seconds = float(value) if abs(value) <= MAX_TIME else None
    elif is_number(value):
        seconds = float(value)
    elif zone is None:
        raise OptionError(
            f"{name} must be a number, like the times of {path}, got {quote(value)}.", name
        )
    else:
        try:
            seconds = parse_date(value.strip(), zone)
        except SkippedTimeError as error:
            raise OptionError(
                f"{name} must be an existing local time, got {quote(value)}, but {error}; write it "
                "in UTC, such as 2016-07-01 00:00:00+00:00.",
                name,
            ) from None
    if seconds is None or abs(seconds) > MAX_TIME:
        dates = "" if zone is None else " or a date such as 2016-07-01 00:00:00"
        raise OptionError(
            f"{name} must be a finite number{dates}, at most {MAX_TIME:g}, got {quote(value)}.",
            name,
        )
    return seconds
