"""How a table writes its cells: separators, decimal points, times, missing values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from flax_linattn.annotations import hints_of, of_type
from flax_linattn.checks import OptionError, choice
from flax_linattn.data.cells import (
    MISSING,
    BadCellError,
    DateOrder,
    is_number,
    is_value,
    parse_epoch,
    parse_numbers,
    parse_time,
    split_cells,
)

_SEPARATORS = {",": ",", ";": ";", "tab": "\t", "|": "|"}
_SPELLINGS = {**_SEPARATORS, "\t": "\t"}
_DECIMAL_COMMAS = str.maketrans({",": ".", ".": "_"})
"""A point among decimal commas would be one of thousands: no number."""


@dataclass(frozen=True)
class Dialect:
    """How a table is written; frozen and hashable.

    Attributes:
        separator: what stands between cells: a comma, a semicolon, "|" or "tab"; "auto" looks at
            the first two lines, and asks where more than one would do.
        decimal: what stands before the decimals of a number: a point or a comma.
        time_column: the column of times, by its name; default the first if it is no number or named
            date, time or timestamp, else the one of such a name.
        day_first: whether dates such as 1/7/2016 begin with the day.
        month_first: whether they begin with the month.
        time_unit: of times that are numbers: seconds ("s") or milliseconds ("ms") since 1970, UTC.
        missing_values: further texts or numbers that stand for a missing value, such as -9999.

    Raises:
        ValueError: an option is out of range, or two do not go together.
        TypeError: an option is of another type than its annotation.

    Example:
        >>> dialect = Dialect(separator=";", decimal=",", day_first=True, missing_values=("-9999",))
        >>> cells = dialect.split("1.7.2016 2:00;5,5;-9999,0")
        >>> dialect.time(cells[0]), dialect.numbers(cells[1:]).tolist()
        (datetime.datetime(2016, 7, 1, 2, 0), [5.5, nan])
    """

    separator: str = "auto"
    decimal: str = "."
    time_column: str = ""
    day_first: bool = False
    month_first: bool = False
    time_unit: Literal["none", "s", "ms"] = "none"
    missing_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.missing_values, (str, int, float)):
            raise OptionError(
                f"missing_values must be texts, got {self.missing_values!r}; write "
                f"({str(self.missing_values)!r},).",
                "missing_values",
            )
        for name, hint in hints_of(type(self)).items():
            if get_origin(hint) is Literal:
                choice(get_args(hint), **{name: getattr(self, name)})
            of_type(hint, **{name: getattr(self, name)})
        choice(["auto", *_SPELLINGS], separator=self.separator)
        choice([".", ","], decimal=self.decimal)
        object.__setattr__(self, "missing_values", tuple(self.missing_values))  # of JSON a list
        if self.separator == self.decimal:
            raise OptionError(
                "separator and decimal must differ, got ',' for both; give the separator.",
                "separator",
                "decimal",
            )
        if self.day_first and self.month_first:
            raise OptionError(
                "dates begin with the day or the month; leave one out.", "day_first", "month_first"
            )

    def sniff(self, lines: Sequence[str]) -> list[str]:
        """The separators that would do for lines.

        Args:
            lines: The first lines of a table, each with as many cells.

        Returns:
            One, if there is no doubt; "," if the lines hold one cell each.
        """
        if self.separator != "auto":
            return [_SPELLINGS[self.separator]]
        counts = {
            separator: [_count(line, separator) for line in lines]
            for separator in _SEPARATORS.values()
            if separator != self.decimal
        }
        found = [s for s, (first, *rest) in counts.items() if first > 1 and {*rest} <= {first}]
        if not found:  # one column, or a line is damaged, of which the reader tells
            found = [s for s, (first, *_) in counts.items() if first > 1] or [next(iter(counts))]
            found = ["," if "," in found else found[0]] if len(found) > 1 else found
        return found

    def split(self, text: str) -> list[str]:
        """The cells of a line.

        Raises:
            ValueError: As ``split_cells``; the line would do with several separators.
        """
        separators = self.sniff([text])
        if len(separators) > 1:
            raise OptionError(
                f"expected cells separated by one character, got {text[:40]!r}, which "
                f"{listed_separators(separators)} would do for; give separator.",
                "separator",
            )
        return split_cells(text, separators[0])

    def numbers(self, cells: Sequence[str]) -> NDArray[np.float64]:
        """Finite numbers; NaN stands for a missing one.

        Raises:
            BadCellError: A cell is something else.
        """
        try:
            values = parse_numbers([*map(self._point, cells)], self._missing[0])
        except BadCellError as bad:
            raise BadCellError(bad.index, cells[bad.index]) from None
        return self.without_codes(values)

    def without_codes(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers with NaN for those that stand for a missing value."""
        codes = self._missing[1]
        return np.where(np.isin(values, codes), np.nan, values) if codes.size else values

    def is_number(self, text: str) -> bool:
        """Whether a cell holds a finite number."""
        return is_number(self._point(text))

    def is_value(self, text: str) -> bool:
        """Whether a cell holds a finite number, or says that there is none."""
        return is_value(self._point(text), self._missing[0])

    def time(self, text: str) -> datetime | None:
        """A time, in UTC if it names an offset or is a number; None if it is none."""
        if self.time_unit != "none":
            return parse_epoch(text, self.time_unit)
        return parse_time(text, self._first)

    @property
    def _first(self) -> DateOrder:
        return "day" if self.day_first else "month" if self.month_first else "year"

    def _point(self, text: str) -> str:
        return text.translate(_DECIMAL_COMMAS) if self.decimal == "," else text

    @functools.cached_property
    def _missing(self) -> tuple[frozenset[str], NDArray[np.float64]]:
        """Those as texts, in lower case, and those as numbers."""
        given = [self._point(text.strip().lower()) for text in self.missing_values]
        codes = [float(text) for text in given if is_number(text)]
        return MISSING | frozenset(given), np.array(codes, np.float64)


PLAIN = Dialect()
"""That of a table of which nothing is told."""


def listed_separators(separators: Sequence[str]) -> str:
    r"""Separators as the option spells them.

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
