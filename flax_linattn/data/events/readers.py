"""Text files and tables of events, in four formats, read as rows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import tzinfo
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, check_choice, itemize, quote
from flax_linattn.data.errors import REPAIR_ADVICE
from flax_linattn.data.events.clock import MAX_TIME, SkippedTimeError, parse_date
from flax_linattn.data.events.rows import MAX_EVENT_TYPE, EventFileError, EventRows
from flax_linattn.data.files.text_files import LineReader
from flax_linattn.data.files.unpacking import check_unpacked_bytes
from flax_linattn.data.tables.cells import BadCellError, is_number, parse_numbers
from flax_linattn.data.tables.tables import Table, read_table

_OPTIONAL = {"event_type": "mark", "sequence": "sequence"}
"""Default names of optional columns of a table."""

_JODIE = ("user_id", "item_id", "timestamp", "state_label")
"""Columns before the features."""

MAX_DIM_PROCESS = 2**20
"""Maximum ``dim_process``, the number of event types, of an EasyTPP file."""

_CLOSE = {"rtol": 1e-2, "atol": 1e-5}
"""Tolerance between EasyTPP's times and gaps, relative to the last time."""

_JSON_OBJECT_BYTES, _JSON_VALUE_BYTES = 64, 32
"""Bytes of memory of an empty list or dict, and of a number in one."""

_BLANKS = re.compile(r"[ \t\n\r]*")


def read_event_table(
    path: Path,
    zone: tzinfo,
    time: str = "time",
    event_type: str = "mark",
    sequence: str = "sequence",
) -> EventRows:
    """Reads a table with a header."""
    columns = {"time": time, "event_type": event_type, "sequence": sequence}
    if len(set(columns.values())) < len(columns):
        names = itemize([*columns.values()])
        raise OptionError(
            f"time, event_type and sequence must be different columns, got {names}.", *columns
        )
    table = read_table(path, header=True, texts=[*columns.values()])
    texts = {what: _column(table, what, name) for what, name in columns.items()}
    count = len(table.frame)
    if not count:
        raise EventFileError(
            f"{path}: expected rows of events after the header, got none", "check the path"
        )
    rows = EventRows(
        path,
        texts["sequence"] or [""] * count,
        np.zeros(0),
        texts["event_type"],
        table.lines,
        place=lambda row: f"{path}, row {row} (counting from 0)",
    )
    for what in ("event_type", "sequence"):
        cells = texts[what] or []
        if "" in cells:
            row = cells.index("")
            raise EventFileError(
                f"{rows.where(row)}: expected a value in column {quote(columns[what])}, got an "
                "empty cell",
                "fill in the cell, or drop the row",
            )
    return _timed(rows, time, texts["time"] or [], zone, named=texts["sequence"] is not None)


def _column(table: Table, what: str, name: str) -> list[str] | None:
    """Returns the texts of a column; None if an optional column is missing."""
    names, place = table.names, table.source
    if table.lines is not None:
        place = f"{place}:{table.header_line}"
    if names.count(name) > 1:
        raise EventFileError(
            f"{place}: expected distinct column names, got {quote(name)} twice",
            "rename one of the columns",
        )
    if name in names:
        cells = table.frame.iloc[:, names.index(name)]
        return ["" if cell is None else str(cell).strip() for cell in cells]
    if name == _OPTIONAL.get(what):
        return None
    raise EventFileError(
        f"{place}: expected a column {quote(name)} of {what.replace('_', ' ')}s, got columns "
        f"{itemize([quote(other, 80)[1:-1] for other in names])}",
        f"name one of these with {what}=..., or add a header if the file has none",
        what,
    )


def _timed(
    rows: EventRows, column: str, cells: list[str], zone: tzinfo, *, named: bool
) -> EventRows:
    """Parses the times of rows: all dates or all numbers, as the first one is."""
    rows.named, rows.dates = named, bool(cells) and not is_number(cells[0])
    rows.options = ("sort",)
    rows.advice = "sort the rows by time, or pass sort=True"
    if rows.dates:
        rows.advice += ", and write times in UTC where clocks go back"
        rows.time = np.array([_date(rows, column, *own, zone) for own in enumerate(cells)])
        return rows
    rows.time, bad = _finite(cells)
    if bad is not None:
        raise _no_time(rows, column, bad, cells[bad])
    return rows


