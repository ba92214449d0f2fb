"""Time series of data frames, and back: the columns of times, of ids and of numbers."""

from __future__ import annotations

import dataclasses
import numbers
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal, get_args

import narwhals as nw
import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, choice, shown
from flax_linattn.data.cells import TIME, BadCellError
from flax_linattn.data.dialect import PLAIN, Dialect
from flax_linattn.data.files import DataFormatError, printed
from flax_linattn.data.regular import TimesPolicy, regular
from flax_linattn.data.series import TimeSeries
from flax_linattn.data.tables import Table, frame_of_arrow
from flax_linattn.data.times import BadTimeError, epoch_unit, is_dated, localize, parse_times
from flax_linattn.data.unknown import UnknownChannelError

NIXTLA_ID, NIXTLA_TIME = "unique_id", "ds"
"""Columns by which a table is a panel without options, as in Nixtla's libraries."""
MAX_ID_FRACTION = 0.5
"""Limit on the number of ids that an error proposes, as a fraction of the rows."""
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?")
_CACHED = 2**16
"""Numbers that are moved at a time."""


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
) -> TimeSeries | tuple[TimeSeries, ...]:
    """The series of a frame: pandas, polars, Arrow, or another that narwhals knows.

    Times keep their time zone, periods and integers of an index stay what they are. A missing value
    is a null or NaN.

    Args:
        frame: One row a time; with ids one row a time and series, as of ``load_long``. A frame with
            the columns ``unique_id`` and ``ds`` has ids and times in these, and one of pandas with
            two levels of index has them there.
        time_column: The column of times, or two of dates and clock times. Default: the index of
            pandas if it is none of row numbers, else the only column of dates and times, else as
            in a file: see ``load_series``.
        id_column: The column that names the series of each row.
        channels: The columns to take, in this order. Default: all but ids and times.
        times: As in ``load_series``.
        resample: As in ``load_series``.
        dialect: Of times that are texts or numbers, and what stands for a missing value.
        name: Of the series, if there are no ids.

    Returns:
        The series; with ids a tuple of one for each, in the order of their first rows.

    Raises:
        ValueError: A column is unknown or not of numbers; times fall or are missing.
        TypeError: It is no frame.

    Example:
        >>> frame = pd.DataFrame({"load": [1.0, None, 3.0]},
        ...                      index=pd.date_range("2024-01-01", periods=3, freq="h"))
        >>> series = from_frame(frame)
        >>> series.values.ravel().tolist(), series.freq
        ([1.0, nan, 3.0], 'h')
    """
    if time_column:
        named = time_column if isinstance(time_column, str) else tuple(time_column)
        dialect = dataclasses.replace(dialect, time_column=named)
    pandas = as_pandas(frame)
    if pandas.index.nlevels == 2:
        id_name, time_name = (
            str(level if level is not None else default)
            for level, default in zip(pandas.index.names, ("id", "time"), strict=True)
        )
        pandas = pandas.reset_index(names=[id_name, time_name])
        id_column = id_column or id_name
        dialect = dataclasses.replace(dialect, time_column=dialect.time_column or time_name)
    table = Table(pandas, name)
    id_column = id_column or default_id(table.names)
    several = series_of(table, name, id_column, channels, times, resample, dialect)
    return several if id_column else several[0]


def as_pandas(frame: Any) -> pd.DataFrame:
    """A frame of any library as one of pandas.

    Raises:
        TypeError: It is no frame.
    """
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
    """The column of ids of a table that has the columns of Nixtla's libraries; else ""."""
    return NIXTLA_ID if {NIXTLA_ID, NIXTLA_TIME} <= set(names) else ""


