"""Dialect of a table: separators, decimal marks, times, missing values, encoding."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flax_linattn.annotations import check_fields
from flax_linattn.checks import OptionError, check_choice, itemize, quote
from flax_linattn.data.tables.cells import (
    MISSING,
    BadCellError,
    DateOrder,
    is_number,
    is_value,
    parse_epoch,
    parse_numbers,
    parse_time,
    parse_zone,
    split_cells,
)

TimesPolicy: TypeAlias = Literal["report", "strict", "irregular"]
"""How duplicate or irregular times are treated."""

_SEPARATORS = {",": ",", ";": ";", "tab": "\t", "|": "|"}
_SPELLINGS = {**_SEPARATORS, "\t": "\t"}
_DECIMAL_COMMAS = str.maketrans({",": ".", ".": "_"})
"""Translation of decimal commas; a point would separate thousands, so it makes no number."""


@dataclass(frozen=True)
class Dialect:
    """Text format of a table; frozen and hashable.

    Attributes:
        separator: Column separator: a comma, a semicolon, "|" or "tab"; "auto" infers it from the
            first two lines, and fails if that is ambiguous.
        decimal: Decimal mark of numbers: a point or a comma.
        time_column: Name of the column of times, or the names of two columns: dates and times of
            day, which are joined. Default: the first column if it holds times or is named date,
            time, timestamp or ds, otherwise the column with such a name.
        day_first: Whether dates such as 1/7/2016 begin with the day.
        month_first: Whether dates such as 7/1/2016 begin with the month.
        date_format: Format of the times for Python's strptime, such as "%d %b %Y %H:%M". Default:
            ISO 8601 and similar formats.
        time_unit: Unit of numeric times since 1970 in UTC: seconds ("s"), milliseconds ("ms"),
            microseconds ("us") or nanoseconds ("ns").
        timezone: IANA name of the time zone of times without an offset from UTC, such as
            Europe/Berlin; times with an offset are converted to it. Default: none.
        missing_values: Further strings or numbers that stand for a missing value, such as -9999.
        encoding: Text encoding of the file, such as latin-1; "auto" reads UTF-8, or UTF-16 with a
            byte-order mark.

    Raises:
        ValueError: If an option is out of range, or two options conflict.
        TypeError: If an option has another type than its annotation.

    Example:
        >>> dialect = Dialect(separator=";", decimal=",", day_first=True, missing_values=("-9999",))
        >>> dialect.time("1.7.2016 2:00"), dialect.numbers(["5,5", "-9999,0"]).tolist()
        (datetime.datetime(2016, 7, 1, 2, 0), [5.5, nan])
    """

    separator: str = "auto"
    decimal: str = "."
    time_column: str | tuple[str, ...] = ""
    day_first: bool = False
    month_first: bool = False
    date_format: str = ""
    time_unit: Literal["none", "s", "ms", "us", "ns"] = "none"
    timezone: str = ""
    missing_values: tuple[str, ...] = ()
    encoding: str = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.missing_values, (str, int, float)):
            raise OptionError(
                f"missing_values must be strings, got {self.missing_values!r}; pass "
                f"({str(self.missing_values)!r},).",
                "missing_values",
            )
        check_fields(self)
        check_choice(["auto", *_SPELLINGS], separator=self.separator)
        check_choice([".", ","], decimal=self.decimal)
        columns = self.time_columns
        object.__setattr__(self, "missing_values", tuple(self.missing_values))  # of JSON a list
        object.__setattr__(self, "time_column", columns if len(columns) > 1 else "".join(columns))
        if self.separator == self.decimal:
            raise OptionError(
                "separator and decimal must differ, got ',' for both; pass another separator.",
                "separator",
                "decimal",
            )
        orders = {"day_first": self.day_first, "month_first": self.month_first,
                  "date_format": bool(self.date_format)}  # fmt: skip
        if sum(orders.values()) > 1:
            raise OptionError(
                "day_first, month_first and date_format exclude each other; pass only one of them.",
                *(name for name, given in orders.items() if given),
            )
        if len(columns) > 2:
            raise OptionError(
                "time_column must be one column, or two columns of dates and times of day, "
                f"got {itemize(columns)}.",
                "time_column",
            )
        if self.timezone:
            parse_zone(self.timezone)
        try:
            if self.encoding != "auto":
                "".encode(self.encoding)
        except (LookupError, ValueError):
            raise OptionError(
                f"encoding must be an encoding of Python, such as utf-8 or latin-1, got "
                f"{quote(self.encoding)}.",
                "encoding",
            ) from None

    def sniff(self, lines: Sequence[str]) -> list[str]:
        """Finds the separators that are consistent with some lines.

        Args:
            lines: The first lines of a table, each with as many cells.

        Returns:
            One separator if it is unambiguous; "," if each line is one cell.
        """
        if self.separator != "auto":
            return [_SPELLINGS[self.separator]]
        counts = {
            separator: [_count(line, separator) for line in lines]
            for separator in _SEPARATORS.values()
            if separator != self.decimal
        }
        columns = [s for s, (first, *_) in counts.items() if first > 1]
        alike = [s for s in columns if {*counts[s]} == {counts[s][0]}]
        if alike or not columns:
            return alike or [next(iter(counts))]
        return [","] if "," in columns else columns[:1]  # a damaged line, which the reader reports

    def numbers(self, cells: Sequence[str]) -> NDArray[np.float64]:
        """Parses finite numbers; NaN marks a missing value.

        Raises:
            ValueError: If a cell is neither a number nor a missing value.
        """
        try:
            values = parse_numbers([*map(self.point, cells)], self._missing[0])
        except BadCellError as bad:
            raise BadCellError(bad.index, cells[bad.index]) from None
        return self.without_codes(values)

    def without_codes(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Replaces missing-value codes by NaN."""
        codes = self._missing[1]
        return np.where(np.isin(values, codes), np.nan, values) if codes.size else values

    def number(self, text: str) -> float | None:
        """Parses the finite number of a cell; None if it holds something else."""
        text = self.point(text)
        return float(text) if is_number(text) else None

    def is_value(self, text: str) -> bool:
        """Whether a cell holds a finite number or a missing value."""
        return is_value(self.point(text), self._missing[0])

    def time(self, text: str, *, after: datetime | None = None) -> datetime | None:
        """Parses a time, in UTC for numbers, in ``timezone`` if given; None if it is not a time.

        A time with an offset from UTC keeps it. An ambiguous time in ``timezone`` is the first of
        the two, or the second if the first is not after the previous time.

        Args:
            text: Cell of the time.
            after: Time of the previous row, with its offset from UTC.

        Example:
            >>> night, local = "2024-10-27 02:30", Dialect(timezone="Europe/Zurich")
            >>> first = local.time(night)
            >>> str(first), str(local.time(night, after=first))
            ('2024-10-27 02:30:00+02:00', '2024-10-27 02:30:00+01:00')
        """
        if self.time_unit != "none":
            time = parse_epoch(self.point(text), self.time_unit)
        else:
            time = parse_time(text, self.date_order, self.date_format)
        return None if time is None else self.in_zone(time, after=after)

    def in_zone(self, time: datetime, *, after: datetime | None = None) -> datetime | None:
        """Converts a parsed time to ``timezone`` if given; see ``time``."""
        if not self.timezone:
            return time
        zone = parse_zone(self.timezone)
        try:
            if time.tzinfo is not None:
                return time.astimezone(zone)
            time = time.replace(tzinfo=zone)
            # In UTC: Python compares times of one zone by their clocks.
            falls = after is not None and time.astimezone(UTC) <= after.astimezone(UTC)
            again = time.replace(fold=1)
            is_later = falls and time.utcoffset() != again.utcoffset()
            return again if is_later else time
        except OverflowError:  # the first and the last day of the calendar
            return None

    @property
    def time_columns(self) -> tuple[str, ...]:
        """Names of the given columns of times."""
        given = self.time_column
        return (given,) * bool(given) if isinstance(given, str) else tuple(given)

    @property
    def date_order(self) -> DateOrder:
        """First part of a numeric date."""
        return "day" if self.day_first else "month" if self.month_first else "year"

    @property
    def missing_texts(self) -> list[str]:
        """Common spellings of a missing value, for case-sensitive readers."""
        texts = self._missing[0]
        spelled = (spelling for text in texts for spelling in (text, text.upper(), text.title()))
        return [*dict.fromkeys((*spelled, "NaN", *self.missing_values))]

    def point(self, text: str) -> str:
        """Replaces the decimal mark of a cell by a point."""
        return text.translate(_DECIMAL_COMMAS) if self.decimal == "," else text

    @functools.cached_property
    def _missing(self) -> tuple[frozenset[str], NDArray[np.float64]]:
        """Missing values as lower-case strings, and as numbers."""
        given = [self.point(text.strip().lower()) for text in self.missing_values]
        codes = [float(text) for text in given if is_number(text)]
        return MISSING | frozenset(given), np.array(codes, np.float64)


PLAIN = Dialect()
"""Default dialect."""


def listed_separators(separators: Sequence[str]) -> str:
    r"""Lists separators in the spelling of the option.

    Example:
        >>> listed_separators([";", "\t"])
        "';' and 'tab'"
    """
    names = {character: name for name, character in _SEPARATORS.items()}
    return " and ".join(repr(names[separator]) for separator in separators)


def _count(line: str, separator: str) -> int:
    try:
        return len(split_cells(line, separator))
    except ValueError:
        return 0
