"""Sequences as JSON objects, as EasyTPP has them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import listed, shown
from flax_linattn.data.events.gather import LARGEST_MARK, LARGEST_TIME, Found, number_marks
from flax_linattn.data.events.sequences import EventSequences
from flax_linattn.data.files import MEND, LineReader

MOST_MARKS = 2**20
"""That a file may say that there are."""

_CLOSE = {"rtol": 1e-2, "atol": 1e-5}
"""How well times agree with the gaps between them, the latter in shares of the last time."""


def load_easytpp(
    path: str | Path, *, begin: float | str | None = None, end: float | str | None = None
) -> EventSequences:
    r"""Loads sequences as JSON, one object a line or one array of them, plain, ``.gz`` or ``.xz``.

    An object has ``time_since_start`` and ``type_event``, lists of one length. Others are checked
    where there are any: ``time_since_last_event``, loosely, as files round; ``seq_len``; and
    ``dim_process``, the number of marks: their names are then 0, 1, ... below it, and else the
    numbers that there are. The rest is not read.

    Args:
        path: The file.
        begin: When the observation of every sequence began, in the unit of the times; not known by
            default, so that its first event is given.
        end: When it ended. Default: with the last event of each.

    Raises:
        FileNotFoundError: There is no such file.
        DataFormatError: The file breaks the format; the message names the line at which the
            object begins.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.json")
        ...     _ = path.write_text('{"time_since_start": [0, 1.5], "type_event": [2, 0],'
        ...                         ' "time_since_last_event": [0, 1.5], "dim_process": 3}\n')
        ...     events = load_easytpp(path)
        >>> events.times[0].tolist(), events.marks[0].tolist(), events.mark_names
        ([0.0, 1.5], [2, 0], ('0', '1', '2'))
    """
    times: list[NDArray[np.float64]] = []
    marks: list[NDArray[np.int64]] = []
    lines: list[int] = []
    count: int | None = None
    with LineReader(path) as reader:
        for value in json_values(reader):
            item = _Object(reader, value)
            declared = item.count()
            if times and declared != count:
                raise reader.error(
                    f"dim_process {count}, as in the first object", f"{declared}", MEND
                )
            count = declared
            times.append(item.times())
            marks.append(item.marks(len(times[-1]), count))
            lines.append(reader.line)
        path = reader.path
    if count is None:
        indices, names = number_marks(marks)
    else:
        indices = [numbers.astype(np.int32) for numbers in marks]
        names = tuple(str(number) for number in range(count))
    return Found(
        path,
        times,
        indices,
        names,
        lambda sequence, _: f"{path}:{lines[sequence]}",
        lines=[np.full(len(own), line) for own, line in zip(times, lines, strict=True)],
    ).finish(begin, end)


class _Object:
    """One sequence as JSON has it.

    Args:
        reader: The file, at the line at which it begins.
        value: What is there.
    """

    def __init__(self, reader: LineReader, value: Any) -> None:
        self._reader = reader
        if not isinstance(value, dict) or not value.keys() >= {"time_since_start", "type_event"}:
            keys = [*value] if isinstance(value, dict) else []
            raise reader.error(
                "an object with time_since_start and type_event for each sequence",
                f"one of {listed(keys)}" if keys else shown(value),
                "write the sequences of one split so, as EasyTPP does",
            )
        self._value = value

    def count(self) -> int | None:
        """Marks that there are, if it says so."""
        count = self._value.get("dim_process")
        if count is None:
            return None
        if type(count) is not int or not 1 <= count <= MOST_MARKS:
            raise self._reader.error(
                f"dim_process, the number of marks, from 1 to {MOST_MARKS}", shown(count), MEND
            )
        return count

    def times(self) -> NDArray[np.float64]:
        times = self._numbers("time_since_start", None)
        length = self._value.get("seq_len")
        if length is not None and length != len(times):
            raise self._reader.error(
                f"as many times as seq_len says, {shown(length)}", f"{len(times)}", MEND
            )
        if "time_since_last_event" in self._value:
            gaps = self._numbers("time_since_last_event", len(times))
            within = _CLOSE["rtol"] * np.abs(gaps) + _CLOSE["atol"] * np.abs(times).max()
            off = np.flatnonzero(np.abs(np.diff(times) - gaps[1:]) > within[1:])
            if off.size:
                at = int(off[0]) + 1
                raise self._reader.error(
                    "time_since_last_event as differences of time_since_start",
                    f"{gaps[at]} at event {at}, from 0, and times {times[at - 1]} and {times[at]}",
                    "correct one of the two, or drop time_since_last_event",
                )
        return times

    def marks(self, length: int, count: int | None) -> NDArray[np.int64]:
        most = LARGEST_MARK if count is None else count - 1
        marks = self._list("type_event", length)
        for at, mark in enumerate(marks):
            if type(mark) is not int or not 0 <= mark <= most:
                raise self._reader.error(
                    f"type_event as whole numbers from 0 to {most}"
                    + ("" if count is None else f", as dim_process is {count}"),
                    f"{shown(mark)} at event {at}, from 0",
                    MEND,
                )
        return np.array(marks, np.int64)

    def _numbers(self, key: str, length: int | None) -> NDArray[np.float64]:
        values = self._list(key, length)
        for at, value in enumerate(values):
            # NaN is none of these; whole numbers of any size are compared exactly.
            if type(value) not in (int, float) or not abs(value) <= LARGEST_TIME:
                raise self._reader.error(
                    f"{key} as finite numbers of at most {LARGEST_TIME:g}",
                    f"{shown(value)} at event {at}, from 0",
                    MEND,
                )
        return np.array(values, np.float64)

    def _list(self, key: str, length: int | None) -> list[Any]:
        values = self._value[key]
        if not isinstance(values, list) or not values:
            raise self._reader.error(
                f"{key} as a list of at least one event", shown(values), "drop empty sequences"
            )
        if length is not None and len(values) != length:
            raise self._reader.error(
                f"{length} of {key}, as there are of time_since_start", f"{len(values)}", MEND
            )
        return values


_BLANKS = re.compile(r"[ \t\n\r]*")


def json_values(reader: LineReader) -> Iterator[Any]:
    r"""The elements of the one array in a file, or its values between blanks, such as one a line.

    Args:
        reader: The file; while a value is looked at, its line is that at which the value begins.

    Raises:
        DataFormatError: The file is no such JSON, or holds no value.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.json")
        ...     _ = path.write_text("[1,\n\n{}]")
        ...     with LineReader(path) as reader:
        ...         [(value, reader.line) for value in json_values(reader)]
        [(1, 1), ({}, 3)]
    """
    text = _Text(reader)
    array = text.take("[")
    if text.ended or (array and text.take("]")):
        raise reader.error("at least one value", "none", "check that this is the right file")
    while not text.ended:
        value, stop = text.decode()
        yield value
        text.move(stop)
        if array and not text.take(","):
            if not text.take("]"):
                raise reader.error("',' or ']' after a value", text.next, MEND)
            if not text.ended:
                raise reader.error("the end of the file after ']'", text.next, MEND)
            return
    if array:
        raise reader.error("']' at the end", "the end of the file", "fetch it again")


class _Text:
    """The text of a file and a place in it, behind blanks; the line of the reader is that place's.

    Args:
        reader: The file, unread.
    """

    def __init__(self, reader: LineReader) -> None:
        self._reader = reader
        self._text = "\n".join(reader)
        self._at = 0
        self._decoder = json.JSONDecoder()
        reader.line = 1
        self.move(0)

    @property
    def ended(self) -> bool:
        return self._at == len(self._text)

    @property
    def next(self) -> str:
        """What comes, for a message."""
        return shown(self._text[self._at : self._at + 50]) if not self.ended else "nothing"

    def move(self, stop: int) -> None:
        blanks = _BLANKS.match(self._text, stop)
        stop = blanks.end() if blanks else stop
        self._reader.line += self._text.count("\n", self._at, stop)
        self._at = stop

    def take(self, character: str) -> bool:
        """Whether it comes; goes behind it."""
        if not self._text.startswith(character, self._at):
            return False
        self.move(self._at + 1)
        return True

    def decode(self) -> tuple[Any, int]:
        """The value that comes, and where it ends."""
        expected = "a value as JSON"
        try:
            return self._decoder.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            self._reader.line = error.lineno
            got = f"{error.msg} at character {error.colno}"
            raise self._reader.error(expected, got, MEND) from None
        except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
            raise self._reader.error(expected, shown(error), MEND) from None
