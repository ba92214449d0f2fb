"""Events of a file, one per row, which are checked and grouped into sequences."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn.checks import quote
from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.events.clock import format_date, parse_bound
from flax_linattn.data.events.sequences import SINGLE_EVENT_TYPE, EventSequences

MAX_EVENT_TYPE = 10**15
"""Maximum of numeric event types; float64 holds each one exactly."""

_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)


class EventFileError(DataFormatError):
    """A file of events violates its format, or does not match the options for reading it.

    Attributes:
        reason: The message without the advice, for whoever has other advice to give.
    """

    def __init__(self, reason: str, advice: str, *options: str) -> None:
        super().__init__(f"{reason}; {advice}", *options)
        self.reason = reason


@dataclasses.dataclass
class EventRows:
    """The n events of a file; rows of a sequence are in order, but need not be adjacent.

    Attributes:
        path: The file.
        sequence: Identifier of the sequence of each event, [n].
        time: Float64 [n], finite.
        event_type: Strings or integers [n]; indices if ``event_type_names`` is given; None for
            events without types.
        line: Line of each event in the file, int64 [n], from 1.
        place: Function that describes the place of a row's event for a message, for files without
            lines.
        named: Whether ``sequence`` holds names instead of numbers.
        event_type_names: Names of all possible event types. Default: those in the file, sorted by
            number if all are integers, else alphabetically.
        begin: Start of the observation of each sequence, in the order of their first rows, float64
            [N]; NaN if unknown.
        end: End of the observation of each sequence, as ``begin``.
        dates: Whether the times are seconds since 1970 UTC.
        in_order: Whether the times of the whole file must be in order, not only the times of each
            sequence: a file that is not in order is damaged, or joined from several files.
        advice: Advice for an error about times that decrease.
        options: Names of the options that this advice is about.
    """

    path: Path
    sequence: Sequence[Any] | NDArray[Any]
    time: NDArray[np.float64]
    event_type: Sequence[Any] | NDArray[Any] | None
    line: NDArray[np.int64] | None = None
    place: Callable[[int], str] = str
    named: bool = False
    event_type_names: tuple[str, ...] | None = None
    begin: NDArray[np.float64] | None = None
    end: NDArray[np.float64] | None = None
    dates: bool = False
    in_order: bool = False
    advice: str = "sort the events of each sequence by time"
    options: tuple[str, ...] = ()

    def where(self, row: int) -> str:
        """Describes the place of an event, such as ``path:line``."""
        return self.place(row) if self.line is None else f"{self.path}:{self.line[row]}"

    def sequences(
        self,
        begin: float | str | None,
        end: float | str | None,
        zone: tzinfo,
        *,
        sort: bool = False,
    ) -> EventSequences:
        """The sequences, in the order of their first rows.

        Args:
            begin: Start of the observation of all sequences, instead of the file's; see
                ``parse_bound``.
            end: End of the observation of all sequences, as ``begin``.
            zone: Time zone of ``begin`` and ``end``, if they are dates.
            sort: Whether to sort the events of each sequence by time; simultaneous events keep
                their order.

        Raises:
            TypeError: If a bound is neither a number nor a string.
            OptionError: If a bound is not finite, or is neither a number nor a date.
            EventFileError: If times of a sequence decrease, or one is outside the bounds.
        """
        owner, names = pd.factorize(_column(self.sequence))
        order = np.lexsort((self.time, owner)) if sort else np.argsort(owner, kind="stable")
        owner, time = owner[order], self.time[order]
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        keys = [str(name) for name in names]

        def format_time(value: float) -> str:
            return format_date(value) if self.dates else str(float(value))

        def sequence(row: int) -> str:
            return f"sequence {quote(keys[owner[row]]) if self.named else owner[row]}"

        if self.in_order and not sort and (falls := np.diff(self.time) < 0).any():
            row = int(np.argmax(falls)) + 1
            raise EventFileError(
                f"{self.where(row)}: expected rows sorted by time, from "
                f"{format_time(self.time[row - 1])} on, got {format_time(self.time[row])}",
                self.advice,
                *self.options,
            )
        back = np.flatnonzero((np.diff(time) < 0) & (np.diff(owner) == 0))
        if back.size:
            row = int(back[0]) + 1
            raise EventFileError(
                f"{self.where(int(order[row]))}: expected times that never decrease in "
                f"{sequence(row)}, got {format_time(time[row])} after {format_time(time[row - 1])}",
                self.advice,
                *self.options,
            )
        bounds: dict[str, NDArray[np.float64] | None] = {}
        stops = np.append(starts[1:], len(time))
        for name, option, own, rows, sign, where, change in (
            ("begin", begin, self.begin, starts, 1, "at or after", "an earlier"),
            ("end", end, self.end, stops - 1, -1, "at or before", "a later"),
        ):
            given = parse_bound(name, option, self.path, zone if self.dates else None)
            bound = own if given is None else np.full(len(starts), given)
            bounds[name] = bound
            if bound is not None and (outside := sign * (time[rows] - bound) < 0).any():
                at = int(np.argmax(outside))
                row = int(rows[at])
                raise EventFileError(
                    f"{self.where(int(order[row]))}: expected events {where} "
                    f"{format_time(bound[at])}, the {name} of {sequence(row)}, got one at "
                    f"{format_time(time[row])}",
                    f"pass {change} {name}, or drop the event",
                    name,
                )
        event_type, event_type_names = self._event_type_indices()
        return EventSequences(
            self.path.name.split(".")[0],
            tuple(np.split(time, starts[1:])),
            tuple(np.split(event_type[order], starts[1:])),
            event_type_names,
            begin=bounds["begin"],
            end=bounds["end"],
            dates=self.dates,
            lines=None if self.line is None else tuple(np.split(self.line[order], starts[1:])),
            names=tuple(keys) if self.named else None,
        )

    def _event_type_indices(self) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """Event types as indices into their names."""
        if self.event_type is None:
            return np.zeros(len(self.time), np.int32), SINGLE_EVENT_TYPE
        if self.event_type_names is not None:
            return np.asarray(self.event_type, np.int32), self.event_type_names
        codes, different = pd.factorize(_column(self.event_type))
        texts = [str(event_type) for event_type in different]
        if all(_WHOLE.fullmatch(text) for text in texts):
            names = sorted(texts, key=lambda text: (int(text), text))
        else:
            names = sorted(texts)
        rank = {name: index for index, name in enumerate(names)}
        return np.array([rank[text] for text in texts], np.int32)[codes], tuple(names)


def _column(values: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    return values if isinstance(values, np.ndarray) else np.array(values, object)
