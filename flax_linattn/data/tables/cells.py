"""Cells of a line of text: numbers, missing values, times, names."""

from __future__ import annotations

import csv
import io
import math
import re
from calendar import month_name, monthrange
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, quote

MISSING = frozenset({"", "?", "na", "n/a", "#n/a", "#na", "<na>", "nan", "null", "none"})
"""Spellings of a missing value in tables, in lower case."""

TIME = frozenset({"date", "time", "datetime", "timestamp", "ds"})
"""Names of a column of times, in lower case."""

YEAR_COLUMN = "year"
"""Name of a column of years, in lower case."""

YEAR = r"[12]\d{3}"
"""Pattern of a cell that holds a year."""

DateOrder: TypeAlias = Literal["year", "day", "month"]
"""First part of a numeric date."""

TimeUnit: TypeAlias = Literal["s", "ms", "us", "ns"]
"""Units of numeric times."""

_CLOCK = r"(?:[ T]+(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d+))?)? ?(Z|[+-]\d{2}:?\d{2})?)?"
_YEAR_FIRST = re.compile(r"(\d{4})([/-])(\d{1,2})(?:\2(\d{1,2})" + _CLOCK + ")?", re.ASCII)
_YEAR_LAST = re.compile(
    r"(\d{1,2})(?:/(\d{1,2})/|\.(\d{1,2})\.|-(\d{1,2})-)(\d{4})" + _CLOCK, re.ASCII
)
_QUARTER = re.compile(r"(\d{4})[- ]?[Qq]([1-4])", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MISSING = re.compile(r"#n/?a\s*([,;|\t]|$)", re.IGNORECASE)
"""Spelling of a missing value that would look like a comment at the start of a line."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class BadCellError(ValueError):
    """A cell is neither a finite number nor a missing value.

    Attributes:
        index: Index of the cell.
    """

    def __init__(self, index: int, cell: str) -> None:
        super().__init__(f"expected a finite number, got {cell!r}")
        self.index = index


def is_comment(text: str, begun: bool) -> bool:
    """Whether a line is a comment: it begins with #, or after the first row with # and a space."""
    if not text.startswith("#"):
        return False
    if begun:
        return not text[1:2].strip()
    return _FIRST_MISSING.match(text) is None


def parse_numbers(cells: Sequence[str], missing: Collection[str] = MISSING) -> NDArray[np.float64]:
    """Parses finite numbers; NaN marks a missing value.

    ``missing`` are the spellings of missing values, in lower case; ``BadCellError`` names the first
    other cell.
    """
    values = _floats(cells)
    if values is None:
        values = _floats(["nan" if _is_missing(cell, missing) else cell for cell in cells])
    if values is None:
        bad = next(
            index
            for index, cell in enumerate(cells)
            if not (_is_missing(cell, missing) or is_number(cell))
        )
        raise BadCellError(bad, cells[bad])
    return values


def _floats(cells: Sequence[str]) -> NDArray[np.float64] | None:
    if "_" in "".join(cells):  # Python reads "1_0" as ten
        return None
    try:
        values = np.array(cells, np.float64)
    except ValueError:
        return None
    return None if np.isinf(values).any() else values


def _is_missing(cell: str, missing: Collection[str]) -> bool:
    return cell.strip().lower() in missing


def is_number(text: str) -> bool:
    """Whether a cell holds a finite number."""
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False


def is_value(text: str, missing: Collection[str] = MISSING) -> bool:
    """Whether a cell of a table holds a finite number or a missing value."""
    return _is_missing(text, missing) or is_number(text)


def parse_time(text: str, first: DateOrder = "year", date_format: str = "") -> datetime | None:
    """Parses a time in a common format, to the microsecond; None if the text is not a time.

    A month or quarter is parsed as its first day; ``first`` is the first part of dates that do not
    begin with the year; with ``date_format`` no other format is accepted.
    """
    try:
        if date_format:
            return datetime.strptime(text, date_format)
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            pass
        if match := _QUARTER.fullmatch(text):
            return datetime(int(match[1]), 3 * int(match[2]) - 2, 1)
        if match := _YEAR_FIRST.fullmatch(text):
            year, _, month, day, *clock = match.groups()
        elif first != "year" and (match := _YEAR_LAST.fullmatch(text)):
            one, *others, year = match.groups()[:5]
            two = next(part for part in others if part is not None)
            (day, month), clock = (
                (one, two) if first == "day" else (two, one),
                [*match.groups()[5:]],
            )
        else:
            return None
        hour, minute, second, fraction, offset = clock
        date = f"{year}-{month:0>2}-{day or 1:0>2}"
        time = f"{hour or 0:0>2}:{minute or '00'}:{second or '00'}.{fraction or '0'}{offset or ''}"
        return datetime.fromisoformat(f"{date}T{time}")
    except (ValueError, OverflowError):
        return None


def impossible_date(text: str) -> str:
    """Returns a numeric date in a text that is not in the calendar; "" if there is none.

    Example:
        >>> impossible_date("2023-02-30 12:00"), impossible_date("31.4.2023"), impossible_date("x")
        ('30 February 2023', '31 April 2023', '')
    """
    dates = []
    if match := _YEAR_FIRST.fullmatch(text):
        dates = [(match[1], match[3], match[4] or "1")]
    elif match := _YEAR_LAST.fullmatch(text):
        one, *others, year = match.groups()[:5]
        two = next(part for part in others if part is not None)
        dates = [(year, two, one), (year, one, two)]
    for year, month, day in [tuple(map(int, date)) for date in dates]:
        if year and 1 <= month <= 12 and monthrange(year, month)[1] < day <= 31:
            return f"{day} {month_name[month]} {year}"
    return ""


def parse_epoch(text: str, unit: TimeUnit) -> datetime | None:
    """Parses a Unix time to the microsecond, in UTC; None if the text is not a number.

    Example:
        >>> parse_epoch("1467331200000", "ms")
        datetime.datetime(2016, 7, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    if not is_number(text):
        return None
    try:
        whole = int(text)  # float64 does not hold nanoseconds
    except ValueError:
        microseconds = round(float(text) * (10**6 / _PER_SECOND[unit]))
    else:
        microseconds = whole * 10**6 // _PER_SECOND[unit]
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None


def split_cells(text: str, separator: str = ",") -> list[str]:
    """Splits a line into cells, which may be quoted.

    Raises ValueError if a quote is not closed, or a cell is longer than 128 KiB.
    """
    try:
        reader = csv.reader([text], delimiter=separator, skipinitialspace=True, strict=True)
        cells = next(reader)
    except csv.Error:
        raise ValueError(
            f"expected cells separated by {separator!r} with closed quotes, got {quote(text)}"
        ) from None
    return [cell.strip() for cell in cells]


def join_cells(cells: Iterable[object], separator: str = ",") -> str:
    """Joins cells to a line, with quotes if needed; None gives an empty cell.

    A float has the fewest digits that identify it in its dtype.

    Example:
        >>> join_cells(["date", "load, MW", None, np.float32(0.1), np.float64(1709298972.449)])
        'date,"load, MW",,0.1,1709298972.449'
    """
    line = io.StringIO()
    csv.writer(line, delimiter=separator, lineterminator="").writerow(cells)
    return line.getvalue()


def parse_zone(name: str) -> tzinfo:
    """Returns the time zone of a name in the IANA database."""
    if name == "UTC":  # which needs no database
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise OptionError(
            f"timezone must be a name of the IANA database, such as UTC or America/New_York, got "
            f"{quote(name)}; correct it, or install tzdata if the system has no time zones.",
            "timezone",
        ) from None
