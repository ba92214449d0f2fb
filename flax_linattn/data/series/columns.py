"""Columns of tables: detection and parsing of times, ids and numbers."""

from __future__ import annotations

import numbers
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, quote
from flax_linattn.data.errors import DataFormatError, UnknownChannelError, printed
from flax_linattn.data.series.resampling import MAX_IRREGULAR_FRACTION
from flax_linattn.data.tables.cells import TIME, YEAR, YEAR_COLUMN, BadCellError
from flax_linattn.data.tables.dialect import Dialect, TimesPolicy
from flax_linattn.data.tables.tables import Table
from flax_linattn.data.tables.times import (
    BadTimeError,
    epoch_unit,
    is_dated,
    join_dates_and_clocks,
    parse_times,
)

MAX_ID_FRACTION = 0.5
"""Limit on the number of ids that an error proposes, as a fraction of the rows."""
_INTEGER = r"[+-]?\d{1,18}"
"""Pattern of a cell that holds an integer time."""
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?")
_NOT_NUMBERS = [
    (re.compile(pattern, re.IGNORECASE), what, f"{advice}, or read others only, with channels=...")
    for pattern, what, advice in (
        ("true|false|yes|no", "a truth value", "write 1 and 0"),
        (
            r"[+-]?\d{1,3}([,.' \u00a0\u202f]\d{3})+([,.]\d+)?",
            "with separators of thousands",
            "remove the separators, such as by pandas.read_csv with the file's own thousands=... "
            "and decimal=...",
        ),
        (
            r"[+-]?([$€£¥]|[a-z]{3}) ?[+-]?[\d.,' ]+|[+-]?[\d.,' ]+([$€£¥%]|[a-z]{3})",
            "a number with its unit",
            "write the number alone, and the unit into the name of the column",
        ),
    )
]
"""Kinds of cells that are not numbers, with a description and advice for each."""
_CLOCK_CHANGE = pd.Timedelta(hours=2)
"""Maximum amount by which clocks are set back."""
_SAMPLE = 100
"""Number of cells that decide whether a column holds text."""
_CACHED = 2**16
"""Number of values that are copied at a time."""


def find_named(table: Table, name: str, option: str) -> int:
    """Finds the index of the column that an option names."""
    names = table.names
    if not table.has_header:
        raise OptionError(
            f"{table.source}: expected a header that names the column {quote(name)}, got none; add "
            "one.",
            option,
            "header",
        )
    if name not in names:
        raise OptionError(
            f"unknown column {quote(name)}; {table.source} has {printed(names)}", option
        )
    _check_once(table, name, names.count(name))
    return names.index(name)


def _check_once(table: Table, name: str, count: int) -> None:
    if count > 1:
        raise table.error(None, "distinct column names", f"{quote(name)} twice", "rename one")


def choose_channels(
    table: Table, names: list[str], channels: Sequence[str] | None
) -> Sequence[str]:
    """Chooses the names of the channels to read; default all."""
    counts, chosen = Counter(names), set()
    for name in names if channels is None else channels:
        if name not in counts:
            raise UnknownChannelError.of(name, table.source, names)
        _check_once(table, name, counts[name])
        if name in chosen:
            raise OptionError(f"expected each channel once, got {name!r} twice", "channels")
        chosen.add(name)
    return names if channels is None else channels


def find_times(
    table: Table, dialect: Dialect, of_id: int | None, channels: Sequence[str] | None = None
) -> tuple[int, ...]:
    """Finds the columns of times; none if the index holds the times, or there are none.

    Integers in a column with a common name of times, or "year", are times if they increase and most
    of them differ, unless the column is one of ``channels``. Decreasing years are times, too, for
    which ``check_order`` raises an error.
    """
    if dialect.time_column:
        return tuple(find_named(table, name, "time_column") for name in dialect.time_columns)
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
    if dialect.date_format or dialect.time_unit != "none" or not table.has_header:
        return ()
    candidates = []
    for i in others:
        pattern = YEAR if names[i] == YEAR_COLUMN else _INTEGER if names[i] in TIME else None
        if pattern is None or (channels is not None and table.names[i] in channels):
            continue
        if _match(frame.iloc[:, i], pattern) and _is_ordered(
            frame, i, of_id, is_year=pattern == YEAR
        ):
            candidates.append(i)
    return tuple(candidates[:1]) if len(candidates) == 1 or first in candidates[:1] else ()


