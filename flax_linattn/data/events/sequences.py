"""Sequences of events at irregular times."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import check_integers, check_same_length, itemize, quote

SINGLE_EVENT_TYPE = ("event",)
"""Names of the event types of events without types: a single one."""


class Piece(NamedTuple):
    """Consecutive events of one sequence, by their indices in it.

    Attributes:
        sequence: Index of the sequence.
        start: Index of the first event, given or forecast.
        forecast: Index of the first event that is forecast; ``stop`` if there is none.
        stop: Index after the last event, above ``start``.
    """

    sequence: int
    start: int
    forecast: int
    stop: int


@dataclasses.dataclass(frozen=True, eq=False)
class EventSequences:
    """Sequences of events with times and event types.

    The first events of a sequence may be given: a model or a process conditions on them, and
    forecasts the others. The gap from the start of the observation to the first event belongs to
    that event: it is forecast with it, or is history if the first event is given. The start of the
    observation takes the place of a previous event; nothing is known about the time before it.

    Args:
        name: Name of the data set.
        times: Times of the events of each sequence, float64 [n], n >= 1, nondecreasing; all in the
            same unit, seconds since 1970-01-01 UTC if ``dates``.
        event_types: Types of the same events, int32 [n], as indices into ``event_type_names``.
        event_type_names: Names of all possible event types.
        begin: Start of the observation of each sequence, float64 [N], at or before its first event;
            NaN if unknown, None if unknown for all sequences.
        end: End of the observation of each sequence, float64 [N], at or after its last event; None
            if it is the last event.
        dates: Whether the times are dates.
        given: Number of first events of each sequence that are history and not forecast, int64 [N],
            from 0 to n, and from 1 if the start of observation is unknown. None stands for the
            minimum: 1 if the start is unknown, 0 otherwise.
        lines: Lines of the same events in their file, int64 [n], from 1; None if there is no file.
        names: Names of the sequences, as in the file; None if the file has none.

    Raises:
        ValueError: If a sequence is empty, or arguments do not match.

    Example:
        >>> events = EventSequences("visits", (np.array([0.5, 2.0]),), (np.array([1, 0]),),
        ...                         ("buy", "look"), end=np.array([3.0]))
        >>> len(events), events.num_events, events.num_forecast, events.ends.tolist()
        (1, 2, 1, [3.0])
    """

    name: str
    times: tuple[NDArray[np.float64], ...]
    event_types: tuple[NDArray[np.int32], ...]
    event_type_names: tuple[str, ...] = SINGLE_EVENT_TYPE
    begin: NDArray[np.float64] | None = None
    end: NDArray[np.float64] | None = None
    dates: bool = False
    given: NDArray[np.int64] | None = None
    lines: tuple[NDArray[np.int64], ...] | None = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_same_length(times=self.times, event_types=self.event_types)
        if not self.times:
            raise ValueError(f"{self.name}: expected at least one sequence of events, got none.")
        if len(set(self.event_type_names)) < len(self.event_type_names):
            raise ValueError(
                f"{self.name}: expected distinct names of event types, got "
                f"{itemize(self.event_type_names)}."
            )
        for what, values in (("begin", self.begin), ("end", self.end), ("given", self.given)):
            if values is not None and np.shape(values) != (len(self.times),):
                raise ValueError(
                    f"{self.name}: expected {what} for each of {len(self.times)} sequences, got "
                    f"shape {np.shape(values)}."
                )
        for what, own in (("lines", self.lines), ("names", self.names)):
            if own is not None:
                check_same_length(times=self.times, **{what: own})
        for index, (times, types) in enumerate(zip(self.times, self.event_types, strict=True)):
            self._check_events(index, times, types)
        self._check_bounds()
        self._check_given()

    def _check_events(self, index: int, times: NDArray, event_types: NDArray) -> None:
        where = f"{self.name}: sequence {index}"
        if times.ndim != 1 or times.shape != event_types.shape or not times.size:
            raise ValueError(
                f"{where}: expected times and event types of the same shape [n] with n >= 1, got "
                f"{times.shape} and {event_types.shape}."
            )
        if self.lines is not None and self.lines[index].shape != times.shape:
            raise ValueError(
                f"{where}: expected one line for each of {len(times)} events, got shape "
                f"{self.lines[index].shape}."
            )
        if (bad := np.flatnonzero(~np.isfinite(times))).size:
            at = int(bad[0])
            raise ValueError(
                f"{self.name}: {self.place(index, at)}: expected a finite time, got {times[at]}."
            )
        if (back := np.flatnonzero(np.diff(times) < 0)).size:
            at = int(back[0]) + 1
            raise ValueError(
                f"{self.name}: {self.place(index, at)}: expected times that never decrease, "
                f"got {times[at]:.15g} after {times[at - 1]:.15g}; sort the events by time."
            )
        if not np.issubdtype(event_types.dtype, np.integer):
            raise ValueError(
                f"{where}: expected event types as integers, indices into event_type_names, "
                f"got {event_types.dtype}."
            )
        if event_types.min() < 0 or event_types.max() >= len(self.event_type_names):
            raise ValueError(
                f"{where}: expected event types from 0 to {len(self.event_type_names) - 1}, got "
                f"{event_types.min()} to {event_types.max()}."
            )

    def _check_bounds(self) -> None:
        first = np.array([times[0] for times in self.times])
        last = np.array([times[-1] for times in self.times])
        begins, ends = self.begins, self.ends
        if (bad := np.flatnonzero(np.isinf(begins) | (begins > first))).size:
            at = int(bad[0])
            raise ValueError(
                f"{self.name}: sequence {at}: expected a finite begin at or before its first event "
                f"at {first[at]:.15g}, or NaN, got {begins[at]:.15g}."
            )
        if (bad := np.flatnonzero(~(np.isfinite(ends) & (ends >= last)))).size:
            at = int(bad[0])
            raise ValueError(
                f"{self.name}: sequence {at}: expected a finite end at or after its last event at "
                f"{last[at]:.15g}, got {ends[at]:.15g}."
            )

    def _check_given(self) -> None:
        if self.given is None:
            return
        if not np.issubdtype(self.given.dtype, np.integer):
            raise ValueError(f"{self.name}: expected given as integers, got {self.given.dtype}.")
        lower = np.isnan(self.begins).astype(np.int64)
        upper = np.array([len(times) for times in self.times])
        if (bad := np.flatnonzero((self.given < lower) | (self.given > upper))).size:
            at = int(bad[0])
            reason = ", as its begin is not known" if lower[at] else ""
            raise ValueError(
                f"{self.name}: sequence {at}: expected from {lower[at]} to {upper[at]} given events"
                f"{reason}, got {self.given[at]}."
            )

    def __len__(self) -> int:
        """Number of event sequences, N."""
        return len(self.times)

    @property
    def num_events(self) -> int:
        """Number of events in all sequences."""
        return sum(len(times) for times in self.times)

    @property
    def begins(self) -> NDArray[np.float64]:
        """Start of the observation of each sequence, float64 [N]; NaN if unknown."""
        return np.full(len(self), np.nan) if self.begin is None else self.begin

    @property
    def ends(self) -> NDArray[np.float64]:
        """End of the observation of each sequence, float64 [N]."""
        return np.array([times[-1] for times in self.times]) if self.end is None else self.end

    @property
    def num_given(self) -> NDArray[np.int64]:
        """Number of first events of each sequence that are history and not forecast, int64 [N]."""
        return np.isnan(self.begins).astype(np.int64) if self.given is None else self.given

    @property
    def num_forecast(self) -> int:
        """Number of forecast events of all sequences: all except the given ones."""
        return self.num_events - int(self.num_given.sum())

    def gaps(self) -> tuple[NDArray[np.float64], ...]:
        """Times from the previous event, or the start, to each forecast event."""
        return tuple(
            np.diff(times, prepend=begin)[given:]
            for times, begin, given in zip(self.times, self.begins, self.num_given, strict=True)
        )

    def place(self, sequence: int, event: int) -> str:
        """Describes the place of an event in messages: its line in the file, if known.

        Args:
            sequence: Index of the sequence, from 0.
            event: Index of the event in the sequence, from 0.

        Example:
            >>> one = EventSequences("a", (np.arange(2.0),), (np.zeros(2, np.int32),))
            >>> one.place(0, 1)
            'sequence 0, event 1, from 0'
            >>> dataclasses.replace(one, lines=(np.array([2, 3]),)).place(0, 1)
            'line 3'
        """
        if self.lines is not None:
            return f"line {self.lines[sequence][event]}"
        return f"sequence {sequence}, event {event}, from 0"

    def with_event_types(self, type_names: Sequence[str]) -> EventSequences:
        """Returns the same events, with event types as indices into another list of names.

        Args:
            type_names: Names of all possible event types, in any order.

        Raises:
            ValueError: If an event has a type that is not among the names.

        Example:
            >>> events = EventSequences("a", (np.arange(2.0),), (np.array([0, 1]),), ("x", "y"))
            >>> events.with_event_types(("y", "z", "x")).event_types[0].tolist()
            [2, 0]
            >>> events.with_event_types(("x",))
            Traceback (most recent call last):
            ...
            ValueError: a: sequence 0, event 1, from 0: expected one of the event types x, got 'y'.
        """
        indices = {name: index for index, name in enumerate(type_names)}
        new = np.array([indices.get(name, -1) for name in self.event_type_names], np.int32)
        event_types = tuple(new[own] for own in self.event_types)
        for sequence, own in enumerate(event_types):
            if (unknown := np.flatnonzero(own < 0)).size:
                event = int(unknown[0])
                name = self.event_type_names[self.event_types[sequence][event]]
                raise ValueError(
                    f"{self.name}: {self.place(sequence, event)}: expected one of the event types "
                    f"{itemize(type_names)}, got {quote(name)}."
                )
        return dataclasses.replace(
            self, event_types=event_types, event_type_names=tuple(type_names)
        )

    def select(self, chosen: Sequence[int] | NDArray[np.int64] | range) -> EventSequences:
        """Selects sequences in the given order."""
        index = np.asarray(chosen, np.int64)
        return dataclasses.replace(
            self,
            times=tuple(self.times[i] for i in index),
            event_types=tuple(self.event_types[i] for i in index),
            begin=None if self.begin is None else self.begin[index],
            end=None if self.end is None else self.end[index],
            given=None if self.given is None else self.given[index],
            lines=None if self.lines is None else tuple(self.lines[i] for i in index),
            names=None if self.names is None else tuple(self.names[i] for i in index),
        )

    def cut(self, length: int, history: int = 0) -> EventSequences:
        """Cuts a sequence into pieces of at most ``length`` forecast events, in order of time.

        Together the pieces forecast the same events as the whole sequence, with the same gaps. A
        piece begins with up to ``history`` given events before its forecast events; the first piece
        has at least one of the given events of the sequence, if any. The start of the observation
        of a piece is the event before its first one. A sequence of only given events stays one
        piece.

        Args:
            length: Maximum number of forecast events of a piece.
            history: Number of given events before them.

        Raises:
            OptionError: If ``length`` is below 1, or ``history`` below 0.

        Example:
            >>> one = EventSequences("a", (np.arange(5.0),), (np.zeros(5, np.int32),),
            ...                      begin=np.zeros(1))
            >>> pieces = one.cut(2)
            >>> [times.tolist() for times in pieces.times], pieces.begins.tolist()
            ([[0.0, 1.0], [2.0, 3.0], [4.0]], [0.0, 1.0, 3.0])
            >>> pieces = one.cut(2, history=1)
            >>> [times.tolist() for times in pieces.times], pieces.num_given.tolist()
            ([[0.0, 1.0], [1.0, 2.0, 3.0], [3.0, 4.0]], [0, 1, 1])
        """
        check_integers(1, length=length)
        check_integers(0, history=history)
        pieces = []
        for sequence, (times, given) in enumerate(zip(self.times, self.num_given, strict=True)):
            for forecast in range(given, max(len(times), given + 1), length):
                num_context = history if forecast > given else max(history, 1)
                stop = min(forecast + length, len(times))
                pieces.append(Piece(sequence, max(forecast - num_context, 0), int(forecast), stop))
        return self.pieces(pieces)

    def pieces(self, pieces: Sequence[Piece]) -> EventSequences:
        """Makes sequences from pieces of these sequences, in the given order.

        The observation of a piece starts at the event before its first one, or with the whole
        sequence, and ends with its last event, or with the whole sequence.
        """
        times, event_types, begins, ends, lines = [], [], [], [], []
        all_begins, all_ends = self.begins, self.ends
        for sequence, start, _, stop in pieces:
            own = self.times[sequence]
            times.append(own[start:stop])
            event_types.append(self.event_types[sequence][start:stop])
            begins.append(own[start - 1] if start else all_begins[sequence])
            ends.append(all_ends[sequence] if stop == len(own) else own[stop - 1])
            if self.lines is not None:
                lines.append(self.lines[sequence][start:stop])
        return dataclasses.replace(
            self,
            times=tuple(times),
            event_types=tuple(event_types),
            begin=np.array(begins),
            end=None if self.end is None else np.array(ends),
            given=np.array([piece.forecast - piece.start for piece in pieces], np.int64),
            lines=None if self.lines is None else tuple(lines),
            names=None if self.names is None else tuple(self.names[p.sequence] for p in pieces),
        )
