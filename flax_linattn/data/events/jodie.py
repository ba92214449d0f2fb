"""Interactions of users with items, one a row, as JODIE has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flax_linattn.checks import OptionError, choice, shown
from flax_linattn.data.cells import is_number
from flax_linattn.data.events.gather import LARGEST_TIME, SORT, Rows
from flax_linattn.data.events.sequences import EventSequences
from flax_linattn.data.files import MEND, LineReader

COLUMNS = ("user_id", "item_id", "timestamp", "state_label")
"""Before the features."""

_OTHER = {"user_id": "item_id", "item_id": "user_id"}


def load_jodie(
    path: str | Path,
    *,
    sequence: str = "user_id",
    mark: str | None = None,
    sort: bool = False,
    begin: float | str | None = None,
    end: float | str | None = None,
) -> EventSequences:
    r"""Loads interactions of users with items, plain, ``.gz`` or ``.xz``.

    Two forms: a header ``user_id,item_id,timestamp,state_label,comma_separated_list_of_features``
    (or ``user,item,...``) and such rows, whose features are not read and may be of any number; or,
    without a header, ``user item timestamp`` separated by blanks. Rows are in the order of their
    times, over all users. Users and items are whole numbers from 0 on, or words; blank lines are
    left out. The format has no unit of time; Wikipedia's are seconds since the first edit.

    Args:
        path: The file.
        sequence: What makes a sequence, "user_id" or "item_id".
        mark: What the marks are: "user_id", "item_id" or "state_label". Default: the one of the
            first two that ``sequence`` is not.
        sort: Whether to sort the events by time; without, rows that go back in time are refused.
        begin: When the observation of every sequence began, in the unit of the times; not known by
            default, so that its first event is given.
        end: When it ended. Default: with the last event of each.

    Raises:
        FileNotFoundError: There is no such file.
        OptionError: ``sequence`` or ``mark`` is something else, or both are the same.
        DataFormatError: The file breaks the format; the message names the line.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.csv")
        ...     _ = path.write_text("user_id,item_id,timestamp,state_label,features\n"
        ...                         "7,1,0.0,0,0.1,0.2\n8,1,2.5,0,0.1\n7,0,3,1,0\n")
        ...     events = load_jodie(path)
        >>> [own.tolist() for own in events.times], [own.tolist() for own in events.marks]
        ([[0.0, 3.0], [2.5]], [[1, 0], [1]])
    """
    choice(_OTHER, sequence=sequence)
    mark = _OTHER[sequence] if mark is None else mark
    choice((*_OTHER, "state_label"), mark=mark)
    if mark == sequence:
        raise OptionError(
            f"mark and sequence must be different, got {mark!r} for both.", "mark", "sequence"
        )
    with LineReader(path) as reader:
        rows, last = Rows(reader.path), -LARGEST_TIME
        for cells in _cells(reader, mark == "state_label"):
            row = dict(zip(COLUMNS, cells, strict=False))
            time = _time(reader, row["timestamp"])
            if time < last and not sort:
                raise reader.error(
                    f"rows in the order of their times, from {last} on",
                    f"{time}",
                    SORT,
                    "sort",
                )
            last = time
            names = (_id(reader, name, row[name]) for name in (sequence, mark))
            rows.add(next(names), time, next(names), reader.line)
        found = rows.finish(named=True, sort=sort)
    return found.finish(begin, end)


def has_jodie_header(text: str) -> bool:
    """Whether a line is the header of such a file, as far as the features.

    Example:
        >>> has_jodie_header("user_id,item_id,timestamp,state_label,features")
        True
    """
    names = tuple(name.strip() for name in text.split(",", 4)[:4])
    return names in (COLUMNS, ("user", "item", *COLUMNS[2:]))


def _cells(reader: LineReader, labels: bool) -> Iterator[list[str]]:
    """The cells of each row, without features."""
    header: bool | None = None
    for text in reader:
        if not text.strip():
            continue
        if header is None:
            header = "," in text
            if header:
                _check_header(reader, text)
                continue
            if labels:
                raise reader.error(
                    "a header with state_label, as mark=... asks for it",
                    shown(text),
                    "choose another mark",
                    "mark",
                )
        cells = [cell.strip() for cell in text.split(",", 4)[:4]] if header else text.split()
        if len(cells) != (4 if header else 3):
            raise reader.error(
                "user, item, timestamp, state label and features, separated by ','"
                if header
                else "user, item and timestamp, separated by blanks",
                shown(text),
                MEND,
            )
        yield cells


def _check_header(reader: LineReader, text: str) -> None:
    if not has_jodie_header(text):
        raise reader.error(
            f"a header that begins with {','.join(COLUMNS)}",
            shown(text, 80),
            "add it as the first line, or read another table with format='table'",
            "format",
        )


def _time(reader: LineReader, cell: str) -> float:
    if is_number(cell) and abs(float(cell)) <= LARGEST_TIME:
        return float(cell)
    raise reader.error(
        f"a timestamp, a finite number of at most {LARGEST_TIME:g}",
        shown(cell),
        "correct it; dates are read from a table, with format='table'",
        "format",
    )


def _id(reader: LineReader, column: str, cell: str) -> str:
    if cell.isascii() and cell.isdigit():
        return cell
    try:
        float(cell)
    except ValueError:
        if cell:
            return cell
    raise reader.error(f"{column} as a whole number from 0 on or a word", shown(cell), MEND)
