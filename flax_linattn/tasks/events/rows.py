"""The events that a stream reads, one per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from flax_linattn.checks import itemize, quote
from flax_linattn.data.events.clock import MAX_TIME, SkippedTimeError, parse_date
from flax_linattn.data.tables.cells import is_number, parse_zone
from flax_linattn.tasks.events.data import EventsSpec
from flax_linattn.tasks.lines import CellLines


class Event(NamedTuple):
    """An event of a stream.

    Attributes:
        time: Time in the unit of the run's file; for dates seconds since 1970-01-01 UTC.
        event_type: Index of the event type.
    """

    time: float
    event_type: int


class EventLines(CellLines):
    """Reads an event from each line, ``time`` or ``time,type``; a blank line starts a sequence.

    A first line with names may order the columns differently, and have further columns. If it has
    the column of sequences, its value must stay the same until a blank line. A line may also be a
    JSON object with these names. ``columns`` are the names of the columns of times, event types and
    sequences.

    Example:
        >>> data_spec = EventsSpec("a", ("x", "y"), False, 1.0, 1.0, 1.0, (), (), (9,))
        >>> lines = EventLines(data_spec, ("time", "mark", "sequence"))
        >>> list(lines.parse(["mark,time", "y,0.5", "", "x,2"]))
        [Event(time=0.5, event_type=1), None, Event(time=2.0, event_type=0)]
    """

    def __init__(
        self, data_spec: EventsSpec, columns: tuple[str, str, str], timezone: str = "UTC"
    ) -> None:
        self._event_types = {name: index for index, name in enumerate(data_spec.event_type_names)}
        self._dates, self._columns, self._zone = data_spec.dates, columns, parse_zone(timezone)
        time, event_type, _ = columns
        super().__init__(*([] if len(self._event_types) > 1 else [(time,)]), (time, event_type))

    def parse(self, lines: Iterable[str]) -> Iterator[Event | None]:
        """Reads the events of lines; None stands for the start of a new sequence."""
        time, event_type, sequence = self._columns
        own: str | None = None
        for cells in self.cells(lines):
            if cells is None:
                own = None
                yield None
                continue
            name = cells.texts.get(sequence)
            if own is not None and name != own:
                raise ValueError(
                    f"expected one sequence until a blank line, got {quote(name)} after "
                    f"{quote(own)} in column {sequence!r}; sort the events by sequence, with a "
                    "blank line between sequences."
                )
            own = name
            yield Event(self.time(cells.texts[time]), self._event_type(cells.texts.get(event_type)))

    def time(self, text: str) -> float:
        """Converts a cell to a time in the unit of the run's file."""
        if not self._dates:
            if is_number(text) and abs(value := float(text)) <= MAX_TIME:
                return value
            raise ValueError(
                f"expected a time as a number of at most {MAX_TIME:g}, got {quote(text)}; correct "
                "it, or remove the event."
            )
        try:
            seconds = parse_date(text, self._zone)
        except SkippedTimeError as error:
            raise ValueError(
                f"expected a time that exists, got {quote(text)}: {error}; correct it, or write it "
                "in UTC."
            ) from None
        if seconds is None:
            raise ValueError(
                "expected a date such as 2016-07-01 00:00:00, as in the training data of the run, "
                f"got {quote(text)}."
            )
        return seconds

    def _event_type(self, name: str | None) -> int:
        if name is None:  # the events of the run have no types
            return 0
        if name not in self._event_types:
            raise ValueError(
                f"expected one of the event types of the run ({itemize([*self._event_types])}), "
                f"got {quote(name)}; correct it, or remove the event."
            )
        return self._event_types[name]
