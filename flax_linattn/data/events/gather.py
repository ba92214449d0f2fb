"""What a reader of events found in a file, checked by line and made into sequences."""

from __future__ import annotations

import dataclasses
import math
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, shown
from flax_linattn.data.cells import is_number
from flax_linattn.data.events.clock import Clock, SkippedTimeError, date_of
from flax_linattn.data.events.sequences import EventSequences
from flax_linattn.data.files import DataFormatError

LARGEST_TIME = 1e100
"""Of times, either side of 0: differences and sums of such ones are finite."""

LARGEST_MARK = 10**15
"""Of marks that are numbers; float64 holds each one exactly."""

_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)

SORT = "sort the rows by time, or say sort=True"
"""Advice where rows go back in time."""


@dataclasses.dataclass
class Found:
    """Events as a file has them.

    Attributes:
        path: The file.
        times: Of the events of each sequence, float64 [n], n >= 1, finite.
        marks: Of the same events, int32 [n], as indices into ``mark_names``.
        mark_names: All marks that there may be.
        place: Where an event of a sequence is in the file, for a message, such as ``path:line``.
        keys: How the file names the sequences. Default: they have numbers, from 0.
        lines: Of the events, int64 [n] each; None where the file has none.
        begin: Of each sequence, as the file has it, float64 [N], NaN where it has none.
        end: Likewise.
        dates: Whether the times are seconds since 1970 UTC.
        advice: What to do where times go backwards.
        options: Names of the options that this advice is about.
    """

    path: Path
    times: Sequence[NDArray[np.float64]]
    marks: Sequence[NDArray[np.int32]]
    mark_names: tuple[str, ...]
    place: Callable[[int, int], str]
    keys: Sequence[str] | None = None
    lines: Sequence[NDArray[np.int64]] | None = None
    begin: NDArray[np.float64] | None = None
    end: NDArray[np.float64] | None = None
    dates: bool = False
    advice: str = "sort the events of each sequence by time"
    options: tuple[str, ...] = ()

    def finish(
        self, begin: float | str | None, end: float | str | None, clock: Clock | None = None
    ) -> EventSequences:
        """Checks the order of times and the bounds.

        Args:
            begin: Of all sequences, in place of the file's own, as a user gives it: see
                ``read_bound``.
            end: Likewise.
            clock: Reads dates; None where the times of the file are numbers.

        Raises:
            TypeError: A bound is neither a number nor a text.
            OptionError: A bound is not finite, or no such text.
            DataFormatError: Times of a sequence go backwards, or one is outside the bounds.
        """
        begins = self._bounds(self.begin, read_bound("begin", begin, self.path, clock))
        ends = self._bounds(self.end, read_bound("end", end, self.path, clock))
        for index, times in enumerate(self.times):
            self._check_order(index, times)
            if begins is not None and begins[index] > times[0]:
                self._outside(index, 0, "begin", "at or after", begins[index], "an earlier")
            if ends is not None and ends[index] < times[-1]:
                self._outside(index, len(times) - 1, "end", "at or before", ends[index], "a later")
        return EventSequences(
            self.path.name.split(".")[0],
            tuple(self.times),
            tuple(self.marks),
            self.mark_names,
            begin=begins,
            end=ends,
            dates=self.dates,
            lines=None if self.lines is None else tuple(self.lines),
            names=None if self.keys is None else tuple(self.keys),
        )

    def _bounds(
        self, found: NDArray[np.float64] | None, option: float | None
    ) -> NDArray[np.float64] | None:
        return found if option is None else np.full(len(self.times), option)

    def _check_order(self, index: int, times: NDArray[np.float64]) -> None:
        back = np.flatnonzero(times[1:] < times[:-1])
        if back.size:
            event = int(back[0]) + 1
            raise DataFormatError(
                f"{self.place(index, event)}: expected times that never go backwards in "
                f"{self._sequence(index)}, got {self._told(times[event])} after "
                f"{self._told(times[event - 1])}; {self.advice}",
                *self.options,
            )

    def _outside(
        self, index: int, event: int, what: str, where: str, bound: float, change: str
    ) -> NoReturn:
        raise DataFormatError(
            f"{self.place(index, event)}: expected events {where} {self._told(bound)}, the {what} "
            f"of {self._sequence(index)}, got one at {self._told(self.times[index][event])}; give "
            f"{change} {what}",
            what,
        )

    def _sequence(self, index: int) -> str:
        return f"sequence {index if self.keys is None else shown(self.keys[index])}"

    def _told(self, time: float) -> str:
        return date_of(time) if self.dates else str(float(time))


