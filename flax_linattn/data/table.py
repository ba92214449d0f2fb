"""Tables of numbers, one row a time: CSV files of forecasting data sets, and users' own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn.checks import choice, shown
from flax_linattn.data.cells import TIME, split_cells
from flax_linattn.data.columns import Columns
from flax_linattn.data.dialect import PLAIN, Dialect, listed_separators
from flax_linattn.data.files import MEND, DataFormatError, LineReader
from flax_linattn.data.long import MAX_ROWS, find_id
from flax_linattn.data.regular import TimesPolicy, regular
from flax_linattn.data.series import TimeSeries


def load_table(
    path: str | Path,
    *,
    header: bool | None = None,
    channels: Sequence[str] | None = None,
    times: TimesPolicy = "report",
    resample: str = "",
    dialect: Dialect = PLAIN,
) -> TimeSeries:
    r"""Loads a table of numbers, one row a time, plain, ``.gz`` or ``.xz``.

    The first column holds the times if it is no number, or named date, time or timestamp; another
    one of such a name if it does not. They are ISO 8601 (``2016-07-01 00:00:00``) or ``2016/7/1
    0:00``, never falling; other ways to write a table are told by ``dialect``. Times with an offset
    from UTC are read as UTC, so that clocks that go back do no harm. Where times repeat or miss,
    rows stay as they are: ``TimeSeries.repeated`` and ``gaps`` tell; a file of which more than half
    of the rows do so is refused. Time-Series-Library's files
    are of this kind, and those of laiguokun's collection, which have neither header nor times.
    Cells may stand in quotes. An empty one, ``?``, ``NA`` or ``NaN`` is a missing value. Blank
    lines and lines that begin with ``#`` are left out.

    Args:
        path: The file.
        header: Whether the first line names the columns. Default: if it begins with "date" or the
            like, or holds words alone, and not if it begins with a time. A line of numbers alone,
            or of words beside numbers (a name, or a damaged number?) has to be told; but numbers
            alone in a ``.txt`` file are a row.
        channels: The columns to read, in this order; the others may hold anything. Default: all.
        times: "strict" refuses a row of the same time as the one before; "irregular" takes rows in
            order where more than half of them do not follow at one distance, too.
        resample: Takes the means within intervals of this length, such as "1h": see ``resample``.
        dialect: Separators, decimal points, times and missing values.

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
        >>> series.channels, series.values.tolist(), series.index[1]
        (('load', 'OT'), [[5.0, 30.5], [nan, 27.0]], Timestamp('2016-07-01 01:00:00'))
    """
    (series,) = read_table(path, header, channels, times, resample, dialect, "")
    return series


def read_table(
    path: str | Path,
    header: bool | None,
    channels: Sequence[str] | None,
    times: TimesPolicy,
    resample: str,
    dialect: Dialect,
    id_column: str,
) -> tuple[TimeSeries, ...]:
    """The series of a table, see ``load_table`` and ``load_long``; one without ``id_column``."""
    choice(get_args(TimesPolicy), times=times)
    try:
        return _read(path, header, channels, times, resample, dialect, id_column)
    except DataFormatError as error:
        name = None if id_column else _id_of(path, header, dialect)
        if name is None:
            raise
        what, *_ = str(error).split("; ")  # what else may be done is the less likely
        raise DataFormatError(
            f"{what}; times rise for each value of column {name!r} alone: if it names several "
            f"series, give id_column={name!r}",
            "id_column",
            id_column=name,
        ) from None


def _id_of(path: str | Path, header: bool | None, dialect: Dialect) -> str | None:
    """The column of a table that may tell several series apart."""
    try:
        with LineReader(path) as reader:
            lines = _cells(reader, dialect)
            names = next(lines)
            if not (_is_header(reader, names, dialect) if header is None else header):
                return None
            whole = (cells for cells in lines if len(cells) == len(names))
            return find_id(list(islice(whole, MAX_ROWS)), names, dialect)
    except (DataFormatError, StopIteration):
        return None


def _read(
    path: str | Path,
    header: bool | None,
    channels: Sequence[str] | None,
    times: TimesPolicy,
    resample: str,
    dialect: Dialect,
    id_column: str,
) -> tuple[TimeSeries, ...]:
    with LineReader(path) as reader:
        lines = _cells(reader, dialect)
        first = next(lines, None)
        if first is None:
            raise reader.error("rows of numbers", "none", "check that this is the right file")
        header_line = reader.line
        named = _is_header(reader, first, dialect) if header is None else header
        if named:
            if "" in first:
                raise reader.error(
                    "a name for each column",
                    f"none for column {first.index('') + 1}",
                    "name it, or drop it (pandas: to_csv(..., index=False))",
                )
            row = next(lines, None)
            if row is None:
                raise reader.error("rows of numbers after the header", "none", "add some")
        else:
            row = first
        columns = Columns(
            reader, first if named else None, header_line, row, channels, id_column, dialect
        )
        series: dict[str, _Rows] = {}
        for cells in chain([row], lines):
            name, time, values = columns.read(cells)
            series.setdefault(name, _Rows(reader, times == "strict")).add(time, values)
        stem = reader.path.name.split(".")[0]
        found = [rows.finish(name or stem, columns) for name, rows in series.items()]
    return regular(found, str(reader.path), times, resample)


class _Rows:
    """The rows of a series as they are read.

    Args:
        reader: the file.
        strict: whether a repeated time is refused.
    """

    def __init__(self, reader: LineReader, strict: bool) -> None:
        self._reader = reader
        self._strict = strict
        self._times: list[datetime] = []
        self._lines: list[int] = []
        self._values: list[NDArray[np.float64]] = []

    def add(self, time: datetime | None, values: NDArray[np.float64]) -> None:
        if time is not None:
            self._check(time)
            self._times.append(time)
        self._lines.append(self._reader.line)
        self._values.append(values)

    def _check(self, time: datetime) -> None:
        last = self._times[-1] if self._times else None
        if last is None:
            return
        if (last.tzinfo is None) != (time.tzinfo is None):
            kinds = ("an offset from UTC", "none")
            expected, got = kinds if last.tzinfo is not None else kinds[::-1]
            raise self._reader.error(
                f"a time with {expected}, as in the row before",
                f"{time} with {got}",
                "write all times with their offset, such as +02:00 or Z, or none",
            )
        if time < last or (self._strict and time == last):
            raise self._reader.error(
                f"a time after {last}, that of the row before",
                f"{time}",
                "sort the rows, drop repeated ones (fractions of a second do not count), and write "
                "times in UTC, or with their offset, where clocks go back; where the file holds "
                "several series, name the column that tells them apart, with id_column=...",
                *(["times"] if time == last else ["id_column"]),
            )

    def finish(self, name: str, columns: Columns) -> TimeSeries:
        return TimeSeries(
            name,
            np.stack(self._values),
            columns.channels,
            pd.DatetimeIndex(self._times) if columns.timed else None,
            np.array(self._lines),
        )


def _cells(reader: LineReader, dialect: Dialect) -> Iterator[list[str]]:
    """The cells of each line; the first two tell the separator."""
    content = (
        text for text in reader if (text.strip() or "\t" in text) and not text.startswith("#")
    )
    first = [(text, reader.line) for text in islice(content, 2)]
    if not first:
        return
    separators = dialect.sniff([text for text, _ in first])
    if len(separators) > 1:
        reader.line = first[0][1]
        raise reader.error(
            "cells separated by one character",
            f"{listed_separators(separators)}, each of which would do",
            "say which it is, with separator=...",
            "separator",
        )
    (separator,) = separators
    for text, line in chain(first, ((text, 0) for text in content)):
        reader.line = line or reader.line
        if not text.strip() and not (separator == "\t" and "\t" in text):
            continue
        try:
            yield split_cells(text, separator)
        except ValueError:
            raise reader.error(
                f"cells separated by {separator!r}, each quote closed", shown(text), MEND
            ) from None


def _is_header(reader: LineReader, cells: list[str], dialect: Dialect) -> bool:
    """Whether the first line names the columns; refuses where a row may be damaged, or a name."""
    if cells[0].lower() in TIME:
        return True
    timed = [dialect.time(cell) is not None for cell in cells]
    if timed[0] and not dialect.is_number(cells[0]):
        return False
    words = [
        cell
        for cell, is_time in zip(cells, timed, strict=True)
        if not is_time and not dialect.is_value(cell)
    ]
    others = [
        cell
        for cell, is_time in zip(cells, timed, strict=True)
        if is_time or dialect.is_number(cell)
    ]
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