def series_of(
    table: Table,
    name: str,
    id_column: str,
    channels: Sequence[str] | None,
    times: TimesPolicy,
    resample: str,
    dialect: Dialect,
) -> tuple[TimeSeries, ...]:
    """The series of a table, see ``from_frame``; one of this name without ``id_column``."""
    choice(get_args(TimesPolicy), times=times)
    try:
        found = _read(table, name, id_column, channels, times, dialect)
        return regular(found, table.source, times, resample)
    except DataFormatError as error:
        what, *_ = str(error).split("; ")  # what else may be done is the less likely
        if pair := _find_clock(table, dialect, id_column):
            raise DataFormatError(
                f"{what}; if column {pair[1]!r} holds the times of the day, join it with the "
                f"dates, with time_column={pair}",
                "time_column",
            ) from None
        other = "" if id_column or not table.has_header else _find_id(table, dialect)
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
) -> list[TimeSeries]:
    frame = table.frame
    if table.has_header and "" in table.names:
        raise table.error(
            None,
            "a name for each column",
            f"none for column {table.names.index('') + 1}",
            "name it, or drop it (pandas: to_csv(..., index=False))",
        )
    of_id = _named(table, id_column, "id_column") if id_column else None
    of_times = _find_times(table, dialect, of_id)
    rest = [i for i in range(frame.shape[1]) if i not in (of_id, *of_times)]
    if not rest or not len(frame):
        raise table.error(
            0 if len(frame) else None,
            "rows with a column of numbers beside times and ids",
            f"{len(frame)} rows of {printed(table.names)}",
            "add one, or say what separates columns, with separator=...",
            "separator",
        )
    names = [table.names[i] for i in rest] if table.has_header else [*map(str, range(len(rest)))]
    at = dict(zip(names, rest, strict=True))
    chosen = [at[channel] for channel in _chosen(table, names, channels)]
    index = _times(table, of_times, dialect, keep=of_id is None)
    values = _numbers(table, chosen, dialect)
    found = []
    for label, rows in _groups(table, of_id):
        whole = len(rows) == len(frame)
        own = index if whole or index is None else index[rows]
        if dialect.timezone and isinstance(own, pd.DatetimeIndex) and own.tz is None:
            try:
                own = localize(own, dialect.timezone)
            except BadTimeError as bad:
                raise _time_error(table, bad, int(rows[bad.row])) from None
        _check_order(table, own, rows, times)
        found.append(
            TimeSeries(
                name if of_id is None else label,
                values if whole else values[rows],
                tuple(names if channels is None else map(str, channels)),
                own,
                None if table.lines is None else table.lines[rows],
            )
        )
    return found


def _named(table: Table, name: str, option: str) -> int:
    """Which column has this name, that an option gives."""
    names = table.names
    if not table.has_header:
        raise OptionError(
            f"{table.source}: expected a header that names the column {shown(name)}, got none; add "
            "one.",
            option,
            "header",
        )
    if name not in names:
        raise OptionError(
            f"unknown column {shown(name)}; {table.source} has {printed(names)}", option
        )
    _check_once(table, name, names.count(name))
    return names.index(name)


def _check_once(table: Table, name: str, count: int) -> None:
    if count > 1:
        raise table.error(None, "different names of columns", f"{shown(name)} twice", "rename one")


def _chosen(table: Table, names: list[str], channels: Sequence[str] | None) -> Sequence[str]:
    counts, seen = Counter(names), set()
    for name in names if channels is None else channels:
        if name not in counts:
            raise UnknownChannelError.of(name, table.source, names)
        _check_once(table, name, counts[name])
        if name in seen:
            raise OptionError(f"expected each channel once, got {name!r} twice", "channels")
        seen.add(name)
    return names if channels is None else channels


