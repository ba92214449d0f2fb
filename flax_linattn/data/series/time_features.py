"""Calendar features of times, scaled to [-0.5, 0.5], or as points on circles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn.checks import check_choice
from flax_linattn.data.tables.time_index import shortest_step


def calendar_features(times: pd.DatetimeIndex, freq: str) -> tuple[NDArray[np.float32], list[str]]:
    """Computes the calendar features of Time-Series-Library for each time.

    The features depend on the frequency: minute, hour, weekday, day of the month and day of the
    year for rows within an hour; hourly rows have no minute, daily rows no hour; weekly rows have
    day of the month and week, longer steps the month. All are in local time.

    Args:
        times: Times of shape ``[T]``.
        freq: Frequency of the rows, in the notation of ``time_index``.

    Returns:
        Features float32 ``[T, F]``, and the names of the F features.

    Example:
        >>> times = pd.to_datetime(["2016-07-01 00:00", "2016-07-01 23:00"])
        >>> features, names = calendar_features(times, "h")
        >>> names, features[:, 0].tolist()
        (['hour', 'weekday', 'day', 'day of year'], [-0.5, 0.5])
    """
    step = shortest_step(freq)
    names = next(names for min_step, names in _BY_STEP if step >= min_step)
    scaled = [place / (size - 1) - 0.5 for place, size in _places(times, names)]
    return np.stack(scaled, axis=-1).astype(np.float32), list(names)


def calendar_circles(times: pd.DatetimeIndex, names: Sequence[str]) -> NDArray[np.float32]:
    """Computes sine and cosine of the position in the hour, day, week, month or year.

    Positions are points on circles, so hour 23 is next to hour 0, and Sunday next to Monday.

    Args:
        times: Times of shape ``[T]``; the calendar is in local time.
        names: Names of ``CIRCLES``: the position in the year by months ("month"), ISO weeks
            ("week") or days ("day of year"), or in the month ("day").

    Returns:
        Features float32 ``[T, 2 N]``, for each name the sine, then the cosine.

    Raises:
        ValueError: If a name is unknown.

    Example:
        >>> times = pd.to_datetime(["2016-07-01 00:00", "2016-07-01 06:00"])
        >>> calendar_circles(times, ["hour"]).round(3).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    for name in names:
        check_choice(CIRCLES, known_calendar=name)
    turns = [place / size for place, size in _places(times, names)]
    parts = [f(2 * np.pi * turn) for turn in turns for f in (np.sin, np.cos)]
    return np.stack(parts, axis=-1).astype(np.float32) if parts else np.zeros((len(times), 0), "f4")


def _places(times: pd.DatetimeIndex, names: Sequence[str]) -> list[tuple[NDArray[np.int64], int]]:
    """Returns positions of times in parts of the calendar, from 0, and the sizes of the parts."""
    parts = (CIRCLES[name] for name in names)
    return [(place(times).to_numpy(np.int64) - first, size) for size, first, place in parts]


CIRCLES: dict[str, tuple[int, int, Callable[[pd.DatetimeIndex], Any]]] = {
    "minute": (60, 0, lambda times: times.minute),
    "hour": (24, 0, lambda times: times.hour),
    "weekday": (7, 0, lambda times: times.day_of_week),
    "day": (31, 1, lambda times: times.day),
    "day of year": (366, 1, lambda times: times.day_of_year),
    "week": (53, 1, lambda times: times.isocalendar()["week"]),
    "month": (12, 1, lambda times: times.month),
}
"""Parts of the calendar: maximum size, first number, and a function of times."""

_DAY = pd.Timedelta(days=1)
_BY_STEP: tuple[tuple[pd.Timedelta, tuple[str, ...]], ...] = (
    (28 * _DAY, ("month",)),
    (7 * _DAY, ("day", "week")),
    (_DAY, ("weekday", "day", "day of year")),
    (_DAY / 24, ("hour", "weekday", "day", "day of year")),
    (0 * _DAY, ("minute", "hour", "weekday", "day", "day of year")),
)
