"""The events that a stream reads, one a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from flax_linattn.checks import OptionError, listed, shown
from flax_linattn.data.cells import is_number, split_cells
from flax_linattn.data.events.clock import Clock, SkippedTimeError
from flax_linattn.data.events.gather import LARGEST_TIME
from flax_linattn.tasks.events.data import EventsSpec


class Event(NamedTuple):
    """An event of a stream.

    Attributes:
        time: in the unit of the run's file; of dates seconds since 1970-01-01 UTC.
        mark: index of its mark.
    """

    time: float
    mark: int


class EventLines:
    """Reads events: ``time`` or ``time,mark`` a line; a blank line begins a new sequence.

    A first line that names the columns may order them otherwise, and have further ones. If it has
    that of sequences, their names have to stay the same until a blank line.

    Args:
        problem: of the run.
        columns: names of the columns of times, of marks and of sequences.
        timezone: of dates without one.

    Example:
        >>> problem = EventsSpec("a", ("x", "y"), False, 1.0, 1.0, 1.0, (), (), (9,))
        >>> lines = EventLines(problem, ("time", "mark", "sequence"))
        >>> list(lines.parse(["mark,time", "y,0.5", "", "x,2"], "input"))
        [Event(time=0.5, mark=1), None, Event(time=2.0, mark=0)]
    """

    def __init__(
        self, problem: EventsSpec, columns: tuple[str, str, str], timezone: str = "UTC"
    ) -> None:
        self._marks = {name: index for index, name in enumerate(problem.mark_names)}
        self._dates, self._columns, self._clock = problem.dates, columns, Clock(timezone)

    def parse(self, lines: Iterable[str], name: str) -> Iterator[Event | None]:
        """The events of lines; None where a new sequence begins.

        Args:
            lines: the text.
            name: of the source, for messages.

        Raises:
            ValueError: a line that holds something else; the message begins with name and line.
        """
        places: tuple[int, int] | None = None
        sequence: int | None = None
        own: str | None = None
        width: int | None = None
        first = True
        for number, line in enumerate(lines, start=1):
            text = (line.lstrip("\ufeff") if number == 1 else line).strip()  # byte-order marks
            if not text:
                own = None
                yield None
                continue
            place = f"{name}:{number}"
            cells = _cells(text, place)
            if first and self._columns[0] in cells:
                places, width = self._places(cells, place), len(cells)
                sequence = cells.index(self._columns[2]) if self._columns[2] in cells else None
                first = False
                continue
            first = False
            if places is not None and len(cells) != width:
                raise ValueError(
                    f"{place}: expected {width} cells, as in the first line, got {len(cells)}."
                )
            if sequence is not None:
                if own not in (None, cells[sequence]):
                    raise ValueError(
                        f"{place}: a stream is one sequence, and {shown(cells[sequence])} follows "
                        f"{shown(own)} in column {self._columns[2]!r}; give one after the other, "
                        "with a blank line between them."
                    )
                own = cells[sequence]
            yield self._event(cells, places or (0, 1), places is not None, place)

    def time(self, text: str) -> float:
        """A time in the unit of the run's file.

        Raises:
            ValueError: it is none.
        """
        if not self._dates:
            if is_number(text) and abs(value := float(text)) <= LARGEST_TIME:
                return value
            raise ValueError(
                f"expected a time as a finite number, at most {LARGEST_TIME:g}, got {shown(text)}"
            )
        try:
            seconds = self._clock.seconds(text)
        except SkippedTimeError as error:
            raise ValueError(f"expected a time that there is, got {shown(text)}: {error}") from None
        if seconds is None:
            raise ValueError(
                f"expected a date such as 2016-07-01 00:00:00, as the run's are, got {shown(text)}"
            )
        return seconds

    def _places(self, names: list[str], place: str) -> tuple[int, int]:
        time, mark, _ = self._columns
        for column in (time, mark) if len(self._marks) > 1 else (time,):
            if names.count(column) != 1:
                raise ValueError(
                    f"{place}: expected one column {column!r}, got {listed(names)}; name each once."
                )
        return names.index(time), names.index(mark) if mark in names else len(names)

    def _event(self, cells: list[str], places: tuple[int, int], named: bool, place: str) -> Event:
        marked = len(self._marks) > 1
        if not named and len(cells) not in ((2,) if marked else (1, 2)):
            expected = "2 cells, time and mark" if marked else "a time, as the run has no marks"
            raise ValueError(f"{place}: expected {expected}, got {len(cells)} cells.")
        try:
            time = self.time(cells[places[0]])
        except ValueError as error:
            raise ValueError(f"{place}: {error}.") from None
        if not marked:
            if not named and len(cells) == 2 and cells[1] not in self._marks:
                raise ValueError(f"{place}: expected a time alone, as the run has no marks.")
            return Event(time, 0)
        mark = cells[places[1]]
        if mark not in self._marks:
            raise ValueError(
                f"{place}: expected one of the marks of the run ({listed([*self._marks])}), got "
                f"{shown(mark)}."
            )
        return Event(time, self._marks[mark])


def _cells(text: str, place: str) -> list[str]:
    try:
        return [cell.strip() for cell in split_cells(text)]
    except OptionError:
        raise
    except ValueError as error:
        raise ValueError(f"{place}: {error}.") from None
