"""What of a series deserves a second look before a run is trained on it."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import listed
from flax_linattn.data.outliers import find_outliers, find_still
from flax_linattn.data.suspects import DEVIATIONS, find_codes, find_far

SHOWN = 3
"""Places of a note."""


def notes(series: data.TimeSeries, stop: int) -> list[str]:
    """What is told of times, of missing values and what may stand for them, and of outliers.

    Args:
        series: as it was read, with a value in each channel.
        stop: the first row that no part of the split has.
    """
    found = []
    if series.utc and series.times is not None:
        found.append(f"times and the calendar are in UTC, the first {series.times[0]}")
    if (rows := series.repeated).size:
        found.append(f"rows of the time of the row before: {_counted(series, rows)}")
    if (rows := series.gaps).size:
        found.append(f"rows that do not follow after {series.step}: {_counted(series, rows)}")
    if series.num_missing:
        what = "missing values, which take the last known one and are not tested on"
        found.append(f"{what}: {series.num_missing}")
    still = [
        name
        for name, values in zip(series.channels, series.values.T, strict=True)
        if np.nanmin(values) == np.nanmax(values)
    ]
    if still:
        what = f"channels that never change ({listed(still)}), of no use as targets"
        found.append(f"{what}: {len(still)}")
    codes = find_codes(series.values[:stop])
    if codes:
        places = [
            f"{series.channels[code.channel]!r} {code.value:g} {len(code.rows)} times, first in "
            f"{series.place(int(code.rows[0]))}"
            for code in codes
        ]
        found.append(
            f"values that repeat, apart from all others: {len(codes)} ({listed(places, SHOWN)}); "
            "say so with missing_values where one stands for a missing value"
        )
        values = series.values.copy()
        for code in codes:
            values[code.rows, code.channel] = np.nan
        series = dataclasses.replace(series, values=values)
    if few := _nearly_still(series, stop):
        found.append(f"channels of one value but for a few rows ({listed(few)}): {len(few)}")
    flat = find_outliers(series.values[:stop])
    flattened = {tuple(place) for place in flat.tolist()}
    far = [p for p in find_far(series.values[:stop]).tolist() if tuple(p) not in flattened]
    for what, outliers in (
        ("so far out that they flatten all others of their channel", flat.tolist()),
        (f"more than {DEVIATIONS:g} deviations from the median of their channel", far),
    ):
        if outliers:
            found.append(
                f"values {what}: {len(outliers)} ({listed(_places(series, outliers), SHOWN)}); "
                "leave the cell empty where one stands for a missing value"
            )
    return found


def _counted(series: data.TimeSeries, rows: NDArray[np.int64]) -> str:
    """How many rows, and where and when the first are."""
    times = series.times
    assert times is not None
    places = [
        f"{series.place(row)}, {times[row]} after {times[row - 1]}" for row in rows[:SHOWN].tolist()
    ]
    places += ["..."] * (len(rows) > SHOWN)
    return f"{len(rows)} ({'; '.join(places)}); they are taken in order"


def _nearly_still(series: data.TimeSeries, stop: int) -> list[str]:
    """Those of the rows before ``stop``, with the place of their first other value."""
    return [
        f"{series.channels[found.channel]!r} {found.value:g} but for {len(found.rows)}, the first "
        f"{series.values[found.rows[0], found.channel]:g}, {series.place(int(found.rows[0]))}"
        for found in find_still(series.values[:stop])
    ]


def _places(series: data.TimeSeries, outliers: list[list[int]]) -> list[str]:
    """Values by their rows and channels."""
    return [
        f"{series.channels[channel]!r} {series.values[row, channel]:g}, {series.place(row)}"
        for row, channel in outliers
    ]
