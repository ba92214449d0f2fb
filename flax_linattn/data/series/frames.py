"""Conversion of data frames to time series, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import narwhals as nw
import numpy as np
import pandas as pd
import pyarrow as pa

from flax_linattn.checks import check_choice
from flax_linattn.data.errors import DataFormatError, printed
from flax_linattn.data.series.columns import (
    check_order,
    choose_channels,
    find_clock,
    find_id,
    find_named,
    find_times,
    group_rows,
    read_numbers,
    read_times,
    time_error,
)
from flax_linattn.data.series.resampling import apply_times_policy
from flax_linattn.data.series.series import TimeSeries
from flax_linattn.data.tables.dialect import PLAIN, Dialect, TimesPolicy
from flax_linattn.data.tables.tables import Table, frame_of_arrow, index_to_columns
from flax_linattn.data.tables.times import BadTimeError, localize

NIXTLA_ID, NIXTLA_TIME = "unique_id", "ds"
"""Columns that identify a panel, as in Nixtla's libraries."""


def from_frame(
    frame: Any,
    *,
    time_column: str | Sequence[str] = "",
    id_column: str | None = None,
    channels: Sequence[str] | None = None,
    times: TimesPolicy = "report",
    resample: str = "",
    dialect: Dialect = PLAIN,
    name: str = "frame",
    sort: bool = False,
) -> TimeSeries | tuple[TimeSeries, ...]:
    """Converts a frame to series: pandas, polars, Arrow, or others that narwhals supports.

    Times keep their time zone; periods and integers of an index are kept. A missing value is a null
    or NaN.

    Args:
        frame: Data frame with one row for each time, or with ids for each time and series, as in
            ``load_long``. Columns named ``unique_id`` and ``ds`` hold ids and times; so do the two
            levels of a pandas index.
        time_column: Column of times, or two columns of dates and times of day. Default: the index
            of pandas, unless it only numbers the rows; else the only column of dates and times;
            else as in a file, see ``load_series``.
        id_column: The column that names the series of each row.
        channels: Columns to read, in this order. Default: all except ids and times.
        times: As in ``load_series``.
        resample: As in ``load_series``.
        dialect: Format of times that are strings or numbers, and of missing values.
        name: Name of the series, if there are no ids.
        sort: Whether to sort the rows of each series by time; otherwise decreasing times are an
            error.

    Returns:
        The series; with ids a tuple with one series per id, in the order of the first rows.

    Raises:
        ValueError: If a column is unknown or not numeric, or times decrease or are missing.
        TypeError: If ``frame`` is not a data frame.

    Example:
        >>> frame = pd.DataFrame({"load": [1.0, None, 3.0]},
        ...                      index=pd.date_range("2024-01-01", periods=3, freq="h"))
        >>> series = from_frame(frame)
        >>> series.values.ravel().tolist(), series.freq
        ([1.0, nan, 3.0], 'h')
    """
    if time_column:
        named = time_column if isinstance(time_column, str) else tuple(time_column)
        dialect = replace(dialect, time_column=named)
    pandas = to_pandas_frame(frame)
    if pandas.index.nlevels == 2:
        id_name, time_name = (
            str(level if level is not None else default)
            for level, default in zip(pandas.index.names, ("id", "time"), strict=True)
        )
        pandas = pandas.reset_index(names=[id_name, time_name])
        id_column = id_column or id_name
        dialect = replace(dialect, time_column=dialect.time_column or time_name)
    else:
        levels = {id_column or NIXTLA_ID, *dialect.time_columns}
        pandas = index_to_columns(pandas, levels)
    table = Table(pandas, name)
    id_column = id_column or default_id(table.names)
    panel = table_to_series(table, name, id_column, channels, times, resample, dialect, sort)
    return panel if id_column else panel[0]


def to_pandas_frame(frame: Any) -> pd.DataFrame:
    """Converts a frame of any supported library to pandas."""
    if isinstance(frame, pd.DataFrame):
        return frame
    try:
        return frame_of_arrow(nw.from_native(frame, eager_only=True).to_arrow())
    except TypeError:
        raise TypeError(
            f"expected a frame of pandas, polars or Arrow, got {type(frame).__name__}; collect a "
            "lazy one first."
        ) from None


def default_id(names: Sequence[str]) -> str:
    """Returns the id column of a table with the columns of Nixtla's libraries; else ""."""
    return NIXTLA_ID if {NIXTLA_ID, NIXTLA_TIME} <= set(names) else ""


def table_to_series(
    table: Table,
    name: str,
    id_column: str,
    channels: Sequence[str] | None,
    times: TimesPolicy,
    resample: str,
    dialect: Dialect,
    sort: bool = False,
) -> tuple[TimeSeries, ...]:
    """Converts a table to series, see ``from_frame``; without ``id_column`` to a single one."""
    check_choice(get_args(TimesPolicy), times=times)
    if id_column == NIXTLA_ID == default_id(table.names) and not dialect.time_column:
        dialect = replace(dialect, time_column=NIXTLA_TIME)
    try:
        panel = _read(table, name, id_column, channels, times, dialect, sort)
        return apply_times_policy(panel, table.source, times, resample)
    except DataFormatError as error:
        what, *_ = str(error).split("; ")  # what else may be done is the less likely
        if pair := find_clock(table, dialect, id_column):
            raise DataFormatError(
                f"{what}; if column {pair[1]!r} holds the times of the day, join it with the "
                f"dates, with time_column={pair}",
                "time_column",
            ) from None
        other = "" if id_column or not table.has_header else find_id(table, dialect)
        if not other:
            raise
        raise DataFormatError(
            f"{what}; times rise for each value of column {other!r} alone: if it names several "
            f"series, give id_column={other!r}",
            "id_column",
            id_column=other,
        ) from None


