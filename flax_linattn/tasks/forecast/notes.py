"""What of a series deserves a second look before a run is trained on it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import listed
from flax_linattn.data.outliers import find_outliers, find_still

SHOWN = 3
"""Places of a note."""


def notes(series: data.TimeSeries, stop: int) -> list[str]:
    """Repeated and missing times, missing values, channels that hardly change, outliers.

    Args:
        series: as it was read, with a value in each channel.
        stop: the first row that no part of the split has.
    """
    found = []
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
        what = f"channels that never change ({listed(still)}), to leave out of the targets"
        found.append(f"{what}: {len(still)}")
    if few := _nearly_still(series, stop):
        found.append(f"channels of one value but for a few rows ({listed(few)}): {len(few)}")
    if outliers := _outliers(series, stop):
        found.append(
            "values so far out that they flatten all others of their channel: "
            f"{len(outliers)} ({listed(outliers, SHOWN)}); leave the cell empty where one stands "
            "for a missing value"
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


def _outliers(series: data.TimeSeries, stop: int) -> list[str]:
    """Those of the rows before ``stop``, with their places."""
    return [
        f"{series.channels[channel]!r} {series.values[row, channel]:g}, {series.place(row)}"
        for row, channel in find_outliers(series.values[:stop]).tolist()
    ]