def read_bound(
    name: str, value: float | str | None, path: Path, clock: Clock | None = None
) -> float | None:
    """A begin or an end in the unit of the times of a file.

    Args:
        name: Of the option, for messages.
        value: A number in that unit, also as text, or a date; None is none.
        path: The file, for messages.
        clock: Reads dates; None where the times of the file are numbers.

    Raises:
        TypeError: It is neither a number nor a text.
        OptionError: It is not finite, or no such text.

    Example:
        >>> read_bound("begin", "1970-01-02", Path("a.csv"), Clock())
        86400.0
        >>> read_bound("begin", "1970-01-02", Path("a.csv"))
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: begin must be a number, as the times of a.csv are, got ...
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, str, np.number)):
        raise TypeError(f"{name} must be a number or a date as text, got {shown(value)}.")
    seconds: float | None
    if not isinstance(value, str):
        seconds = _float(value)
    elif is_number(value):
        seconds = float(value)
    elif clock is None:
        raise OptionError(
            f"{name} must be a number, as the times of {path} are, got {shown(value)}.", name
        )
    else:
        seconds = _date(name, value, clock)
    if seconds is None or not abs(seconds) <= LARGEST_TIME:
        dates = "" if clock is None else " or a date such as 2016-07-01 00:00:00"
        raise OptionError(
            f"{name} must be a finite number{dates}, at most {LARGEST_TIME:g}, got {shown(value)}.",
            name,
        )
    return seconds


def _float(value: float | np.number) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _date(name: str, text: str, clock: Clock) -> float | None:
    try:
        return clock.seconds(text.strip())
    except SkippedTimeError as error:
        raise OptionError(
            f"{name} must be a time that there is, got {shown(text)}, but {error}; give it in "
            "UTC, as 2016-07-01 00:00:00+00:00.",
            name,
        ) from None


def mark_names(names: Iterable[str]) -> list[str]:
    """Names in their order: by number if all are whole numbers, else as text.

    Example:
        >>> mark_names(["10", "9"]), mark_names(["10", "9", "a"])
        (['9', '10'], ['10', '9', 'a'])
    """
    names = list(names)
    if all(_WHOLE.fullmatch(name) for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def number_marks(
    numbers: Sequence[NDArray[np.int64]],
) -> tuple[list[NDArray[np.int32]], tuple[str, ...]]:
    """Marks that are numbers, as indices into the names of those that there are.

    Args:
        numbers: Of the events of each sequence, int64 [n].

    Returns:
        The indices, int32 [n] each, and the names in their order.

    Example:
        >>> number_marks([np.array([9, 1]), np.array([9])])
        ([array([1, 0], dtype=int32), array([1], dtype=int32)], ('1', '9'))
    """
    different, indices = np.unique(np.concatenate(numbers), return_inverse=True)
    stops = np.cumsum([len(own) for own in numbers])
    marks = np.split(indices.astype(np.int32), stops[:-1])
    return marks, tuple(str(number) for number in different)


class Rows:
    """Rows as they are read; sequences are in the order of their first rows.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sequences: dict[str, int] = {}
        self._marks: dict[str, int] = {}
        self._sequence_of = array("q")
        self._mark_of = array("q")
        self._times = array("d")
        self._lines = array("q")

    def add(self, sequence: str, time: float, mark: str, line: int) -> None:
        """Adds an event.

        Args:
            sequence: The name of its sequence.
            time: Finite.
            mark: The name of its mark.
            line: Its line in the file, from 1.
        """
        self._sequence_of.append(self._sequences.setdefault(sequence, len(self._sequences)))
        self._mark_of.append(self._marks.setdefault(mark, len(self._marks)))
        self._times.append(time)
        self._lines.append(line)

    def finish(self, *, named: bool, sort: bool, dates: bool = False) -> Found:
        """The sequences.

        Args:
            named: Whether the file names them.
            sort: Whether to sort the events of each by time; those of one time stay as they are.
            dates: Whether the times are seconds since 1970.

        Raises:
            DataFormatError: There was no row.
        """
        if not self._times:
            raise DataFormatError(
                f"{self._path}:1: expected rows of events after the header, got none; check that "
                "this is the right file"
            )
        sequence_of, times = np.array(self._sequence_of), np.array(self._times)
        order = np.lexsort((times, sequence_of)) if sort else np.argsort(sequence_of, kind="stable")
        names = mark_names(self._marks)
        rank = {name: index for index, name in enumerate(names)}
        indices = np.array([rank[name] for name in self._marks], np.int32)
        marks = indices[np.array(self._mark_of)[order]]
        lines = np.array(self._lines)[order]
        starts = 1 + np.flatnonzero(np.diff(sequence_of[order]))
        split_lines = np.split(lines, starts)
        path = self._path
        return Found(
            path,
            np.split(times[order], starts),
            np.split(marks, starts),
            tuple(names),
            lambda sequence, event: f"{path}:{split_lines[sequence][event]}",
            keys=list(self._sequences) if named else None,
            lines=split_lines,
            dates=dates,
            advice=SORT + (", and write times in UTC where clocks go back" if dates else ""),
            options=("sort",),
        )