def _date(rows: EventRows, column: str, row: int, cell: str, zone: tzinfo) -> float:
    try:
        seconds = None if is_number(cell) else parse_date(cell, zone)
    except SkippedTimeError as error:
        raise EventFileError(
            f"{rows.where(row)}: expected an existing local time in column {quote(column)}, "
            f"got {quote(cell)}, but {error}",
            "correct it, or pass the time zone of the dates with timezone=...",
            "timezone",
        ) from None
    if seconds is None:
        raise _no_time(rows, column, row, cell)
    return seconds


def _no_time(rows: EventRows, column: str, row: int, cell: str) -> EventFileError:
    expected = "a number, or a date such as 2016-07-01 00:00:00,"
    if row:
        expected = f"a {'date' if rows.dates else 'number'}, as in the first row"
    return EventFileError(
        f"{rows.where(row)}: expected {expected} in column {quote(column)}, got {quote(cell)}",
        f"correct it; numbers must be finite, at most {MAX_TIME:g}, and dates must begin with the "
        "year and end with a time zone such as +00:00 or none",
    )


def _finite(cells: list[str]) -> tuple[NDArray[np.float64], int | None]:
    """Parses numbers up to ``MAX_TIME``; also returns the index of the first invalid cell."""
    try:
        numbers = parse_numbers(cells, missing=())
    except BadCellError as bad:
        return np.zeros(0), bad.index
    wrong = np.flatnonzero(~(np.abs(numbers) <= MAX_TIME))
    return numbers, int(wrong[0]) if wrong.size else None


def read_jodie(
    path: Path, zone: tzinfo, event_type: str = "", sequence: str = _JODIE[0]
) -> EventRows:
    """Reads interactions of users with items."""
    users_and_items = _JODIE[:2]
    check_choice(users_and_items, sequence=sequence)
    event_type = event_type or users_and_items[sequence == _JODIE[0]]
    check_choice((*users_and_items, "state_label"), event_type=event_type)
    if event_type == sequence:
        raise OptionError(
            f"event_type and sequence must be different, got {event_type!r} for both.",
            "event_type",
            "sequence",
        )
    cells: tuple[list[str], ...] = ([], [], [], [])
    line: list[int] = []
    header: bool | None = None
    with LineReader(path) as reader:
        for text in reader:
            if not text.strip():
                continue
            if header is None:
                header = "," in text
                if header and has_jodie_header(text):
                    continue
                if header or event_type == "state_label":
                    advice = "read another table with format='table'"
                    advice = advice if header else "choose another event type"
                    raise EventFileError(
                        f"{path}:{reader.line}: expected a header that begins with "
                        f"{','.join(_JODIE)}, got {quote(text, 80)}",
                        f"add it as the first line, or {advice}",
                        "format" if header else "event_type",
                    )
            row = [cell.strip() for cell in text.split(",", 4)[:4]] if header else text.split()
            if len(row) != (4 if header else 3):
                raise reader.error(
                    "user, item, timestamp, state label and features, separated by ','"
                    if header
                    else "user, item and timestamp, separated by blanks",
                    quote(text),
                    REPAIR_ADVICE,
                )
            for column, cell in zip(cells, row, strict=False):
                column.append(sys.intern(cell))  # ids and labels repeat in millions of rows
            line.append(reader.line)
            reader.check_count(len(line))
        if not line:
            raise reader.error(
                "rows of events after the header", "none", "check that this is the right file"
            )
    texts = dict(zip(_JODIE, cells, strict=True))
    rows = EventRows(
        path, texts[sequence], np.zeros(0), texts[event_type], np.array(line), in_order=True
    )
    for name in (sequence, event_type):
        for place, cell in enumerate(texts[name]):
            if not (cell.isascii() and cell.isdigit()) and (not cell or _is_float(cell)):
                raise EventFileError(
                    f"{rows.where(place)}: expected {name} as an integer from 0 on or a word, "
                    f"got {quote(cell)}",
                    REPAIR_ADVICE,
                )
    return _timed(rows, "timestamp", texts["timestamp"], zone, named=True)


def has_jodie_header(text: str) -> bool:
    """Whether a line is the header of a JODIE file, up to its features."""
    names = tuple(name.strip() for name in text.split(",", 4)[:4])
    return names in (_JODIE, ("user", "item", *_JODIE[2:]))