def _is_ordered(frame: pd.DataFrame, column: int, of_id: int | None, *, is_year: bool) -> bool:
    """Whether integers never decrease (or years never increase) in a series, and most differ."""
    times = frame.iloc[:, column].astype(float)
    groups = times.groupby(np.zeros(len(frame)) if of_id is None else frame.iloc[:, of_id])
    repeated = len(times) - groups.nunique().sum()  # of months, of which a year has several
    few = repeated <= MAX_IRREGULAR_FRACTION * (len(times) - groups.ngroups)
    falls = is_year and groups.is_monotonic_decreasing.all()
    return bool(few and (falls or groups.is_monotonic_increasing.all()))


def _is_time(cell: str, dialect: Dialect) -> bool:
    """Whether a cell can only be a time."""
    numeric = dialect.is_value(cell)
    return dialect.time(cell) is not None and numeric == (dialect.time_unit != "none")


def _are_numbered(column: pd.Series, dialect: Dialect) -> bool:
    """Whether a column numbers the rows, by integers that are neither dates nor Unix times."""
    first = _text(column.iloc[0])
    is_dated = dialect.time(first) is not None or epoch_unit(first)
    if is_dated or _match(column, YEAR + "(0[1-9]|1[0-2])"):  # a year and a month
        return False
    return _match(column, _INTEGER)


def _match(column: pd.Series, pattern: str) -> bool:
    """Whether all cells match a pattern; the first cell nearly always decides."""
    first = re.fullmatch(pattern, _text(column.iloc[0])) is not None
    return first and bool(column.map(_text).str.fullmatch(pattern).all())


def read_times(
    table: Table, columns: tuple[int, ...], dialect: Dialect, *, keep: bool
) -> pd.Index | None:
    """Reads the times of the rows, named after their column, or the integers of the index."""
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
                bad.got,
                "convert it by pandas.to_datetime, or leave it out by reset_index(drop=True)",
            ) from None
        if isinstance(frame.index, pd.DatetimeIndex) and not dialect.timezone:
            return frame.index  # with its freq
        return times.rename(frame.index.name)
    try:
        if len(columns) == 2:
            dates, clocks = (frame.iloc[:, i].map(_text) for i in columns)
            return join_dates_and_clocks(dates, clocks, dialect).rename(None)
        column = frame.iloc[:, columns[0]]
        name = table.names[columns[0]] if table.has_header else None
        if column.dtype.kind in "iuf" and dialect.time_unit == "none":
            column = column.map(_text, na_action="ignore")
        is_plain = not dialect.date_format and dialect.time_unit == "none"
        if is_plain and _are_numbered(column, dialect):
            return pd.Index(column.map(_text).astype(np.int64), name=name)
        return parse_times(column, dialect).rename(name)
    except BadTimeError as bad:
        raise time_error(table, bad, bad.row, _in_columns(table, columns)) from None


def _in_columns(table: Table, columns: Sequence[int]) -> str:
    """Describes the columns of times in messages; "" if the index holds the times."""
    return f" in {' and '.join(map(table.column, columns))}" if columns else ""


def time_error(table: Table, bad: BadTimeError, row: int, place: str = "") -> DataFormatError:
    """Returns the error to raise about the time of a row."""
    return table.error(row, bad.expected + place, bad.got, bad.advice, *bad.options)


