"""The events that a stream reads, one a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from flax_linattn.checks import itemize, quote
from flax_linattn.data.events.clock import MAX_TIME, SkippedTimeError, parse_date
from flax_linattn.data.tables.cells import is_number
from flax_linattn.data.tables.time_index import parse_zone
from flax_linattn.tasks.events.data import EventsSpec
from flax_linattn.tasks.lines import CellLines


class Event(NamedTuple):
    """An event of a stream.

    Attributes:
        time: in the unit of the run's file; of dates seconds since 1970-01-01 UTC.
        mark: index of its mark.
    """

    time: float
    mark: int


class EventLines(CellLines):
    """Reads events: ``time`` or ``time,mark`` a line; a blank line begins a new sequence.

    A first line that names the columns may order them otherwise, and have further ones. If it has
    that of sequences, their names have to stay the same until a blank line. A line may also be a
    JSON object with these names. ``columns`` name those of times, of marks and of sequences.

    Example:
        >>> data_spec = EventsSpec("a", ("x", "y"), False, 1.0, 1.0, 1.0, (), (), (9,))
        >>> lines = EventLines(data_spec, ("time", "mark", "sequence"))
        >>> list(lines.parse(["mark,time", "y,0.5", "", "x,2"]))
        [Event(time=0.5, mark=1), None, Event(time=2.0, mark=0)]
    """

    def __init__(
        self, data_spec: EventsSpec, columns: tuple[str, str, str], timezone: str = "UTC"
    ) -> None:
        self._marks = {name: index for index, name in enumerate(data_spec.mark_names)}
        self._dates, self._columns, self._zone = data_spec.dates, columns, parse_zone(timezone)
        time, mark, _ = columns
        super().__init__(*([] if len(self._marks) > 1 else [(time,)]), (time, mark))

    def parse(self, lines: Iterable[str]) -> Iterator[Event | None]:
        """The events of lines; None where a new sequence begins."""
        time, mark, sequence = self._columns
        own: str | None = None
        for cells in self.cells(lines):
            if cells is None:
                own = None
                yield None
                continue
            name = cells.texts.get(sequence)
            if own is not None and name != own:
                raise ValueError(
                    f"a stream is one sequence, and {quote(name)} follows {quote(own)} in column "
                    f"{sequence!r}; give one after the other, with a blank line between them."
                )
            own = name
            yield Event(self.time(cells.texts[time]), self._mark(cells.texts.get(mark)))

    def time(self, text: str) -> float:
        """A time in the unit of the run's file."""
        if not self._dates:
            if is_number(text) and abs(value := float(text)) <= MAX_TIME:
                return value
            raise ValueError(
                f"expected a time as a finite number, at most {MAX_TIME:g}, got {quote(text)}."
            )
        try:
            seconds = parse_date(text, self._zone)
        except SkippedTimeError as error:
            raise ValueError(
                f"expected a time that there is, got {quote(text)}: {error}."
            ) from None
        if seconds is None:
            raise ValueError(
                f"expected a date such as 2016-07-01 00:00:00, as the run's are, got {quote(text)}."
            )
        return seconds

    def _mark(self, name: str | None) -> int:
        if name is None:  # of a run whose events have none
            return 0
        if name not in self._marks:
            raise ValueError(
                f"expected one of the marks of the run ({itemize([*self._marks])}), got "
                f"{quote(name)}."
            )
        return self._marks[name]