def _find_times(table: Table, dialect: Dialect, of_id: int | None) -> tuple[int, ...]:
    """The columns of times; none where the index has them, or there are none."""
    if dialect.time_column:
        return tuple(_named(table, name, "time_column") for name in dialect.time_columns)
    frame, names = table.frame, [name.lower() for name in table.names]
    others = [i for i in range(frame.shape[1]) if i != of_id]
    if not others or not len(frame) or frame.index.dtype.kind not in "iu":
        return ()
    kinds = frame.dtypes.tolist()
    dated = [i for i in others if kinds[i].kind in "MO" and is_dated(frame.iloc[:, i])]
    if len(dated) > 1:
        raise OptionError(
            f"{table.source}: expected one column of times, got "
            f"{printed([table.names[i] for i in dated])}; say which one holds them, with "
            "time_column=...",
            "time_column",
        )
    if dated:
        return (dated[0],)
    first = others[0]
    named = [i for i in others if table.has_header and names[i] in TIME]
    cells = {i: _text(frame.iloc[0, i]) for i in {first, *named}}
    timed = [i for i in named if _is_time(cells[i], dialect)]
    is_text = kinds[first].kind not in "biuf"
    by_place = first in named or (is_text and not dialect.is_value(cells[first]))
    if by_place and (dialect.time(cells[first]) is not None or len(timed) != 1):
        return (first,)
    if len(timed) == 1:
        return (timed[0],)
    since = [i for i in named if epoch_unit(cells[i])]
    if since:
        return (since[0],)
    is_year = table.has_header and names[first] == "year" and _are_years(frame.iloc[:, first])
    return (first,) if is_year else ()


def _is_time(cell: str, dialect: Dialect) -> bool:
    """Whether a cell can only be a time."""
    numeric = dialect.is_value(cell)
    return dialect.time(cell) is not None and numeric == (dialect.time_unit != "none")


def _are_years(column: pd.Series) -> bool:
    """Whether a column holds rising years."""
    texts = column.map(_text)
    return bool(texts.str.fullmatch(r"[12]\d{3}").all() and texts.is_monotonic_increasing
                and texts.is_unique)  # fmt: skip


def _times(
    table: Table, columns: tuple[int, ...], dialect: Dialect, *, keep: bool
) -> pd.Index | None:
    """The times of the rows, or the integers of the index of a single series."""
    frame = table.frame
    if not columns:
        if frame.index.dtype.kind in "iu":
            return frame.index if keep else None
        if isinstance(frame.index, pd.PeriodIndex):
            return frame.index
        try:
            times = parse_times(frame.index.to_series(), dialect)
        except BadTimeError as bad:
            raise table.error(
                bad.row,
                f"{bad.expected} in the index",
                bad.found,
                "convert it by pandas.to_datetime, or leave it out by reset_index(drop=True)",
            ) from None
        kept = isinstance(frame.index, pd.DatetimeIndex) and not dialect.timezone  # with its freq
        return frame.index if kept else times.rename(frame.index.name)
    try:
        if len(columns) == 2:
            return _joined(table, columns, dialect)
        column = frame.iloc[:, columns[0]]
        if column.dtype.kind in "iuf" and dialect.time_unit == "none":
            column = column.map(_text, na_action="ignore")
        is_plain = not dialect.date_format and dialect.time_unit == "none"
        if is_plain and table.names[columns[0]].lower() == "year" and _are_years(column):
            column = column.map(_text) + "-01-01"
        return parse_times(column, dialect)
    except BadTimeError as bad:
        place = " and ".join(table.column(column) for column in columns)
        raise _time_error(table, bad, bad.row, f" in {place}") from None


def _time_error(table: Table, bad: BadTimeError, row: int, place: str = "") -> DataFormatError:
    return table.error(row, bad.expected + place, bad.found, bad.advice, *bad.options)


def _joined(table: Table, columns: tuple[int, ...], dialect: Dialect) -> pd.Index:
    """Times of a column of dates and one of clock times."""
    date, clock = (table.frame.iloc[:, i].map(_text) for i in columns)
    codes, texts = pd.factorize(clock)
    try:  # each once, of which there are few
        hours = parse_times(pd.Series([f"2000-01-01 {text}" for text in texts]), PLAIN)
        days = parse_times(date, dataclasses.replace(dialect, timezone=""))
    except BadTimeError:
        hours = days = None
    if hours is None or hours.tz is not None or days.tz is not None:
        return parse_times(date + " " + clock, dialect)
    return days + (hours - pd.Timestamp("2000-01-01"))[codes]