def _is_float(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def read_rmtpp(path: Path, event_types_file: str | Path | None = None) -> EventRows:
    """Reads a file of times and one of event types, one sequence per line."""
    times: list[NDArray[np.float64]] = []
    with LineReader(path) as reader:
        for cells in _sequences(reader):
            numbers, bad = _finite(cells)
            if bad is not None:
                raise reader.error(
                    f"finite times separated by blanks, at most {MAX_TIME:g}",
                    f"{quote(cells[bad])} as event {bad + 1} of the line",
                    REPAIR_ADVICE,
                )
            times.append(numbers)
        if not times:
            raise reader.error("a sequence of times on each line", "none", "check the path")
    sizes = np.array([len(own) for own in times])
    line = np.repeat(np.arange(1, len(times) + 1), sizes)
    types = None
    if event_types_file is not None:
        types = _read_event_types(Path(event_types_file), path, sizes.tolist())
    return EventRows(path, line, np.concatenate(times), types, line)


def _read_event_types(path: Path, other: Path, sizes: list[int]) -> NDArray[np.int64]:
    event_types: list[int] = []
    pair = "pair the files of one set, or fetch them again if one is cut short"
    with LineReader(path) as reader:
        for cells in _sequences(reader):
            if reader.line > len(sizes):
                raise reader.error(f"{len(sizes)} lines, as in {other}", "more", pair)
            size = sizes[reader.line - 1]
            if len(cells) != size:
                raise reader.error(
                    f"{size} event types, one for each time on line {reader.line} of {other}",
                    f"{len(cells)}",
                    pair,
                )
            for cell in cells:
                digits = cell.isascii() and cell.isdigit() and len(cell) < 20
                if not (digits and int(cell) <= MAX_EVENT_TYPE):
                    raise reader.error(
                        f"event types as integers from 0 to {MAX_EVENT_TYPE}, separated by blanks",
                        quote(cell),
                        "correct it; check that the files of times and event types are not swapped",
                    )
            event_types += map(int, cells)
        if reader.line < len(sizes):
            raise reader.error(f"{len(sizes)} lines, as in {other}", f"{reader.line}", pair)
    return np.array(event_types, np.int64)


def _sequences(reader: LineReader) -> Iterator[list[str]]:
    for text in reader:
        reader.check_count(reader.line)
        cells = text.split()
        if not cells:
            raise reader.error(
                "a sequence of at least one event", "a blank line", "remove it from both files"
            )
        yield cells


def read_easytpp(path: Path) -> EventRows:
    """Reads sequences as JSON objects."""
    times: list[NDArray[np.float64]] = []
    event_types: list[int] = []
    line: list[int] = []
    count: int | None = None
    with LineReader(path) as reader:
        for value in _json_values(reader):
            if not isinstance(value, dict) or not value.keys() >= {
                "time_since_start",
                "type_event",
            }:
                keys = [*value] if isinstance(value, dict) else []
                raise reader.error(
                    "an object with time_since_start and type_event for each sequence",
                    f"one of {itemize(keys)}" if keys else quote(value),
                    "save the sequences of one split in the format of EasyTPP",
                )
            declared = _num_event_types(reader, value.get("dim_process"))
            if times and declared != count:
                raise reader.error(
                    f"dim_process {count}, as in the first object", f"{declared}", REPAIR_ADVICE
                )
            count = declared
            times.append(_object_times(reader, value))
            max_type = MAX_EVENT_TYPE if count is None else count - 1
            expected = f"type_event as integers from 0 to {max_type}"
            expected += "" if count is None else f", as dim_process is {count}"
            own = _list(reader, value, "type_event", len(times[-1]))
            for at, index in enumerate(own):
                if type(index) is not int or not 0 <= index <= max_type:
                    raise reader.error(expected, f"{quote(index)} as event {at + 1}", REPAIR_ADVICE)
            event_types += own
            line.append(reader.line)
    sizes = [len(own) for own in times]
    return EventRows(
        path,
        np.repeat(np.arange(len(times)), sizes),
        np.concatenate(times),
        np.array(event_types, np.int64),
        np.repeat(line, sizes),
        event_type_names=None if count is None else tuple(map(str, range(count))),
    )


def _num_event_types(reader: LineReader, count: Any) -> int | None:
    if count is None or (type(count) is int and 1 <= count <= MAX_DIM_PROCESS):
        return count
    raise reader.error(
        f"dim_process, the number of event types, from 1 to {MAX_DIM_PROCESS}",
        quote(count),
        REPAIR_ADVICE,
    )


def _object_times(reader: LineReader, value: dict[str, Any]) -> NDArray[np.float64]:
    times = _numbers(reader, value, "time_since_start", None)
    length = value.get("seq_len")
    if length is not None and length != len(times):
        raise reader.error(
            f"{quote(length)} times, as declared by seq_len", f"{len(times)}", REPAIR_ADVICE
        )
    if "time_since_last_event" in value:
        gaps = _numbers(reader, value, "time_since_last_event", len(times))
        within = _CLOSE["rtol"] * np.abs(gaps) + _CLOSE["atol"] * np.abs(times).max()
        off = np.flatnonzero(np.abs(np.diff(times) - gaps[1:]) > within[1:])
        if off.size:
            at = int(off[0]) + 1
            raise reader.error(
                "time_since_last_event as differences of time_since_start",
                f"{gaps[at]} as event {at + 1}, and times {times[at - 1]} and {times[at]}",
                "correct one of the two, or drop time_since_last_event",
            )
    return times


def _numbers(
    reader: LineReader, value: dict[str, Any], key: str, length: int | None
) -> NDArray[np.float64]:
    numbers = _list(reader, value, key, length)
    for at, number in enumerate(numbers):
        # NaN is none of these; integers of any size are compared exactly.
        if type(number) not in (int, float) or not abs(number) <= MAX_TIME:
            raise reader.error(
                f"{key} as finite numbers of at most {MAX_TIME:g}",
                f"{quote(number)} as event {at + 1}",
                REPAIR_ADVICE,
            )
    return np.array(numbers, np.float64)


def _list(reader: LineReader, value: dict[str, Any], key: str, length: int | None) -> list[Any]:
    values = value[key]
    if not isinstance(values, list) or not values:
        raise reader.error(
            f"{key} as a list of at least one event", quote(values), "drop empty sequences"
        )
    if length is not None and len(values) != length:
        raise reader.error(
            f"{key} with {length} values, like time_since_start",
            f"{len(values)}",
            REPAIR_ADVICE,
        )
    return values


def _json_values(reader: LineReader) -> Iterator[Any]:
    """Yields the elements of the array in a file, or its JSON values, such as one per line.

    While a value is parsed, the current line of the reader is the line where the value begins.
    """
    text = "\n".join(reader)
    objects, values = text.count("{") + text.count("["), text.count(",")
    num_bytes = _JSON_OBJECT_BYTES * objects + _JSON_VALUE_BYTES * values
    check_unpacked_bytes(reader.path, num_bytes, reader.path.stat().st_size)
    reader.line = 1
    at = 0

    def move(stop: int) -> str:
        """Skips blanks and returns the next character."""
        nonlocal at
        blanks = _BLANKS.match(text, stop)
        stop = blanks.end() if blanks else stop
        reader.line += text.count("\n", at, stop)
        at = stop
        return text[at : at + 1]

    following = move(0)
    if array := following == "[":
        following = move(at + 1)
    if not following or (array and following == "]"):
        raise reader.error("at least one value", "none", "check that this is the right file")
    while following:
        value, stop = _decode(reader, text, at)
        yield value
        following = move(stop)
        if not array:
            continue
        if following not in (",", "]"):
            got = quote(text[at : at + 50]) if following else "nothing"
            raise reader.error("',' or ']' after a value", got, REPAIR_ADVICE)
        end = following == "]"
        following = move(at + 1)
        if end:
            if following:
                raise reader.error(
                    "the end of the file after ']'", quote(text[at : at + 50]), REPAIR_ADVICE
                )
            return
    if array:
        raise reader.error("']' at the end", "the end of the file", "fetch it again")


def _decode(reader: LineReader, text: str, at: int) -> tuple[Any, int]:
    """Decodes the value at a position; also returns where it ends."""
    expected = "a value as JSON"
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except json.JSONDecodeError as error:
        reader.line = error.lineno
        got = f"{error.msg} at character {error.colno}"
        raise reader.error(expected, got, REPAIR_ADVICE) from None
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise reader.error(expected, quote(error), REPAIR_ADVICE) from None
