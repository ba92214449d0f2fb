"""The cells of a line of text: numbers, missing values, times, names."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import shown

MISSING = frozenset({"", "?", "na", "nan", "null", "none"})
"""How tables write a missing value, in lower case."""

TIME = frozenset({"date", "time", "datetime", "timestamp"})
"""Names of a column of times, in lower case."""

_SLASHES = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2})(?:[ T](\d{1,2}):(\d{2})(?::(\d{2}))?)?")


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


def is_value(text: str) -> bool:
    """Whether a cell of a table holds a finite number or says that there is none."""
    return _is_missing(text, MISSING) or is_number(text)


def parse_time(text: str) -> datetime | None:
    """A time as files write it, to the second, its time zone dropped; None if it is none.

    Example:
        >>> parse_time("2016/7/1 2:00"), parse_time("2016-07-01T02:00:00Z"), parse_time("noon")
        (datetime.datetime(2016, 7, 1, 2, 0), datetime.datetime(2016, 7, 1, 2, 0), None)
    """
    try:
        if match := _SLASHES.fullmatch(text):
            return datetime(*(int(part) for part in match.groups(default="0")))  # type: ignore[arg-type]
        return datetime.fromisoformat(text).replace(tzinfo=None, microsecond=0)
    except ValueError:
        return None


def split_cells(text: str) -> list[str]:
    """The cells of a line, separated by commas; they may stand in quotes.

    Raises:
        ValueError: A quote is not closed, or is followed by more than a comma; a cell is longer
            than 128 KiB.

    Example:
        >>> split_cells('"date", "load, MW",OT')
        ['date', 'load, MW', 'OT']
    """
    try:
        cells = next(csv.reader([text], skipinitialspace=True, strict=True))
    except csv.Error:
        raise ValueError(
            f"expected cells separated by ',', each quote closed, got {shown(text)}"
        ) from None
    return [cell.strip() for cell in cells]


def join_cells(cells: Iterable[object]) -> str:
    """Cells as a line, in quotes where they have to be.

    Example:
        >>> join_cells(["date", "load, MW", 1.5])
        'date,"load, MW",1.5'
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()