def _text(value: Any) -> str:
    """Formats a value of a column as in a file; "" for a missing value."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def read_numbers(table: Table, columns: Sequence[int], dialect: Dialect) -> NDArray[np.float64]:
    """Reads the values of columns, float64 ``[T, C]``; NaN marks a missing value."""
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
            quote(cell),
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
            quote(cell),
            "set the decimal mark with decimal=..., or, if the character separates thousands, "
            f"remove it first, such as with pandas.read_csv(..., thousands={other.decimal!r})",
            "decimal",
        )
    for pattern, what, advice in _NOT_NUMBERS:
        if pattern.fullmatch(cell):
            raise table.error(
                row,
                f"a finite number in {place}",
                f"{quote(cell)}, {what}",
                advice,
                "channels",
            )
    first = cells[row : row + _SAMPLE]
    is_text = sum(not dialect.is_value(text) for text in first) > len(first) // 2
    raise _not_finite(table, row, index, quote(cell), is_text=is_text and len(first) > 2)


def _not_finite(
    table: Table, row: int, column: int, got: str, *, is_text: bool = False
) -> DataFormatError:
    expected = f"a finite number in {table.column(column)}"
    if is_text:
        return table.error(
            row,
            expected,
            f"{got}, and further cells of the column are not numbers",
            "read other columns only, with channels=..., or, if the column names the series of "
            "each row, set id_column=...",
            "channels",
            "id_column",
        )
    return table.error(
        row,
        expected,
        got,
        "correct it, leave the cell empty if the value is missing, read other columns only, with "
        "channels=..., or say that it stands for a missing value, with missing_values=..., or that "
        "the column names the series of each row, with id_column=...",
        "channels",
        "missing_values",
        "id_column",
    )


def group_rows(table: Table, of_id: int | None) -> list[tuple[str, NDArray[np.int64]]]:
    """Groups the rows by series name, in the order of the first rows."""
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


def check_order(
    table: Table,
    times: pd.Index | None,
    rows: NDArray[np.int64],
    policy: TimesPolicy,
    columns: Sequence[int],
) -> None:
    """Raises an error for decreasing times, and for repeated ones if the policy is strict."""
    if times is None or (times.is_monotonic_increasing and (policy != "strict" or times.is_unique)):
        return
    late = times[1:] <= times[:-1] if policy == "strict" else times[1:] < times[:-1]
    row = 1 + int(np.argmax(late))
    raise table.error(
        int(rows[row]),
        f"a time after {times[row - 1]}, that of the row before{_in_columns(table, columns)}",
        f"{times[row]}",
        *_order_advice(times, row, whole=len(rows) == len(table.frame)),
    )


def _order_advice(times: pd.Index, row: int, *, whole: bool) -> tuple[str, ...]:
    """Advice on a time that is not after the previous one, and the options concerned."""
    if times.is_monotonic_decreasing and len(times) > 2 and times[row] != times[row - 1]:
        return ("sort the rows by time; the newest row comes first",)
    if times[row] == times[row - 1]:
        return "drop repeated rows, or accept them with times='report'", "times"
    falls = times[row - 1] - times[row]
    if isinstance(times, pd.DatetimeIndex) and times.tz is None and falls <= _CLOCK_CHANGE:
        return (
            "sort the rows by time; where clocks go back, write times with their offset from UTC, "
            "or name the time zone, such as with timezone='Europe/Berlin'",
            "timezone",
        )
    if not whole:
        return ("sort the rows of each series by time",)
    return (
        "sort the rows by time; where the table holds several series, name the column that "
        "identifies the series of each row, with id_column=...",
        "id_column",
    )


def find_clock(table: Table, dialect: Dialect, id_column: str) -> tuple[str, str] | None:
    """Finds the column of dates and a separate column of times of day, if any."""
    first = [_text(cell) for cell in table.frame.iloc[0]] if len(table.frame) else []
    clocks = [i for i, cell in enumerate(first) if _CLOCK.fullmatch(cell)]
    try:
        dates = find_times(table, dialect, table.names.index(id_column) if id_column else None)
    except ValueError:
        return None
    if len(dates) != 1 or len(clocks) != 1 or dates[0] in clocks or not table.has_header:
        return None
    return table.names[dates[0]], table.names[clocks[0]]


def find_id(table: Table, dialect: Dialect) -> str:
    """Finds the column that names the series of each row, if times imply several series.

    Times repeat or decrease from row to row, but increase among the rows of each value of that
    column. Columns of words take precedence over numbers, then the column with the fewest values.
    """
    frame = table.frame
    try:
        columns = find_times(table, dialect, None)
        times = read_times(table, columns, dialect, keep=True) if columns else None
    except ValueError:
        return ""
    if times is None or (times.is_monotonic_increasing and times.is_unique):
        return ""
    exact, candidates = times.astype(np.int64).to_numpy(), []
    for i, name in enumerate(table.names):
        if i in columns:
            continue
        codes, labels = pd.factorize(frame.iloc[:, i])
        order = np.argsort(codes, kind="stable")
        rise = (np.diff(exact[order]) > 0) | (np.diff(codes[order]) != 0)
        if 1 < len(labels) <= MAX_ID_FRACTION * len(frame) and codes.min() >= 0 and rise.all():
            words = not any(dialect.is_value(_text(label)) for label in labels)
            candidates.append((not words, len(labels), i, name))
    return min(candidates)[-1] if candidates else ""
