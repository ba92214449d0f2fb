"""Times at one distance: series that lack them are refused, or brought to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

from flax_linattn.checks import OptionError, shown
from flax_linattn.data.files import DataFormatError
from flax_linattn.data.series import TimeSeries

TimesPolicy: TypeAlias = Literal["report", "strict", "irregular"]
"""What is done with times that repeat or do not follow."""

MOST_IRREGULAR = 0.5
"""Share of rows that may not follow the one before at the usual distance.

Working days have a gap every fifth row and every holiday; times that two series share, without the
column that tells them apart, repeat in every second.
"""
_MOST_VALUES = 10**8
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MONDAY = np.datetime64("1970-01-05", "s")
"""Where intervals begin to be counted, so that weeks begin on Mondays."""


def resample(series: TimeSeries, every: str) -> TimeSeries:
    """Means within intervals of one length, each at the time at which its interval begins.

    Intervals begin with the minute, hour, day or week (Monday), of UTC where times are in UTC.
    Missing values are left out of the means; an interval without any value is a missing one.

    Args:
        series: With times.
        every: The length: a number of ``s``, ``min``, ``h``, ``d`` or ``w``, such as ``15min``.

    Raises:
        ValueError: The length is something else, or the series has no times; there would be more
            than 100 million values.

    Example:
        >>> times = np.array(["2024-01-01T00:10", "2024-01-01T00:50", "2024-01-01T02:20"], "M8[s]")
        >>> series = resample(TimeSeries("x", np.array([[1.0], [2.0], [5.0]]), ("x",), times), "1h")
        >>> series.values.ravel().tolist(), str(series.times[-1])
        ([1.5, nan, 5.0], '2024-01-01T02:00:00')
    """
    step = _parse(every)
    if series.times is None:
        raise OptionError(
            f"{series.name}: resample needs rows with times, got none; name their column with "
            "time_column=..., or leave resample out.",
            "resample",
            "time_column",
        )
    place = (series.times - _MONDAY) // step
    number = int(place[-1] - place[0]) + 1
    if number * len(series.channels) > _MOST_VALUES:
        raise OptionError(
            f"{series.name}: {number:,} intervals of {every} are more than fit; give a longer one.",
            "resample",
        )
    begins = np.flatnonzero(np.r_[True, np.diff(place) > 0])
    known = ~np.isnan(series.values)
    counts = np.add.reduceat(known, begins, axis=0, dtype=np.int64)
    filled, counted = np.where(known, series.values, 0.0), np.maximum(counts, 1)
    with np.errstate(over="ignore"):
        means = np.add.reduceat(filled, begins, axis=0) / counted
    if np.isinf(means).any():  # the sum of values near the largest float64
        shares = filled / np.repeat(counted, np.diff(np.r_[begins, len(place)]), axis=0)
        means = np.add.reduceat(shares, begins, axis=0)
    values = np.full((number, len(series.channels)), np.nan)
    values[place[begins] - place[0]] = np.where(counts > 0, means, np.nan)
    times = _MONDAY + (place[0] + np.arange(number)) * step
    return replace(series, values=values, times=times, lines=None)


def regular(
    all_series: Sequence[TimeSeries], source: str, times: TimesPolicy, every: str
) -> tuple[TimeSeries, ...]:
    """Series as they were read, or resampled; refuses those whose times are mostly irregular.

    Args:
        all_series: Of one file or frame.
        source: What that is, for the message.
        times: "irregular" takes rows in order, whatever their times.
        every: As of ``resample``; "" leaves rows as they are.

    Raises:
        DataFormatError: More than ``MOST_IRREGULAR`` of the rows do not follow the one before at
            the usual distance of their series.
    """
    if every:
        return tuple(resample(series, every) for series in all_series)
    odd = [np.union1d(series.repeated, series.gaps) for series in all_series]
    number = sum(map(len, odd))
    steps = sum(series.num_steps - 1 for series in all_series if series.times is not None)
    if times == "irregular" or number <= MOST_IRREGULAR * steps:
        return tuple(all_series)
    series, row = next(
        (s, int(rows[0])) for s, rows in zip(all_series, odd, strict=True) if len(rows)
    )
    usual = "" if series.step is None else f", the usual one being {series.step}"
    place = f", {series.place(row)}" if series.lines is None else f":{series.lines[row]}"
    raise DataFormatError(
        f"{source}{place}: expected rows at one distance in time, got {number:,} of {steps:,} that "
        f"do not follow so{usual}; take means over intervals, with resample='1h' or the like, or "
        "rows in order, whatever their times, with times='irregular'; where the file holds several "
        "series, name the column that tells them apart, with id_column=...",
        "resample",
        "times",
        "id_column",
    )


def _parse(every: str) -> np.timedelta64:
    match = re.fullmatch(r"(\d{1,9}) ?(s|min|h|d|w)", every.strip().lower())
    if match is None or int(match[1]) == 0:
        raise OptionError(
            "resample must be a number of s, min, h, d or w, such as 15min or 1h, got "
            f"{shown(every)}.",
            "resample",
        )
    return np.timedelta64(int(match[1]) * _SECONDS[match[2]], "s")
