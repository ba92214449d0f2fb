"""Tables of numbers, one row a time: CSV files of forecasting data sets, and users' own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import choice, listed, shown
from flax_linattn.data.cells import (
    TIME,
    BadCellError,
    is_number,
    is_value,
    parse_numbers,
    parse_time,
    split_cells,
)
from flax_linattn.data.files import MEND, LineReader
from flax_linattn.data.series import TimeSeries


def load_table(
    path: str | Path,
    *,
    header: bool | None = None,
    channels: Sequence[str] | None = None,
    times: Literal["report", "strict"] = "report",
) -> TimeSeries:
    r"""Loads a table of numbers separated by commas, plain, ``.gz`` or ``.xz``.

    The first column holds the times if it is no number, or named date, time or timestamp: ISO 8601
    (``2016-07-01 00:00:00``) or ``2016/7/1 0:00``, never falling; a time zone is dropped. Where
    times repeat or miss, rows stay as they are: ``TimeSeries.repeated`` and ``gaps`` tell.
    Time-Series-Library's files are of this kind, and those of laiguokun's collection, which have
    neither header nor times. Cells may stand in quotes. An empty one, ``?``, ``NA`` or ``NaN`` is a
    missing value. Blank lines and lines that begin with ``#`` are left out.

    Args:
        path: The file.
        header: Whether the first line names the columns. Default: if it begins with "date" or the
            like, or holds words alone, and not if it begins with a time. A line of numbers alone,
            or of words beside numbers (a name, or a damaged number?) has to be told; but numbers
            alone in a ``.txt`` file are a row.
        channels: The columns to read, in this order; the others may hold anything. Default: all.
        times: "strict" refuses a row of the same time as the one before.

    Returns:
        The series; without a header its channels are ``0``, ``1``, ...

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A channel is unknown, or asked for twice; ``times`` is something else.
        DataFormatError: The file breaks the format; the message names the line.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.csv")
        ...     _ = path.write_text("date,load,OT\n2016-07-01 00:00,5,30.5\n2016-07-01 01:00,,27\n")
        ...     series = load_table(path)
        >>> series.channels, series.values.tolist(), series.times[1]
        (('load', 'OT'), [[5.0, 30.5], [nan, 27.0]], np.datetime64('2016-07-01T01:00:00'))
    """
    choice(("report", "strict"), times=times)
    with LineReader(path) as reader:
        lines = _cells(reader)
        first = next(lines, None)
        if first is None:
            raise reader.error("rows of numbers", "none", "check that this is the right file")
        if len(first) == 1 and (separator := next((s for s in ";\t|" if s in first[0]), None)):
            raise reader.error(
                "columns separated by ','", f"{separator!r}", "write the file with commas"
            )
        named = _is_header(reader, first) if header is None else header
        if named and "" in first:
            raise reader.error(
                "a name for each column",
                f"none for column {first.index('') + 1}",
                "name it, or drop it (pandas: to_csv(..., index=False))",
            )
        table = _Table(reader, first if named else None, channels, times == "strict")
        if not named:
            table.add(first)
        for cells in lines:
            table.add(cells)
        return table.finish()


class _Table:
    """Rows as they are read; the first one says whether there are times.

    Args:
        reader: the file, at its first line.
        header: the cells of that line if it names the columns.
        channels: the names to read; None for all.
        strict: whether a repeated time is refused.
    """

    def __init__(
        self,
        reader: LineReader,
        header: list[str] | None,
        channels: Sequence[str] | None,
        strict: bool,
    ) -> None:
        self._reader = reader
        self._first_line = reader.line
        self._header = header
        self._channels = channels
        self._strict = strict
        self._width = 0
        self._timed = False
        self._columns: dict[str, int] = {}
        self._times: list[datetime] = []
        self._lines: list[int] = []
        self._rows: list[NDArray[np.float64]] = []

    def add(self, cells: list[str]) -> None:
        if not self._rows:
            self._begin(cells)
        if len(cells) != self._width:
            raise self._reader.error(
                f"{self._width} cells, as in the first line", f"{len(cells)}", MEND
            )
        if self._timed:
            self._add_time(cells[0])
        self._lines.append(self._reader.line)
        self._rows.append(self._numbers([cells[column] for column in self._columns.values()]))

    def _begin(self, cells: list[str]) -> None:
        self._width = len(cells) if self._header is None else len(self._header)
        named = self._header is not None and self._header[0].lower() in TIME
        self._timed = named or not is_value(cells[0])
        names = [str(i) for i in range(self._width - self._timed)]
        if self._header is not None:
            names = self._header[self._timed :]
        if not names:
            raise self._reader.error("a column of numbers beside the times", "none", "add one")
        columns = {name: column for column, name in enumerate(names, start=self._timed)}
        counts = Counter(names)
        for name in names if self._channels is None else self._channels:
            if name not in columns:
                raise ValueError(
                    f"unknown channel {shown(name)}; {self._reader.path} has {listed(names)}"
                )
            if counts[name] > 1:
                self._reader.line = self._first_line
                raise self._reader.error(
                    "different names of columns", f"{shown(name)} twice", "rename one"
                )
            if name in self._columns:
                raise ValueError(f"expected each channel once, got {name!r} twice")
            self._columns[name] = columns[name]

    def _add_time(self, text: str) -> None:
        time = parse_time(text)
        if time is None:
            raise self._reader.error(
                "a time such as 2016-07-01 00:00:00 in the first column",
                shown(text),
                "write times so, the year first (neither the day first nor seconds since 1970), or "
                "leave the column out",
            )
        last = self._times[-1] if self._times else None
        if last is not None and (time < last or (self._strict and time == last)):
            raise self._reader.error(
                f"a time after {last}, that of the row before",
                f"{time}",
                "sort the rows, drop repeated ones (fractions of a second do not count), and write "
                "times in UTC where clocks go back",
                *(["times"] if time == last else []),
            )
        self._times.append(time)

    def _numbers(self, cells: list[str]) -> NDArray[np.float64]:
        try:
            return parse_numbers(cells)
        except BadCellError as bad:
            cell = cells[bad.index]
            name, column = list(self._columns.items())[bad.index]
        place = f"column {column + 1}" + (f" ({shown(name)[1:-1]})" if self._header else "")
        if parse_time(cell) is not None:
            raise self._reader.error(
                f"times in the first column, and numbers in {place}",
                shown(cell),
                "put the column of times first, without another index",
            )
        raise self._reader.error(
            f"a finite number in {place}",
            shown(cell),
            "correct it, leave the cell empty if the value is missing, or read other columns "
            "only, with channels=...",
            "channels",
        )

    def finish(self) -> TimeSeries:
        if not self._rows:
            raise self._reader.error("rows of numbers after the header", "none", "add some")
        times = np.array(self._times, "M8[s]") if self._timed else None
        name = self._reader.path.name.split(".")[0]
        lines = np.array(self._lines)
        return TimeSeries(name, np.stack(self._rows), tuple(self._columns), times, lines)


def _cells(reader: LineReader) -> Iterator[list[str]]:
    for text in reader:
        if not text.strip() or text.startswith("#"):
            continue
        try:
            cells = split_cells(text)
        except ValueError:
            raise reader.error(
                "cells separated by ',', each quote closed", shown(text), MEND
            ) from None
        yield cells


def _is_header(reader: LineReader, cells: list[str]) -> bool:
    """Whether the first line names the columns; refuses where a row may be damaged, or a name."""
    if cells[0].lower() in TIME:
        return True
    if parse_time(cells[0]) is not None and not is_number(cells[0]):
        return False
    words = [cell for cell in cells if not is_value(cell) and parse_time(cell) is None]
    others = [cell for cell in cells if is_number(cell) or parse_time(cell) is not None]
    if not words and ".txt" in reader.path.suffixes:
        return False
    advice = "say whether it is a header, with header=..."
    if not words:
        got = "numbers alone"
    elif others:
        got = f"{shown(words[0])} beside {shown(others[0])}"
        advice = f"correct the cell if it is damaged, or {advice}"
    elif all(word[0] in "+-.0123456789" for word in words):
        got = f"{shown(words[0])}, a name or a damaged number"
        advice = f"correct it if it is damaged, or {advice}"
    else:
        return True
    raise reader.error(
        "a first line that names the columns, or that begins with a time",
        got,
        advice,
        "header",
    )
