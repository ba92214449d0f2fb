"""Calendar features of times, scaled to [-0.5, 0.5], or as points on circles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import choice

Times = NDArray[np.datetime64]


def calendar_features(times: Times, step: np.timedelta64) -> tuple[NDArray[np.float32], list[str]]:
    """Where each time stands in its hour, day, week, month and year, as Time-Series-Library has it.

    Only what changes within the time between rows: minute, hour, weekday, day of the month and of
    the year for rows closer than an hour; from hour on for hourly rows; from weekday on for daily
    ones; day of the month and week for weekly ones; the month for rows farther apart.

    Args:
        times: datetime64 ``[T]``.
        step: Time between rows.

    Returns:
        float32 ``[T, F]`` and the names of the F features.

    Example:
        >>> times = np.array(["2016-07-01T00:00", "2016-07-01T23:00"], "M8[s]")
        >>> features, names = calendar_features(times, np.timedelta64(1, "h"))
        >>> names, features[:, 0].tolist()
        (['hour', 'weekday', 'day', 'day of year'], [-0.5, 0.5])
    """
    seconds = step / np.timedelta64(1, "s")
    names = next(names for least, names in _BY_STEP if seconds >= least)
    scaled = [_COUNTS[name](times) / (CIRCLES[name] - 1) - 0.5 for name in names]
    return np.stack(scaled, axis=-1).astype(np.float32), list(names)


def calendar_circles(times: Times, names: Sequence[str]) -> NDArray[np.float32]:
    """Sine and cosine of where each time stands in its hour, day, week, month or year.

    So the end of each lies beside its begin: hour 23 beside hour 0, Sunday beside Monday.

    Args:
        times: datetime64 ``[T]``.
        names: Of ``CIRCLES``: where in the year stands "month" by months, "week" by ISO weeks and
            "day of year" by days; "day" stands in the month.

    Returns:
        float32 ``[T, 2 N]``, the sine of each before its cosine.

    Raises:
        ValueError: A name is unknown.

    Example:
        >>> times = np.array(["2016-07-01T00:00", "2016-07-01T06:00"], "M8[s]")
        >>> calendar_circles(times, ["hour"]).round(3).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    for name in names:
        choice(CIRCLES, known_calendar=name)
    turns = [_COUNTS[name](times) / CIRCLES[name] for name in names]
    parts = [f(2 * np.pi * turn) for turn in turns for f in (np.sin, np.cos)]
    return np.stack(parts, axis=-1).astype(np.float32) if parts else np.zeros((len(times), 0), "f4")


def _since(times: Times, unit: str, within: str) -> NDArray[np.int64]:
    """Whole units since the larger one began."""
    begin = times.astype(f"M8[{within}]").astype(times.dtype)
    return (times - begin).astype(f"m8[{unit}]").astype(np.int64)


def _weekday(times: Times) -> NDArray[np.int64]:
    return (times.astype("M8[D]").astype(np.int64) + 3) % 7  # 1970 began on a Thursday


def _week(times: Times) -> NDArray[np.int64]:
    """The ISO week less one: that of the year in which its Thursday lies."""
    to_thursday = (3 - _weekday(times)).astype("m8[D]")
    return _since(times.astype("M8[D]") + to_thursday, "D", "Y") // 7


_COUNTS: dict[str, Callable[[Times], NDArray]] = {
    "minute": lambda times: _since(times, "m", "h"),
    "hour": lambda times: _since(times, "h", "D"),
    "weekday": _weekday,
    "day": lambda times: _since(times.astype("M8[D]"), "D", "M"),
    "day of year": lambda times: _since(times.astype("M8[D]"), "D", "Y"),
    "week": _week,
    "month": lambda times: _since(times.astype("M8[M]"), "M", "Y"),
}
CIRCLES = {
    "minute": 60,
    "hour": 24,
    "weekday": 7,
    "day": 31,
    "day of year": 366,
    "week": 53,
    "month": 12,
}
"""Most of each part of the calendar in the next larger one: its circle."""

_DAY = 86400
_BY_STEP: tuple[tuple[float, tuple[str, ...]], ...] = (
    (28 * _DAY, ("month",)),
    (7 * _DAY, ("day", "week")),
    (_DAY, ("weekday", "day", "day of year")),
    (3600, ("hour", "weekday", "day", "day of year")),
    (0, ("minute", "hour", "weekday", "day", "day of year")),
)