def _text(value: Any) -> str:
    """A value of a column as a file would write it; "" where there is none."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _numbers(table: Table, columns: Sequence[int], dialect: Dialect) -> NDArray[np.float64]:
    """The values of columns, float64 ``[T, C]``, NaN where one is missing."""
    kinds = table.frame.dtypes.tolist()
    if all(kinds[i] == np.float64 for i in columns):
        values = table.frame.iloc[:, list(columns)].to_numpy(copy=True)
    else:
        parts = [_column(table, i, dialect) for i in columns]
        values = np.empty((len(table.frame), len(parts)))
        step = 1 + _CACHED // len(parts)
        for row in range(0, len(values), step):  # rows that a cache holds: columns are far apart
            block = slice(row, row + step)
            np.stack([np.asarray(part[block]) for part in parts], 1, out=values[block])
    if np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0].tolist()
        raise _not_finite(table, row, columns[column], str(values[row, column]))
    return np.ascontiguousarray(dialect.without_codes(values))


def _column(table: Table, index: int, dialect: Dialect) -> NDArray[np.float64] | pa.ChunkedArray:
    column = table.frame.iloc[:, index]
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    if column.dtype == pd.ArrowDtype(pa.float64()):
        return column.array.__arrow_array__()
    if column.dtype.kind in "biuf":
        missing = {} if isinstance(column.dtype, np.dtype) else {"na_value": np.nan}
        return np.asarray(column.to_numpy(np.float64, **missing))
    cells = []
    for value in column:
        cell = _text(value)
        if isinstance(value, numbers.Real | Decimal):
            cell = cell.replace(".", dialect.decimal)
        cells.append(cell)
    try:
        return dialect.numbers(cells)
    except BadCellError as bad:
        row = bad.index
    cell, place = cells[row], table.column(index)
    if dialect.time(cell) is not None:
        raise table.error(
            row,
            f"times in one column, and numbers in {place}",
            shown(cell),
            "put the column of times first, without another index, or name it, with "
            "time_column=..., or read other columns only, with channels=...",
            "time_column",
            "channels",
        )
    other = Dialect(decimal="." if dialect.decimal == "," else ",", separator="tab")
    if other.number(cell) is not None:
        raise table.error(
            row,
            f"a number with decimals after {dialect.decimal!r} in {place}",
            shown(cell),
            "say how numbers are written, with decimal=..., and leave out what sets thousands "
            "apart",
            "decimal",
        )
    raise _not_finite(table, row, index, shown(cell))


def _not_finite(table: Table, row: int, column: int, got: str) -> DataFormatError:
    return table.error(
        row,
        f"a finite number in {table.column(column)}",
        got,
        "correct it, leave the cell empty if the value is missing, read other columns only, with "
        "channels=..., or say that it stands for a missing value, with missing_values=..., or that "
        "the column names the series of each row, with id_column=...",
        "channels",
        "missing_values",
        "id_column",
    )


def _groups(table: Table, of_id: int | None) -> list[tuple[str, NDArray[np.int64]]]:
    """The rows of each series, by its name, in the order of their first rows."""
    if of_id is None:
        return [("", np.arange(len(table.frame)))]
    column = table.frame.iloc[:, of_id]
    codes, labels = pd.factorize(column if column.dtype.kind in "biufM" else column.map(_text))
    texts = ["" if pd.isna(label) else str(label) for label in labels]
    missing = (codes < 0) | np.isin(codes, [i for i, text in enumerate(texts) if not text])
    if missing.any():
        raise table.error(
            int(np.argmax(missing)),
            f"the name of a series in {table.column(of_id)}",
            "none",
            "add it",
            "id_column",
        )
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(texts)))
    return [*zip(texts, np.split(order, ends[:-1]), strict=True)]


def _check_order(
    table: Table, times: pd.Index | None, rows: NDArray[np.int64], policy: TimesPolicy
) -> None:
    """Refuses times that fall, and repeated ones if the policy is strict."""
    if times is None or (times.is_monotonic_increasing and (policy != "strict" or times.is_unique)):
        return
    late = times[1:] <= times[:-1] if policy == "strict" else times[1:] < times[:-1]
    row = 1 + int(np.argmax(late))
    raise table.error(
        int(rows[row]),
        f"a time after {times[row - 1]}, that of the row before",
        f"{times[row]}",
        "sort the rows, drop repeated ones, and write times in UTC, with their offset, or say with "
        "timezone=... in which zone clocks go back; where the table holds several series, name "
        "the column that tells them apart, with id_column=...",
        "times" if times[row] == times[row - 1] else "id_column",
    )


def _find_clock(table: Table, dialect: Dialect, id_column: str) -> tuple[str, str] | None:
    """The column of dates and that of clock times, if these have a column of their own."""
    first = [_text(cell) for cell in table.frame.iloc[0]] if len(table.frame) else []
    clocks = [i for i, cell in enumerate(first) if _CLOCK.fullmatch(cell)]
    try:
        dates = _find_times(table, dialect, table.names.index(id_column) if id_column else None)
    except ValueError:
        return None
    if len(dates) != 1 or len(clocks) != 1 or dates[0] in clocks or not table.has_header:
        return None
    return table.names[dates[0]], table.names[clocks[0]]


def _find_id(table: Table, dialect: Dialect) -> str:
    """The column that names the series of each row, if the times say that there are several.

    Times repeat or fall from row to row, and rise among the rows of each value of that column. A
    column of words comes before one of numbers, then that of the fewest values.
    """
    frame = table.frame
    try:
        columns = _find_times(table, dialect, None)
        times = _times(table, columns, dialect, keep=True) if columns else None
    except ValueError:
        return ""
    if times is None or (times.is_monotonic_increasing and times.is_unique):
        return ""
    exact, found = times.asi8, []
    for i, name in enumerate(table.names):
        if i in columns:
            continue
        codes, labels = pd.factorize(frame.iloc[:, i])
        order = np.argsort(codes, kind="stable")
        rise = (np.diff(exact[order]) > 0) | (np.diff(codes[order]) != 0)
        if 1 < len(labels) <= MAX_ID_FRACTION * len(frame) and codes.min() >= 0 and rise.all():
            words = not any(dialect.is_value(_text(label)) for label in labels)
            found.append((not words, len(labels), i, name))
    return min(found)[-1] if found else ""


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
        >>> times = pd.date_range("2024-01-01", periods=2)
        >>> series = TimeSeries("x", np.array([[1.0], [2.0]]), ("load",), times)
        >>> to_frame(series, library="polars").columns
        ['time', 'load']
    """
    choice(("pandas", "polars", "pyarrow"), library=library)
    several = [series] if isinstance(series, TimeSeries) else list(series)
    kinds = {(one.channels, one.time_zone, one.times is None) for one in several}
    if len(kinds) != 1:
        raise ValueError(
            "expected series of the same channels, all with times of one zone or none, got "
            f"{len(kinds)} kinds; make a frame of each kind."
        )
    ((channels, _, untimed),) = kinds
    columns: dict[str, Any] = {}
    if not isinstance(series, TimeSeries):
        columns[id_column] = [one.name for one in several for _ in range(one.num_steps)]
    if not untimed:
        first, *others = [one.times for one in several if one.times is not None]
        columns[time_column] = first.append(others)
    if twice := columns.keys() & set(channels):
        raise ValueError(f"a channel has the name {twice.pop()!r} of another column; give another.")
    values = np.concatenate([one.values for one in several])
    frame = pd.DataFrame(columns | dict(zip(channels, values.T, strict=True)))
    if untimed and isinstance(series, TimeSeries):
        frame.index = series.index
    if library == "pandas":
        return frame
    table = pa.Table.from_pandas(frame, preserve_index=False)
    try:
        return nw.from_arrow(table, backend=library).to_native()
    except ImportError:
        raise ValueError(f"this takes {library}: pip install {library}.") from None
