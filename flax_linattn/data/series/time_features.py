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

    Only what changes within the time between rows: minute, hour, weekday, day of the month and of
    the year for rows closer than an hour; from hour on for hourly rows; from weekday on for daily
    ones; day of the month and week for weekly ones; the month for rows farther apart. All are of
    local time.

    Args:
        times: Times of shape ``[T]``.
        freq: The frequency of rows, as ``time_index`` writes it.

    Returns:
        float32 ``[T, F]`` and the names of the F features.

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
    """Sine and cosine of where each time stands in its hour, day, week, month or year.

    So the end of each lies beside its begin: hour 23 beside hour 0, Sunday beside Monday.

    Args:
        times: ``[T]``; the calendar is that of local time.
        names: Names of ``CIRCLES``: the position in the year by months ("month"), ISO weeks
            ("week") or days ("day of year"), or in the month ("day").

    Returns:
        float32 ``[T, 2 N]``, the sine of each before its cosine.

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
    """Where times stand in parts of the calendar, from 0, and the sizes of these."""
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
"""Parts of the calendar: how many there are at most, the first number, and those of times."""

_DAY = pd.Timedelta(days=1)
_BY_STEP: tuple[tuple[pd.Timedelta, tuple[str, ...]], ...] = (
    (28 * _DAY, ("month",)),
    (7 * _DAY, ("day", "week")),
    (_DAY, ("weekday", "day", "day of year")),
    (_DAY / 24, ("hour", "weekday", "day", "day of year")),
    (0 * _DAY, ("minute", "hour", "weekday", "day", "day of year")),
)
