"""The cells of a line of text: numbers, missing values, times, names."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import shown

MISSING = frozenset({"", "?", "na", "n/a", "#n/a", "#na", "<na>", "nan", "null", "none"})
"""How tables write a missing value, in lower case."""

TIME = frozenset({"date", "time", "datetime", "timestamp"})
"""Names of a column of times, in lower case."""

DateOrder: TypeAlias = Literal["year", "day", "month"]
"""Which part of a date of digits comes first."""

_CLOCK = r"(?:[ T]+(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,]\d+)?)? ?(Z|[+-]\d{2}:?\d{2})?)?"
_SLASHES = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2})" + _CLOCK)
_YEAR_LAST = re.compile(r"(\d{1,2})(?:/(\d{1,2})/|\.(\d{1,2})\.|-(\d{1,2})-)(\d{4})" + _CLOCK)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BadCellError(ValueError):
    """A cell is neither a finite number nor a missing value.

    Attributes:
        index: which one.
    """

    def __init__(self, index: int, cell: str) -> None:
        super().__init__(f"expected a finite number, got {cell!r}")
        self.index = index


def parse_numbers(cells: Sequence[str], missing: Collection[str] = MISSING) -> NDArray[np.float64]:
    """Reads finite numbers; NaN stands for a missing one.

    Args:
        cells: The texts; blanks around them do not count.
        missing: How a missing value is written, in lower case.

    Raises:
        BadCellError: A cell is something else.

    Example:
        >>> parse_numbers(["1.5", "?", " -2e3"]).tolist()
        [1.5, nan, -2000.0]
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
    """Whether a cell of a table holds a finite number or says that there is none."""
    return _is_missing(text, missing) or is_number(text)


def parse_time(text: str, first: DateOrder = "year") -> datetime | None:
    """A time as files write it, to the second; None if it is none.

    Args:
        text: ISO 8601, ``2016/7/1 2:00``, or, if so ordered, ``1.7.2016 2:00`` with ``/`` or ``-``
            for the points, too.
        first: What comes first in the latter.

    Returns:
        The time in UTC if the text names an offset from it, else without a time zone.

    Example:
        >>> parse_time("2016/7/1 2:00"), parse_time("noon")
        (datetime.datetime(2016, 7, 1, 2, 0), None)
        >>> parse_time("2016-07-01T02:00:00+02:00")
        datetime.datetime(2016, 7, 1, 0, 0, tzinfo=datetime.timezone.utc)
        >>> parse_time("1.7.2016", "day"), parse_time("1.7.2016")
        (datetime.datetime(2016, 7, 1, 0, 0), None)
    """
    try:
        if match := _SLASHES.fullmatch(text):
            year, month, day, *clock = match.groups()
        elif match := _YEAR_LAST.fullmatch(text):
            one, *others, year = match.groups()[:5]
            two = next(part for part in others if part is not None)
            if first == "year":
                return None
            (day, month), clock = (
                (one, two) if first == "day" else (two, one),
                [*match.groups()[5:]],
            )
        else:
            return _in_utc(datetime.fromisoformat(text).replace(microsecond=0))
        date = f"{year}-{month:0>2}-{day:0>2}"
        hour, minute, second, offset = clock
        time = f"{hour or 0:0>2}:{minute or '00'}:{second or '00'}{offset or ''}"
        return _in_utc(datetime.fromisoformat(f"{date}T{time}"))
    except (ValueError, OverflowError):
        return None


def _in_utc(time: datetime) -> datetime:
    return time if time.tzinfo is None else time.astimezone(UTC)


def parse_epoch(text: str, unit: Literal["s", "ms"]) -> datetime | None:
    """A time in UTC from seconds or milliseconds since 1970, to the second; None if it is none.

    Example:
        >>> parse_epoch("1467331200000", "ms")
        datetime.datetime(2016, 7, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    if not is_number(text):
        return None
    try:
        return _EPOCH + timedelta(seconds=math.floor(float(text) / {"s": 1, "ms": 1000}[unit]))
    except OverflowError:
        return None


def split_cells(text: str, separator: str = ",") -> list[str]:
    """The cells of a line; they may stand in quotes.

    Args:
        text: The line.
        separator: The character between them.

    Raises:
        ValueError: A quote is not closed, or is followed by more than a separator; a cell is longer
            than 128 KiB.

    Example:
        >>> split_cells('"date", "load, MW",OT')
        ['date', 'load, MW', 'OT']
    """
    try:
        reader = csv.reader([text], delimiter=separator, skipinitialspace=True, strict=True)
        cells = next(reader)
    except csv.Error:
        raise ValueError(
            f"expected cells separated by {separator!r}, each quote closed, got {shown(text)}"
        ) from None
    return [cell.strip() for cell in cells]


def join_cells(cells: Iterable[object], separator: str = ",") -> str:
    """Cells as a line, in quotes where they have to be; None is an empty cell.

    A float has as many digits as tell it from its neighbors in its dtype.

    Example:
        >>> join_cells(["date", "load, MW", None, np.float32(0.1), np.float64(1709298972.449)])
        'date,"load, MW",,0.1,1709298972.449'
    """
    line = io.StringIO()
    csv.writer(line, delimiter=separator, lineterminator="").writerow(cells)
    return line.getvalue()
