"""Tables of events, one a row, with dates or numbers as times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from flax_linattn.checks import OptionError, listed, shown
from flax_linattn.data.cells import is_number, split_cells
from flax_linattn.data.events.clock import Clock, SkippedTimeError
from flax_linattn.data.events.gather import LARGEST_TIME, Rows
from flax_linattn.data.events.sequences import UNMARKED, EventSequences
from flax_linattn.data.files import MEND, LineReader

_DEFAULTS = {"mark": "mark", "sequence": "sequence"}
"""Columns that need not be there, as long as another is not asked for."""


def load_event_table(
    path: str | Path,
    *,
    time: str = "time",
    mark: str = "mark",
    sequence: str = "sequence",
    timezone: str = "UTC",
    sort: bool = False,
    begin: float | str | None = None,
    end: float | str | None = None,
) -> EventSequences:
    r"""Loads a table of events with a header, separated by commas, plain, ``.gz`` or ``.xz``.

    Times are numbers, or dates: ISO 8601 with or without a fraction and a time zone
    (``2016-07-01 00:00:00.25+02:00``), or ``2016/7/1 0:00``; dates become seconds since 1970-01-01
    UTC. ``20160701`` is a number. Where clocks go back and show an hour twice, a date without its
    own zone is in the first of the two; a time that clocks skip as they go forward is refused.

    Marks and sequences are any text. The names of marks are those that there are, by number if all
    are whole numbers, else as text. Rows of a sequence need not be adjacent; its events never go
    back in time. Other columns may hold anything. Cells may stand in quotes; blank lines are left
    out, and before the header lines that begin with ``#``.

    Args:
        path: The file.
        time: The column of times.
        mark: The column of marks. Where there is no "mark", events have none.
        sequence: The column that says of which sequence an event is. Where there is no "sequence",
            all are of one.
        timezone: Of dates without their own, a name of the IANA database.
        sort: Whether to sort the events of each sequence by time.
        begin: When the observation of every sequence began, in the unit of the times, or a date;
            not known by default, so that its first event is given.
        end: When it ended. Default: with the last event of each.

    Returns:
        The sequences, in the order of their first rows.

    Raises:
        FileNotFoundError: There is no such file.
        OptionError: A column is asked for twice; there is no such time zone; a bound is none.
        DataFormatError: The file breaks the format, or has no such column; the message names the
            line.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "rides.csv")
        ...     _ = path.write_text("time,car,mark\n1970-01-01 00:00:01.5,a,out\n"
        ...                         "1970-01-01 00:00:02,b,out\n1970-01-01 00:01:00,a,back\n")
        ...     events = load_event_table(path, sequence="car")
        >>> [own.tolist() for own in events.times], [own.tolist() for own in events.marks]
        ([[1.5, 60.0], [2.0]], [[1, 0], [1]])
        >>> events.mark_names, events.dates
        (('back', 'out'), True)
    """
    asked = {"time": time, "mark": mark, "sequence": sequence}
    if len(set(asked.values())) < len(asked):
        raise OptionError(
            f"time, mark and sequence must be different columns, got {listed([*asked.values()])}.",
            *asked,
        )
    clock = Clock(timezone)
    with LineReader(path) as reader:
        lines = _cells(reader)
        columns, width = _columns(reader, next(lines, []), asked)
        times, rows = _Times(reader, time, clock), Rows(reader)
        at, mark_at, sequence_at = (columns.get(what) for what in asked)
        for cells in lines:
            if len(cells) != width:
                raise reader.error(f"{width} cells, as the header has", f"{len(cells)}", MEND)
            rows.add(
                "" if sequence_at is None else _text(reader, sequence, cells[sequence_at]),
                times.read(cells[at or 0]),
                UNMARKED[0] if mark_at is None else _text(reader, mark, cells[mark_at]),
            )
        found = rows.finish(named=sequence_at is not None, sort=sort, dates=bool(times.dates))
        path = reader.path
    if timezone != "UTC" and not times.dates:
        raise OptionError(
            f"{path}: expected dates, as timezone is {timezone!r}, got numbers as times; leave "
            "timezone out",
            "timezone",
        )
    return found.finish(begin, end, clock if times.dates else None)


def _cells(reader: LineReader) -> Iterator[list[str]]:
    """The header, then the rows."""
    header = True
    for text in reader:
        if not text.strip() or (header and text.startswith("#")):
            continue
        header = False
        try:
            cells = split_cells(text)
        except ValueError:
            raise reader.error(
                "cells separated by ',', each quote closed", shown(text), MEND
            ) from None
        yield cells


def _columns(
    reader: LineReader, header: list[str], asked: dict[str, str]
) -> tuple[dict[str, int], int]:
    """Where the columns are that are asked for, and how many there are of all."""
    if not header:
        raise reader.error("a header and rows of events", "none", "check the path")
    if len(header) == 1 and (other := next((s for s in ";\t|" if s in header[0]), None)):
        raise reader.error("columns separated by ','", repr(other), "write the file with commas")
    counts, columns = Counter(header), {}
    names = [shown(name, 80)[1:-1] for name in header]  # of a damaged file, too
    for what, name in asked.items():
        if counts[name] > 1:
            raise reader.error("different names of columns", f"{shown(name)} twice", "rename one")
        if name in counts:
            columns[what] = header.index(name)
        elif name != _DEFAULTS.get(what):
            raise reader.error(
                f"a column {shown(name)} for {what}=...",
                f"columns {listed(names)}",
                f"name one of these with {what}=..., or add a header if the file has none",
                what,
            )
    return columns, len(header)


def _text(reader: LineReader, column: str, cell: str) -> str:
    if not cell:
        raise reader.error(
            f"a text in column {shown(column)}",
            "an empty cell",
            "fill it, or drop the row",
        )
    return cell


class _Times:
    """Times of rows: numbers or dates, as the first one is.

    Args:
        reader: The file, at the row.
        column: The name of theirs.
        clock: Reads dates.

    Attributes:
        dates: Whether they are dates; None before the first one.
    """

    def __init__(self, reader: LineReader, column: str, clock: Clock) -> None:
        self._reader = reader
        self._column = column
        self._clock = clock
        self._first_line = 0
        self.dates: bool | None = None

    def read(self, cell: str) -> float:
        if self.dates is None:
            self.dates, self._first_line = not is_number(cell), self._reader.line
        seconds = self._date(cell) if self.dates else self._number(cell)
        if seconds is not None:
            return seconds
        if self._reader.line > self._first_line:
            expected = "a date" if self.dates else "a number"
            expected = f"{expected}, as on line {self._first_line}"
        else:
            expected = "a number, or a date such as 2016-07-01 00:00:00,"
        raise self._reader.error(
            f"{expected} in column {shown(self._column)}",
            shown(cell),
            f"correct it; numbers are finite, at most {LARGEST_TIME:g}, and dates have the year "
            "first and a time zone such as +00:00 or none",
        )

    def _number(self, cell: str) -> float | None:
        return float(cell) if is_number(cell) and abs(float(cell)) <= LARGEST_TIME else None

    def _date(self, cell: str) -> float | None:
        if is_number(cell):
            return None
        try:
            return self._clock.seconds(cell)
        except SkippedTimeError as error:
            raise self._reader.error(
                f"a time that there is in column {shown(self._column)}",
                f"{shown(cell)}, but {error}",
                "correct it, or give the time zone that the dates are in with timezone=...",
                "timezone",
            ) from None
