"""Columns of times as pandas indices, from all formats of files and frames."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, quote
from flax_linattn.data.tables.cells import impossible_date, parse_time, parse_zone
from flax_linattn.data.tables.dialect import Dialect

_EPOCH = datetime(1970, 1, 1)
_OFFSET = re.compile(r"(?:Z|[+-]\d{2}:?\d{2})$", re.ASCII)
_FIRST, _LAST = -62135596800, 253402300799
"""Seconds since 1970 of the first and the last second of the years 1 to 9999."""
_MICRO = {"s": 10**6, "ms": 10**3, "us": 1, "ns": 1e-3}
"""Number of microseconds of each unit."""
_EXPECTED = {"none": "a time such as 2016-07-01 00:00:00", "s": "seconds since 1970",
             "ms": "milliseconds since 1970", "us": "microseconds since 1970",
             "ns": "nanoseconds since 1970"}  # fmt: skip


class BadTimeError(OptionError):
    """The time of a row is missing, or inconsistent with the times of other rows.

    Attributes:
        row: Index of the row, from 0.
        expected: Description of the expected value.
        got: Description of the value found.
        advice: What to do; ``options`` names the options concerned.
    """

    def __init__(self, row: int, expected: str, got: str, advice: str, *options: str) -> None:
        super().__init__(f"expected {expected}, got {got}; {advice}", *options)
        self.row, self.expected, self.got, self.advice = row, expected, got, advice


def parse_times(column: pd.Series, dialect: Dialect) -> pd.DatetimeIndex | pd.PeriodIndex:
    """Parses a column of times: dates and times, periods, strings, or Unix times.

    Times with offsets from UTC keep the offset if it is the same in all rows; otherwise they are
    converted to UTC. With ``dialect.timezone`` they are converted to that zone, in which times
    without an offset are local. If no row has an offset, the result has no time zone yet: see
    ``localize``.
    """
    if (missing := column.isna().to_numpy()).any():
        row = int(np.argmax(missing))
        raise BadTimeError(row, _EXPECTED[dialect.time_unit], "none", "add it, or drop the row")
    if isinstance(column.dtype, pd.PeriodDtype):
        return pd.PeriodIndex(column)
    if is_dated(column):
        try:
            times = pd.DatetimeIndex(column)
        except (ValueError, TypeError):  # of several offsets, or none in some rows
            times = _from_texts(column.astype(str), Dialect(timezone=dialect.timezone))
        years = times.year.to_numpy()
        if (bad := (years < 1) | (years > 9999)).any():
            row = int(np.argmax(bad))
            raise BadTimeError(row, "a year from 1 to 9999", str(times[row]), "correct it")
    elif dialect.time_unit != "none":
        times = _from_numbers(column, dialect)
    else:
        times = _from_texts(column.astype(str), dialect)
    zone = dialect.timezone
    return times.tz_convert(parse_zone(zone)) if zone and times.tz is not None else times


def join_date_and_clock(
    date: str, clock: str, dialect: Dialect, *, after: datetime | None = None
) -> datetime:
    """Joins a date and a time of day in two cells.

    Example:
        >>> join_date_and_clock("1.7.2016", "2:00", Dialect(day_first=True))
        datetime.datetime(2016, 7, 1, 2, 0)
    """
    if not (date.strip() and clock.strip()):
        raise _empty_cell(0, date, clock)
    hours, day = _hours(clock), None
    if dialect.time_unit == "none":
        day = parse_time(date.strip(), dialect.date_order, dialect.date_format)
    if day is None or hours is None or day.tzinfo is not None:
        time = dialect.time(f"{date} {clock}", after=after)
    else:
        time = dialect.in_zone(day + hours, after=after)
    if time is None:
        raise _bad_text(0, f"{date} {clock}", dialect)
    return time


def join_dates_and_clocks(dates: pd.Series, clocks: pd.Series, dialect: Dialect) -> pd.Index:
    """Joins columns of dates and times of day; see ``localize`` for time zones."""
    empty = ((dates == "") | (clocks == "")).to_numpy()
    if empty.any():
        row = int(np.argmax(empty))
        raise _empty_cell(row, dates.iloc[row], clocks.iloc[row])
    codes, texts = pd.factorize(clocks)  # each once, of which there are few
    hours = [_hours(text) for text in texts]
    try:
        days = parse_times(dates, dataclasses.replace(dialect, timezone=""))
    except BadTimeError:
        days = None
    if days is None or days.tz is not None or None in hours:
        return parse_times(dates + " " + clocks, dialect)
    return days + pd.TimedeltaIndex(hours)[codes]


def _empty_cell(row: int, date: str, clock: str) -> BadTimeError:
    part, other = ("date", clock) if clock.strip() else ("time of day", date)
    return BadTimeError(
        row,
        f"a {part} next to {quote(other)}",
        "an empty cell",
        "fill in the cell, or drop the row",
    )


def _hours(text: str) -> timedelta | None:
    """Parses the time since midnight; None for another format, or with an offset."""
    time = parse_time(f"2000-01-01 {text.strip()}")
    return None if time is None or time.tzinfo is not None else time - datetime(2000, 1, 1)


def is_dated(column: pd.Series) -> bool:
    """Whether the dtype of a column is dates, times or periods."""
    kind = column.dtype
    if isinstance(kind, pd.PeriodDtype) or kind.kind == "M":
        return True
    return kind == np.dtype("O") and pd.api.types.infer_dtype(column, skipna=True) in (
        "date",
        "datetime",
        "datetime64",
    )


def localize(times: pd.DatetimeIndex, zone: str, *, first: bool = False) -> pd.DatetimeIndex:
    """Localizes times in a time zone.

    An ambiguous time is the first of the two if ``first``; otherwise the order of the rows decides.
    ``BadTimeError`` is raised if it cannot, or if a time does not exist.
    """
    of, always = parse_zone(zone), np.ones(len(times), np.bool_)
    try:
        return times.tz_localize(of, ambiguous=always if first else "infer")
    except Exception:  # of pytz with pandas 2
        pass
    skipped = times.tz_localize(of, ambiguous=always, nonexistent="NaT").isna()
    twice = times.tz_localize(of, ambiguous="NaT", nonexistent="shift_forward").isna()
    row, why = int(np.argmax(skipped)), "skip"
    if not skipped.any():
        row, why = int(np.argmax(twice)), "show twice"
    raise BadTimeError(
        row,
        f"a time that clocks of {zone} show once",
        f"{quote(str(times[row]))}, which they {why}",
        "correct it, write times with their offset from UTC, or pass their time zone with "
        "timezone=...",
        "timezone",
    )


def _from_numbers(column: pd.Series, dialect: Dialect) -> pd.DatetimeIndex:
    unit = dialect.time_unit
    values: NDArray[Any]
    if column.dtype.kind in "iu" and not pd.api.types.is_extension_array_dtype(column):
        values = column.to_numpy(np.int64)
    else:
        texts = [dialect.point(str(text)) for text in column]
        try:
            values = np.array([int(text) for text in texts], np.int64)
        except (ValueError, OverflowError):
            numbers = [dialect.number(text) for text in column.astype(str)]
            values = np.array([np.nan if x is None else x for x in numbers], np.float64)
    per_second = 10**6 / _MICRO[unit]
    with np.errstate(invalid="ignore"):
        inside = (values >= _FIRST * per_second) & (values <= _LAST * per_second)
    if not inside.all():
        row = int(np.argmin(inside))
        raise _bad_text(row, str(column.iloc[row]), dialect)
    if values.dtype.kind == "f":
        values, unit = np.round(values * _MICRO[unit]).astype(np.int64), "us"
    return pd.DatetimeIndex(values.astype(f"M8[{unit}]")).tz_localize("UTC")


def _from_texts(column: pd.Series, dialect: Dialect) -> pd.DatetimeIndex:
    if not (dialect.day_first or dialect.month_first or dialect.date_format):
        times = _from_iso(column)
        if times is not None:
            return times
    codes, texts = pd.factorize(column)
    texts = [*texts]
    parsed = [parse_time(text.strip(), dialect.date_order, dialect.date_format) for text in texts]
    if None in parsed:
        code = parsed.index(None)
        raise _bad_text(int(np.argmax(codes == code)), texts[code], dialect)
    known = [time for time in parsed if time is not None]
    microsecond = timedelta(microseconds=1)
    walls = np.array([(t.replace(tzinfo=None) - _EPOCH) // microsecond for t in known], np.int64)
    offsets = [time.utcoffset() for time in known]
    named = np.array([offset is not None for offset in offsets])
    shifts = np.array([(offset or timedelta()) // microsecond for offset in offsets], np.int64)
    local = pd.DatetimeIndex(walls[codes].astype("M8[us]"))
    if not named.any():
        return local
    times = pd.DatetimeIndex((walls - shifts)[codes].astype("M8[us]")).tz_localize("UTC")
    if named.all():
        return _at_offset(times, {offset for offset in offsets if offset is not None})
    rows = ~named[codes]
    if not dialect.timezone:
        odd = int(np.argmax(rows != rows[0]))
        kinds = ("its offset from UTC", "no offset from UTC")
        expected, got = kinds if named[codes[0]] else kinds[::-1]
        raise BadTimeError(
            odd,
            f"a time with {expected}",
            f"{quote(texts[codes[odd]])} with {got}, unlike the first row",
            "write all times with an offset, such as +02:00 or Z, or none, or pass the time zone "
            "of the others with timezone=...",
            "timezone",
        )
    exact = times.tz_convert(None).to_numpy().copy()
    own = np.flatnonzero(rows)
    try:
        exact[own] = localize(local[own], dialect.timezone, first=True).tz_convert(None)
    except BadTimeError as bad:
        bad.row = int(own[bad.row])
        raise
    return pd.DatetimeIndex(exact).tz_localize("UTC")


def _from_iso(column: pd.Series) -> pd.DatetimeIndex | None:
    """Parses ISO 8601 strings with Arrow, which supports the common forms; None otherwise."""
    texts = pa.array(column, pa.string())
    end = _OFFSET.search(str(column.iloc[0]))
    for unit in ("us", "ns"):
        try:
            times = texts.cast(pa.timestamp(unit, "UTC" if end else None)).to_pandas()
        except (pa.ArrowInvalid, ValueError, OverflowError):
            continue
        if end is None:
            return pd.DatetimeIndex(times)
        ends = column.str.extract(f"({_OFFSET.pattern})", expand=False).unique()
        offsets = {parse_time(f"2000-01-01T00:00{text}") for text in ends}
        return _at_offset(
            pd.DatetimeIndex(times), {time.utcoffset() for time in offsets if time is not None}
        )
    return None


def _at_offset(times: pd.DatetimeIndex, offsets: set[Any]) -> pd.DatetimeIndex:
    """Converts UTC times to their offset from UTC if all share it."""
    (offset,) = offsets if len(offsets) == 1 else (timedelta(),)
    return times.tz_convert(timezone(offset) if offset else UTC)


def _bad_text(row: int, text: str, dialect: Dialect) -> BadTimeError:
    advice, options = _advice(text.strip(), dialect)
    expected = _EXPECTED[dialect.time_unit]
    if dialect.date_format:
        expected = f"a time of the format {dialect.date_format!r}"
    cell = quote(text.strip())
    if dialect.time_unit == "none" and (date := impossible_date(text.strip())):
        cell, advice, options = f"{cell}, but there is no {date}", "correct the date", ()
    return BadTimeError(row, expected, cell, advice, *options)


def _advice(text: str, dialect: Dialect) -> tuple[str, tuple[str, ...]]:
    if dialect.time_unit != "none":
        return "correct it, or remove time_unit if times are dates", ("time_unit",)
    if dialect.date_format:
        return "correct the time, or date_format", ("date_format",)
    unit = epoch_unit(text)
    if unit:
        return f"if times are {_EXPECTED[unit]}, pass time_unit='{unit}'", ("time_unit",)
    if any(parse_time(text, order) is not None for order in ("day", "month")):
        return (
            "set the order of day and month with day_first=True or month_first=True",
            ("day_first", "month_first"),
        )
    is_name = not any(map(str.isdigit, text))  # such as that of a series
    return (
        "write times with the year first, or pass their date_format; if another column holds the "
        "times, pass its name with time_column=..."
        + (", and the column of series names with id_column=..." if is_name else ""),
        ("time_column", "date_format", *(["id_column"] if is_name else [])),
    )


def epoch_unit(text: str) -> str:
    """Guesses the unit in which a number is a Unix time of recent years; "" if there is none.

    Example:
        >>> epoch_unit("1467331200"), epoch_unit("1467331200000.0"), epoch_unit("35")
        ('s', 'ms', '')
    """
    digits, _, rest = text.partition(".")
    if not (digits.isascii() and digits.isdigit() and (not rest or rest.isdigit())):
        return ""
    return {10: "s", 13: "ms", 16: "us", 19: "ns"}.get(len(digits), "")
