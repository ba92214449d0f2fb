"""Frames of pandas, polars and Arrow to series, and back, by narwhals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np

from flax_linattn.checks import OptionError, choice
from flax_linattn.data.dialect import PLAIN, Dialect
from flax_linattn.data.frame_columns import (
    as_frame,
    load_narwhals,
    numbers_of,
    rows_of,
    times_of,
)
from flax_linattn.data.regular import TimesPolicy, regular
from flax_linattn.data.series import TimeSeries
from flax_linattn.data.unknown import UnknownChannelError


@overload
def from_frame(
    frame: Any,
    *,
    time_column: str = "",
    id_column: None = None,
    channels: Sequence[str] | None = None,
    times: TimesPolicy = "report",
    resample: str = "",
    dialect: Dialect = PLAIN,
    name: str = "frame",
) -> TimeSeries: ...


@overload
def from_frame(
    frame: Any,
    *,
    time_column: str = "",
    id_column: str,
    channels: Sequence[str] | None = None,
    times: TimesPolicy = "report",
    resample: str = "",
    dialect: Dialect = PLAIN,
    name: str = "frame",
) -> tuple[TimeSeries, ...]: ...


def from_frame(
    frame: Any,
    *,
    time_column: str = "",
    id_column: str | None = None,
    channels: Sequence[str] | None = None,
    times: TimesPolicy = "report",
    resample: str = "",
    dialect: Dialect = PLAIN,
    name: str = "frame",
) -> TimeSeries | tuple[TimeSeries, ...]:
    """The series of a frame: pandas, polars, Arrow, or another that narwhals knows.

    A missing value is a null or NaN.

    Args:
        frame: One row a time; with ``id_column`` one row a time and series, as of ``load_long``.
        time_column: The column of times. Default: the index of pandas if it holds times, else the
            only column of dates and times, else the one named date, time or timestamp; none if
            there is neither.
        id_column: The column that names the series of each row.
        channels: The columns to take, in this order. Default: all but ids and times.
        times: As in ``load_table``.
        resample: As in ``load_table``.
        dialect: Of times that are texts or numbers, and what stands for a missing value.
        name: Of the series, if there is no ``id_column``.

    Returns:
        The series, or with ``id_column`` one of each id, in the order of their first rows.

    Raises:
        ValueError: A column is unknown or not of numbers; times fall or are missing; narwhals, the
            extra ``frames``, is not installed.
        TypeError: It is no frame.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"load": [1.0, None, 3.0]},
        ...                      index=pd.date_range("2024-01-01", periods=3, freq="h"))
        >>> series = from_frame(frame)
        >>> series.values.ravel().tolist(), series.freq
        ([1.0, nan, 3.0], 'h')
    """
    several = read_frame(
        frame,
        name,
        id_column or "",
        channels,
        times,
        resample,
        dataclasses.replace(dialect, time_column=time_column or dialect.time_column),
    )
    return several if id_column else several[0]


def read_frame(
    native: Any,
    name: str,
    id_column: str,
    channels: Sequence[str] | None,
    times: TimesPolicy,
    resample: str,
    dialect: Dialect,
) -> tuple[TimeSeries, ...]:
    """The series of a frame, see ``from_frame``; one of this name without ``id_column``."""
    frame = as_frame(native)
    index, used = times_of(frame, name, id_column, dialect)
    names = [column for column in frame.columns if column not in (used, id_column)]
    for column in names if channels is None else channels:
        if column not in names:
            raise UnknownChannelError.of(column, name, [*map(str, names)])
    chosen = names if channels is None else list(channels)
    if not chosen or not len(frame):
        raise ValueError(f"{name}: expected rows and a column of numbers, got {frame.shape}.")
    values = np.stack([numbers_of(frame[column], name, dialect) for column in chosen], axis=1)
    found = []
    for label, rows in rows_of(frame, name, id_column):
        # All rows of an index have its own freq, which knows holidays.
        of = None if index is None else index if len(rows) == len(index) else index[rows]
        one = TimeSeries(label, values[rows], tuple(map(str, chosen)), of)
        if times == "strict" and one.repeated.size:
            row = int(one.repeated[0])
            raise OptionError(
                f"{name}, row {rows[row]}, from 0: expected a time after {one.index[row]}, got it "
                "again; drop repeated rows.",
                "times",
            )
        found.append(one)
    return regular(found, name, times, resample)


def to_frame(
    series: TimeSeries | Sequence[TimeSeries],
    *,
    library: Literal["pandas", "polars", "pyarrow"] = "pandas",
    time_column: str = "time",
    id_column: str = "id",
) -> Any:
    """A frame of one series, or of several below one another.

    Args:
        series: One, or several of the same channels.
        library: Of the frame.
        time_column: Name of the column of times, which is there if the series have times.
        id_column: Name of the column of names, of several series.

    Returns:
        A frame of that library; a missing value is NaN in pandas, and a null in the others.

    Raises:
        ValueError: The series have different channels, some have times and some not, or a library
            is not installed; a channel has the name of another column.

    Example:
        >>> import pandas as pd
        >>> times = pd.date_range("2024-01-01", periods=2)
        >>> series = TimeSeries("x", np.array([[1.0], [2.0]]), ("load",), times)
        >>> to_frame(series, library="polars").columns
        ['time', 'load']
    """
    choice(("pandas", "polars", "pyarrow"), library=library)
    several = [series] if isinstance(series, TimeSeries) else list(series)
    kinds = {(one.channels, one.times is None, one.time_zone) for one in several}
    if len(kinds) != 1:
        raise ValueError(
            "expected series of the same channels, all with times or none, got "
            f"{len(kinds)} kinds; make a frame of each kind."
        )
    ((channels, untimed, zone),) = kinds
    columns: dict[str, Any] = {}
    if not isinstance(series, TimeSeries):
        columns[id_column] = [one.name for one in several for _ in range(one.num_steps)]
    if not untimed:
        stamps = [one.times for one in several if one.times is not None]
        plain = [of if of.tz is None else of.tz_convert(None) for of in stamps]
        columns[time_column] = np.concatenate(plain).astype("M8[us]")
    if twice := columns.keys() & set(channels):
        raise ValueError(f"a channel has the name {twice.pop()!r} of another column; give another.")
    values = np.concatenate([one.values for one in several])
    columns |= dict(zip(channels, values.T, strict=True))
    nw = load_narwhals()
    try:
        frame = nw.from_dict(columns, backend=library)
    except ImportError:
        raise ValueError(f"this takes {library}: pip install {library}.") from None
    if zone is not None:
        in_utc = nw.col(time_column).dt.replace_time_zone("UTC")
        frame = frame.with_columns(in_utc.dt.convert_time_zone(zone))
    if library != "pandas":
        frame = frame.with_columns(nw.col(*channels).fill_nan(None))
    return frame.to_native()
