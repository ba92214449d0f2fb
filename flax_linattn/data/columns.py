"""Which column of a table holds what, and the numbers of a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, listed, shown
from flax_linattn.data.cells import TIME, BadCellError
from flax_linattn.data.dialect import Dialect
from flax_linattn.data.files import MEND, LineReader
from flax_linattn.data.unknown import UnknownChannelError

_DAY_FIRST, _MONTH_FIRST = Dialect(day_first=True), Dialect(month_first=True)


class Columns:
    """The columns of a table, told by its header and its first row.

    Args:
        reader: The file, at the first row.
        header: The cells of the line that names the columns, if there is one.
        header_line: Its number.
        cells: Those of the first row.
        channels: The names to read; None for all.
        id_column: The name of the column that tells series apart; "" for none.
        dialect: How the cells are written.

    Attributes:
        channels: What is read, in this order.

    Raises:
        ValueError: There is no such column.
        DataFormatError: A name stands twice, or there is nothing to read.
    """

    def __init__(
        self,
        reader: LineReader,
        header: list[str] | None,
        header_line: int,
        cells: list[str],
        channels: Sequence[str] | None,
        id_column: str,
        dialect: Dialect,
    ) -> None:
        self._reader = reader
        self._header = header
        self._header_line = header_line
        self._dialect = dialect
        self._width = len(cells) if header is None else len(header)
        self._check_width(cells)
        self._id = self._named(id_column, "id_column") if id_column else None
        self._time = self._find_time(cells)
        rest = [i for i in range(self._width) if i not in (self._id, self._time)]
        if not rest:
            raise reader.error(
                "a column of numbers beside the times",
                "none",
                "add one, or say what separates columns, with separator=...",
                "separator",
            )
        names = [str(i) for i in range(len(rest))] if header is None else [header[i] for i in rest]
        columns = dict(zip(names, rest, strict=True))
        self._columns = [columns[name] for name in self._chosen(names, channels)]
        self.channels = tuple(names if channels is None else channels)

    @property
    def timed(self) -> bool:
        """Whether there is a column of times."""
        return self._time is not None

    def _named(self, name: str, option: str) -> int:
        """Which column has this name, that an option gives."""
        if self._header is None:
            raise OptionError(
                f"{self._reader.path}: expected a header that names the column {shown(name)}, got "
                "none; add one.",
                option,
                "header",
            )
        self._once(name, Counter(self._header)[name])
        if name not in self._header:
            raise OptionError(
                f"unknown column {shown(name)}; {self._reader.path} has {listed(self._header)}",
                option,
            )
        return self._header.index(name)

    def _once(self, name: str, count: int) -> None:
        if count > 1:
            self._reader.line = self._header_line
            raise self._reader.error(
                "different names of columns", f"{shown(name)} twice", "rename one"
            )

    def _find_time(self, cells: list[str]) -> int | None:
        dialect = self._dialect
        if dialect.time_column:
            return self._named(dialect.time_column, "time_column")
        first = 1 if self._id == 0 else 0
        if first >= self._width:
            return None
        names = [name.lower() for name in self._header or []]
        named = [
            i
            for i, name in enumerate(names)
            if name in TIME and i != self._id and _is_time(cells[i], dialect)
        ]
        by_place = (names and names[first] in TIME) or not dialect.is_value(cells[first])
        if by_place and (dialect.time(cells[first]) is not None or len(named) != 1):
            return first
        return named[0] if len(named) == 1 else None

    def _chosen(self, names: list[str], channels: Sequence[str] | None) -> Sequence[str]:
        counts = Counter(names)
        seen = set()
        for name in names if channels is None else channels:
            if name not in counts:
                raise UnknownChannelError.of(name, self._reader.path, names)
            self._once(name, counts[name])
            if name in seen:
                raise OptionError(f"expected each channel once, got {name!r} twice", "channels")
            seen.add(name)
        return names if channels is None else channels

    def _check_width(self, cells: list[str]) -> None:
        if len(cells) != self._width:
            raise self._reader.error(
                f"{self._width} cells, as in the first line", f"{len(cells)}", MEND
            )

    def read(self, cells: list[str]) -> tuple[str, datetime | None, NDArray[np.float64]]:
        """The id, the time and the values of a row; "" and None where there is no column of it.

        Raises:
            DataFormatError: A cell does not hold what it should.
        """
        self._check_width(cells)
        name = "" if self._id is None else cells[self._id]
        if self._id is not None and not name:
            raise self._reader.error(
                f"the name of a series in column {self._id + 1}", "none", "add it"
            )
        time = None if self._time is None else self._read_time(cells[self._time])
        return name, time, self._numbers([cells[column] for column in self._columns])

    def _read_time(self, text: str) -> datetime:
        time = self._dialect.time(text)
        if time is not None:
            return time
        place = "the first column" if self._time == 0 else f"column {(self._time or 0) + 1}"
        advice, options = _time_advice(text, self._dialect)
        expected = {
            "none": "a time such as 2016-07-01 00:00:00",
            "s": "seconds since 1970",
            "ms": "milliseconds since 1970",
        }[self._dialect.time_unit]
        raise self._reader.error(f"{expected} in {place}", shown(text), advice, *options)

    def _numbers(self, cells: list[str]) -> NDArray[np.float64]:
        try:
            return self._dialect.numbers(cells)
        except BadCellError as bad:
            index = bad.index
        cell, column = cells[index], self._columns[index]
        named = f" ({shown(self.channels[index])[1:-1]})" if self._header else ""
        place = f"column {column + 1}{named}"
        if self._dialect.time(cell) is not None:
            raise self._reader.error(
                f"times in the first column, and numbers in {place}",
                shown(cell),
                "put the column of times first, without another index, or name it, with "
                "time_column=...",
                "time_column",
            )
        other = Dialect(decimal="." if self._dialect.decimal == "," else ",")
        if other.is_number(cell):
            raise self._reader.error(
                f"a number with decimals after {self._dialect.decimal!r} in {place}",
                shown(cell),
                "say how numbers are written, with decimal=..., and leave out what sets thousands "
                "apart",
                "decimal",
            )
        raise self._reader.error(
            f"a finite number in {place}",
            shown(cell),
            "correct it, leave the cell empty if the value is missing, or read other columns "
            "only, with channels=..., or say that it stands for a missing value, with "
            "missing_values=...",
            "channels",
            "missing_values",
        )


def _is_time(text: str, dialect: Dialect) -> bool:
    """Whether a cell can only be a time."""
    return not dialect.is_value(text) and dialect.time(text) is not None


def _time_advice(text: str, dialect: Dialect) -> tuple[str, tuple[str, ...]]:
    if dialect.time_unit != "none":
        return "correct it, or leave out time_unit where times are written out", ("time_unit",)
    digits = text.partition(".")[0]
    for length, unit, word in ((10, "s", "seconds"), (13, "ms", "milliseconds")):
        if digits.isdigit() and len(digits) == length:
            return f"if those are {word} since 1970, say so, with time_unit='{unit}'", (
                "time_unit",
            )
    if any(other.time(text) is not None for other in (_DAY_FIRST, _MONTH_FIRST)):
        return (
            "say what comes first in dates, with day_first=True or month_first=True",
            ("day_first", "month_first"),
        )
    return (
        "write times so, the year first, or leave the column out; where another column holds them, "
        "name it, with time_column=...",
        ("time_column",),
    )