def _read(
    table: Table,
    name: str,
    id_column: str,
    channels: Sequence[str] | None,
    times: TimesPolicy,
    dialect: Dialect,
    sort: bool,
) -> list[TimeSeries]:
    frame = table.frame
    if table.has_header and "" in table.names:
        raise table.error(
            None,
            "a name for each column",
            f"none for column {table.names.index('') + 1}",
            "name it, or drop it (pandas: to_csv(..., index=False))",
        )
    of_id = find_named(table, id_column, "id_column") if id_column else None
    of_times = find_times(table, dialect, of_id, channels)
    rest = [i for i in range(frame.shape[1]) if i not in (of_id, *of_times)]
    if not rest or not len(frame):
        raise table.error(
            0 if len(frame) else None,
            "rows with a column of numbers in addition to times and ids",
            f"{len(frame)} rows of {printed(table.names)}",
            "add one, or say what separates columns, with separator=...",
            "separator",
        )
    names = [table.names[i] for i in rest] if table.has_header else [*map(str, range(len(rest)))]
    at = dict(zip(names, rest, strict=True))
    chosen = [at[channel] for channel in choose_channels(table, names, channels)]
    index = read_times(table, of_times, dialect, keep=of_id is None)
    values = read_numbers(table, chosen, dialect)
    panel: list[TimeSeries] = []
    alike: dict[bytes, TimeSeries] = {}  # the series of a panel often have the same times
    for label, rows in group_rows(table, of_id):
        whole = len(rows) == len(frame)
        lines = None if table.lines is None else table.lines[rows]
        own = index if whole or index is None else index[rows]
        key = b"" if own is None or whole or sort else own.astype(np.int64).to_numpy().tobytes()
        if key in alike:
            panel.append(replace(alike[key], name=label, values=values[rows], lines=lines))
            continue
        if dialect.timezone and isinstance(own, pd.DatetimeIndex) and own.tz is None:
            try:
                own = localize(own, dialect.timezone)
            except BadTimeError as bad:
                raise time_error(table, bad, int(rows[bad.row])) from None
        if sort and own is not None:
            order = np.argsort(own, kind="stable")
            rows, own, whole = rows[order], own[order], False
        check_order(table, own, rows, times, of_times)
        panel.append(
            TimeSeries(
                name if of_id is None else label,
                values if whole else values[rows],
                tuple(names if channels is None else map(str, channels)),
                own,
                lines,
            )
        )
        if key:
            alike[key] = panel[-1]
    return panel


def to_frame(
    series: TimeSeries | Sequence[TimeSeries],
    *,
    library: Literal["pandas", "polars", "pyarrow"] = "pandas",
    time_column: str = "",
    id_column: str = "id",
) -> Any:
    """Converts one series, or several concatenated ones, to a data frame.

    Args:
        series: One series, or a sequence of series with the same channels.
        library: Library of the returned frame.
        time_column: Name of the column of times, if the series have times, or integers such as
            years. Default: the name of the index, or "time".
        id_column: Name of the column of series names, for several series.

    Returns:
        A frame of that library; a missing value is NaN in pandas, and a null in the others.

    Raises:
        ValueError: If the series have different channels, only some have times, a channel has the
            name of another column, or a library is not installed.

    Example:
        >>> times = pd.date_range("2024-01-01", periods=2)
        >>> series = TimeSeries("x", np.array([[1.0], [2.0]]), ("load",), times)
        >>> to_frame(series, library="polars").columns
        ['time', 'load']
    """
    check_choice(("pandas", "polars", "pyarrow"), library=library)
    panel = [series] if isinstance(series, TimeSeries) else list(series)
    indices = [one.row_times for one in panel]
    kinds = {
        (one.channels, one.time_zone, None if index is None else index.dtype.kind)
        for one, index in zip(panel, indices, strict=True)
    }
    if len(kinds) != 1:
        raise ValueError(
            "expected series with the same channels and with times of the same time "
            f"zone, or all without, got {len(kinds)} kinds; create a separate frame for "
            "each kind."
        )
    ((channels, _, time_kind),) = kinds
    columns: dict[str, Any] = {}
    if not isinstance(series, TimeSeries):
        columns[id_column] = [one.name for one in panel for _ in range(one.num_steps)]
    if time_kind is not None:
        first, *others = [index for index in indices if index is not None]
        columns[time_column or panel[0].time_name or "time"] = first.append(others)
    if twice := columns.keys() & set(channels):
        raise ValueError(f"a channel has the name {twice.pop()!r} of another column; give another.")
    values = np.concatenate([one.values for one in panel])
    frame = pd.DataFrame(columns | dict(zip(channels, values.T, strict=True)))
    if time_kind is None and isinstance(series, TimeSeries):
        frame.index = series.index
    if library == "pandas":
        return frame
    table = pa.Table.from_pandas(frame, preserve_index=False)
    try:
        return nw.from_arrow(table, backend=library).to_native()
    except ImportError:
        raise ValueError(
            f"this function needs {library}; install it with: pip install {library}"
        ) from None
