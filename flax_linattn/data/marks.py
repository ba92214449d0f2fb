"""Calendar features of times, scaled to [-0.5, 0.5]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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
    scaled = [_FEATURES[name](times) - 0.5 for name in names]
    return np.stack(scaled, axis=-1).astype(np.float32), list(names)


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


_FEATURES: dict[str, Callable[[Times], NDArray]] = {
    "minute": lambda times: _since(times, "m", "h") / 59,
    "hour": lambda times: _since(times, "h", "D") / 23,
    "weekday": lambda times: _weekday(times) / 6,
    "day": lambda times: _since(times.astype("M8[D]"), "D", "M") / 30,
    "day of year": lambda times: _since(times.astype("M8[D]"), "D", "Y") / 365,
    "week": lambda times: _week(times) / 52,
    "month": lambda times: _since(times.astype("M8[M]"), "M", "Y") / 11,
}

_DAY = 86400
_BY_STEP: tuple[tuple[float, tuple[str, ...]], ...] = (
    (28 * _DAY, ("month",)),
    (7 * _DAY, ("day", "week")),
    (_DAY, ("weekday", "day", "day of year")),
    (3600, ("hour", "weekday", "day", "day of year")),
    (0, ("minute", "hour", "weekday", "day", "day of year")),
)
