"""Tables of events, one a row, with dates or numbers as times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flax_linattn.checks import OptionError, listed, shown
from flax_linattn.data.cells import is_number
from flax_linattn.data.events.clock import Clock, SkippedTimeError
from flax_linattn.data.events.gather import LARGEST_TIME, Rows
from flax_linattn.data.events.sequences import UNMARKED, EventSequences
from flax_linattn.data.tables import Table, read_table

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
    r"""Loads a table of events with a header, from a file that ``load_series`` reads, too.

    Times are numbers, or dates: ISO 8601 with or without a fraction and a time zone
    (``2016-07-01 00:00:00.25+02:00``), or ``2016/7/1 0:00``; dates become seconds since 1970-01-01
    UTC. ``20160701`` is a number. Where clocks go back and show an hour twice, a date without its
    own zone is in the first of the two; a time that clocks skip as they go forward is refused.

    Marks and sequences are any text. The names of marks are those that there are, by number if all
    are whole numbers, else as text. Rows of a sequence need not be adjacent; its events never go
    back in time. Other columns may hold anything. Cells of text may stand in quotes; blank lines
    and comments are left out.

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
    table = read_table(path, header=True, texts=[*asked.values()])
    times, marks, sequences = _columns(table, asked)
    dates = bool(times) and not is_number(times[0])
    rows = Rows(Path(table.source))
    lines = range(1, len(times) + 1) if table.lines is None else table.lines.tolist()
    for row, line in enumerate(lines):
        own = "" if sequences is None else _text(table, row, sequence, sequences[row])
        seconds = _time(table, row, time, times[row], clock if dates else None)
        what = UNMARKED[0] if marks is None else _text(table, row, mark, marks[row])
        rows.add(own, seconds, what, line)
    found = rows.finish(named=sequences is not None, sort=sort, dates=dates)
    if timezone != "UTC" and not dates:
        raise OptionError(
            f"{path}: expected dates, as timezone is {timezone!r}, got numbers as times; leave "
            "timezone out",
            "timezone",
        )
    return found.finish(begin, end, clock if dates else None)


def _columns(table: Table, asked: dict[str, str]) -> list[Any]:
    """The texts of the columns of times, marks and sequences; None where there is none."""
    names = table.names
    found: list[Any] = []
    for what, name in asked.items():
        if names.count(name) > 1:
            raise table.error(
                None, "different names of columns", f"{shown(name)} twice", "rename one"
            )
        if name in names:
            column = table.frame.iloc[:, names.index(name)]
            found.append(["" if cell is None else str(cell).strip() for cell in column])
        elif name == _DEFAULTS.get(what):
            found.append(None)
        else:
            raise table.error(
                None,
                f"a column {shown(name)} for {what}=...",
                f"columns {listed([shown(other, 80)[1:-1] for other in names])}",
                f"name one of these with {what}=..., or add a header if the file has none",
                what,
            )
    return found


def _text(table: Table, row: int, column: str, cell: str) -> str:
    if not cell:
        raise table.error(
            row, f"a text in column {shown(column)}", "an empty cell", "fill it, or drop the row"
        )
    return cell


def _time(table: Table, row: int, column: str, cell: str, clock: Clock | None) -> float:
    """A time in seconds, or a number where there is no clock."""
    numeric = is_number(cell)
    seconds = None
    if clock is None and numeric and abs(float(cell)) <= LARGEST_TIME:
        seconds = float(cell)
    elif clock is not None and not numeric:
        try:
            seconds = clock.seconds(cell)
        except SkippedTimeError as error:
            raise table.error(
                row,
                f"a time that there is in column {shown(column)}",
                f"{shown(cell)}, but {error}",
                "correct it, or give the time zone that the dates are in with timezone=...",
                "timezone",
            ) from None
    if seconds is not None:
        return seconds
    expected = "a number, or a date such as 2016-07-01 00:00:00,"
    if row:
        expected = f"{'a number' if clock is None else 'a date'}, as in the first row"
    raise table.error(
        row,
        f"{expected} in column {shown(column)}",
        shown(cell),
        f"correct it; numbers are finite, at most {LARGEST_TIME:g}, and dates have the year first "
        "and a time zone such as +00:00 or none",
    )
