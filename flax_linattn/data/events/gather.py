"""What a reader of events found in a file, checked by line and made into sequences."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import shown
from flax_linattn.data.events.clock import date_of
from flax_linattn.data.events.sequences import EventSequences
from flax_linattn.data.files import DataFormatError

LARGEST_TIME = 1e100
"""Of times, either side of 0: differences and sums of such ones are finite."""

LARGEST_MARK = 10**15
"""Of marks that are numbers; float64 holds each one exactly."""

_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)


@dataclasses.dataclass
class Found:
    """Events as a file has them.

    Attributes:
        path: The file.
        times: Of the events of each sequence, float64 [n], n >= 1, finite.
        marks: Of the same events, int32 [n], as indices into ``mark_names``.
        mark_names: All marks that there may be.
        place: Where an event of a sequence is in the file, for a message, such as ``path:line``.
        keys: How the file names the sequences, for messages. Default: they have numbers, from 0.
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

    def finish(self, begin: float | None = None, end: float | None = None) -> EventSequences:
        """Checks the order of times and the bounds.

        Args:
            begin: Of all sequences, in place of the file's own.
            end: Likewise.

        Raises:
            DataFormatError: Times of a sequence go backwards, or one is outside the bounds.
        """
        begins, ends = self._bounds(self.begin, begin), self._bounds(self.end, end)
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
