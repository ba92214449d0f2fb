"""Resampling of series to equal time steps, and the check that their steps are equal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from flax_linattn.checks import OptionError
from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.series.series import TimeSeries
from flax_linattn.data.tables.dialect import TimesPolicy
from flax_linattn.data.tables.time_index import parse_offset, shortest_step

MAX_IRREGULAR_FRACTION = 0.5
"""Maximum fraction of irregular rows, which are not one step after the previous row.

Hourly rows of business days have a gap every night; rows of two series without an id column have a
repeated time in every second row.
"""
_MAX_VALUES = 10**8
_MONDAY = pd.Timestamp("1970-01-05")
"""Origin of the intervals, a Monday, so that weeks begin on Mondays."""
_DAY = pd.Timedelta(days=1)
_WEEKS = re.compile(r"(\d*) ?[wW]")


def resample(series: TimeSeries, every: str) -> TimeSeries:
    """Computes means within intervals of a frequency, like ``pandas.DataFrame.resample``.

    Intervals are in local time. Intervals of seconds, minutes, hours, days and weeks (``1w``) are
    labeled by their start, weeks by Monday; others as in pandas, so ``ME`` and ``W-SUN`` by their
    last day. Missing values are excluded from the means; an interval without values is a missing
    value.

    Args:
        series: A series with times.
        every: A frequency of pandas, such as ``15min``, ``D`` or ``MS``.

    Raises:
        ValueError: If the frequency is invalid, the series has no times, or there would be more
            than 100 million values.

    Example:
        >>> times = pd.to_datetime(["2024-01-01 00:10", "2024-01-01 00:50", "2024-01-01 02:20"])
        >>> series = resample(TimeSeries("x", np.array([[1.0], [2.0], [5.0]]), ("x",), times), "1h")
        >>> series.values.ravel().tolist(), str(series.index[-1])
        ([1.5, nan, 5.0], '2024-01-01 02:00:00')
    """
    weeks = _WEEKS.fullmatch(every.strip())
    offset = parse_offset(f"{7 * int(weeks[1] or 1)}D" if weeks else every, "resample")
    times = series.times
    if times is None:
        raise OptionError(
            f"{series.name}: resample needs rows with dates and times, got "
            f"{'integers' if series.has_integer_times else 'none'}; name their column with "
            "time_column=..., read years as dates with date_format='%Y', or leave resample out.",
            "resample",
            "time_column",
            "date_format",
        )
    number = int((times[-1] - times[0]) / shortest_step(offset.freqstr)) + 1
    if number * len(series.channels) > _MAX_VALUES:
        raise OptionError(
            f"{series.name}: {number:,} intervals of {every} are too many; pass a longer interval.",
            "resample",
        )
    # The sum of values near the largest float64 would overflow.
    scale = 2.0**64 if np.nanmax(np.abs(series.values), initial=0.0) > 1e300 else 1.0
    zone, clock = times.tz, times
    if isinstance(offset, pd.offsets.Day):  # whose origin pandas 3 does not take
        offset, clock = pd.offsets.Hour(24 * offset.n), times.tz_localize(None)
    options: dict[str, Any] = {}
    if isinstance(offset, pd.offsets.Tick) and _DAY % pd.Timedelta(offset):
        options = {"origin": _MONDAY.tz_localize(clock.tz)}
    means = pd.DataFrame(series.values / scale, clock).resample(offset, **options).mean()
    index = pd.DatetimeIndex(means.index, freq=None)
    if index.tz is None and zone is not None:
        first = np.ones(len(index), np.bool_)  # of two equal clock times
        index = index.tz_localize(zone, ambiguous=first, nonexistent="shift_forward")
    return replace(series, values=means.to_numpy() * scale, index=index, lines=None, freq=None)


def apply_times_policy(
    all_series: Sequence[TimeSeries], source: str, times: TimesPolicy, every: str
) -> tuple[TimeSeries, ...]:
    """Resamples series if requested; raises an error if times are mostly irregular.

    ``times="irregular"`` accepts all times; ``every`` is the interval of ``resample``.
    """
    if every:
        return tuple(resample(series, every) for series in all_series)
    number = sum(series.num_irregular for series in all_series)
    steps = sum(series.num_steps - 1 for series in all_series)
    if times == "irregular" or number <= MAX_IRREGULAR_FRACTION * steps:
        return tuple(all_series)
    series = next(series for series in all_series if series.num_irregular)
    row = int(min((*series.repeated, *series.gaps)))
    usual = "" if series.step is None else f" from the usual one, {series.step}"
    means = "take means over intervals, with resample='1h' or the like, or take "
    means = "take " if series.times is None else means
    place = f", {series.place(row)}" if series.lines is None else f":{series.lines[row]}"
    raise DataFormatError(
        f"{source}{place}: expected a constant step between rows, got {number:,} of {steps:,} "
        f"steps that differ{usual}; {means}rows in order, whatever their times, with "
        "times='irregular'; if the file holds several series, name the column that identifies "
        "them with id_column=...",
        *(["resample"] if series.times is not None else []),
        "times",
        "id_column",
    )
