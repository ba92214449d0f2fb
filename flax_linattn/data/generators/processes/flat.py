"""Events of all sequences as arrays: concatenated, or grouped by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.events import EventSequences


@dataclass(frozen=True, eq=False)
class Flat:
    """All n forecast events of N sequences.

    Attributes:
        owner: Index of the sequence of each event, int64 [n].
        before: Time of the previous event, or of the start, float64 [n].
        times: Times, float64 [n].
        gaps: Gaps, float64 [n].
        event_types: Event types, int32 [n].
        last: Time of the last event of each sequence, float64 [N].
        ends: Ends of the observation, float64 [N].
    """

    owner: NDArray[np.int64]
    before: NDArray[np.float64]
    times: NDArray[np.float64]
    gaps: NDArray[np.float64]
    event_types: NDArray[np.int32]
    last: NDArray[np.float64]
    ends: NDArray[np.float64]

    @property
    def rest(self) -> NDArray[np.float64]:
        """Time from the last event to the end of each sequence, float64 [N]."""
        return self.ends - self.last

    @property
    def exposure(self) -> float:
        """Total waiting time for forecast events."""
        return float(self.gaps.sum() + self.rest.sum())

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums of values [n] by sequence, [N]."""
        return np.bincount(self.owner, values, minlength=len(self.last)).astype(np.float64)

    def split(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """Splits values [n] of events into one array for each sequence."""
        counts = np.bincount(self.owner, minlength=len(self.last))
        return tuple(np.split(values, np.cumsum(counts)[:-1]))


def flatten(events: EventSequences, num_event_types: int | None = None) -> Flat:
    """Returns the forecast events of all sequences; checks the number of event types, if given.

    Example:
        >>> two = (np.array([1.0, 3.0]), np.array([5.0, 9.0]))
        >>> event_types = (np.zeros(2, np.int32), np.zeros(2, np.int32))
        >>> flat = flatten(EventSequences("a", two, event_types, begin=np.array([0.0, np.nan])))
        >>> flat.gaps.tolist(), flat.owner.tolist()
        ([1.0, 2.0, 4.0], [0, 0, 1])
    """
    if num_event_types is not None:
        check_num_event_types(events, num_event_types)
    given = events.num_given
    lengths = np.array([len(own) for own in events.times])
    owner = np.repeat(np.arange(len(events)), lengths)
    starts = np.cumsum(lengths) - lengths
    times = np.concatenate(events.times)
    before = np.append(np.nan, times[:-1])
    before[starts] = events.begins
    forecast = np.arange(len(times)) - starts[owner] >= given[owner]
    return Flat(
        owner=owner[forecast],
        before=before[forecast],
        times=times[forecast],
        gaps=(times - before)[forecast],
        event_types=np.concatenate(events.event_types)[forecast],
        last=times[starts + lengths - 1],
        ends=events.ends,
    )


def check_num_event_types(events: EventSequences, num_event_types: int) -> None:
    """Raises an error for another number of event types."""
    if len(events.event_type_names) != num_event_types:
        raise ValueError(
            f"{events.name}: expected as many event types as the process has, {num_event_types}, "
            f"got {len(events.event_type_names)}; convert the events with "
            "EventSequences.with_event_types."
        )


def some_forecast(flat: Flat, name: str) -> None:
    """Raises an error if no event is forecast, or all events are simultaneous."""
    if not flat.gaps.size:
        raise ValueError(
            f"{name}: expected events to forecast, but no sequence has any; pass longer sequences, "
            "or the begin of each sequence with a single event."
        )
    if not flat.exposure > 0:
        raise ValueError(f"{name}: expected events over some time, but all gaps are 0.")


@dataclass(frozen=True, eq=False)
class Steps:
    """All n events of N sequences: the first of each sequence, then the second, and so on.

    Rows are sequences, the longest first, so a step concerns only the first rows.

    Attributes:
        bounds: Index of the first event of each step, and the end, int64 [L + 1].
        gaps: Time since the previous event or the start, float64 [n]; 0 for a first event without a
            start.
        event_types: Event types, int64 [n].
        forecast: Whether each event is forecast (not given), bool [n].
        heads: Time from each event to the last given event, float64 [n]; 0 for later events.
        tails: Time from each event to the end of its sequence, float64 [n].
        owner: Index of the sequence of each event, int64 [n].
        place: Index of each event in the concatenated sequences, int64 [n].
        rank: Index of the sequence of each row, int64 [N].
        rest: Time from the last event to the end of each sequence, float64 [N].
        exposure: Total waiting time for forecast events.
    """

    bounds: NDArray[np.int64]
    gaps: NDArray[np.float64]
    event_types: NDArray[np.int64]
    forecast: NDArray[np.bool_]
    heads: NDArray[np.float64]
    tails: NDArray[np.float64]
    owner: NDArray[np.int64]
    place: NDArray[np.int64]
    rank: NDArray[np.int64]
    rest: NDArray[np.float64]
    exposure: float

    def __iter__(self) -> Iterator[slice]:
        """The events of each step."""
        for first, last in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            yield slice(int(first), int(last))

    def by_sequence(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """Values [n] of the forecast events, by sequence."""
        N = len(self.rank)
        in_order, forecast = np.empty_like(values), np.empty(len(values), bool)
        in_order[self.place], forecast[self.place] = values, self.forecast
        counts = np.bincount(self.owner[self.forecast], minlength=N)
        return tuple(np.split(in_order[forecast], np.cumsum(counts)[:-1]))

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums of values [n] of the forecast events by sequence, [N]."""
        own = self.forecast
        sums = np.bincount(self.owner[own], values[own], minlength=len(self.rank))
        return sums.astype(np.float64)


def in_steps(events: EventSequences) -> Steps:
    """Returns the events step by step.

    Example:
        >>> two = (np.array([1.0]), np.array([5.0, 9.0]))
        >>> event_types = (np.zeros(1, np.int32), np.zeros(2, np.int32))
        >>> steps = in_steps(EventSequences("a", two, event_types, begin=np.array([0.0, np.nan])))
        >>> [(step.start, step.stop) for step in steps]
        [(0, 2), (2, 3)]
        >>> steps.rank.tolist(), steps.gaps.tolist(), steps.forecast.tolist()
        ([1, 0], [0.0, 1.0, 4.0], [False, True, True])
    """
    lengths = np.array([len(own) for own in events.times])
    rank = np.argsort(-lengths, kind="stable")
    row = np.argsort(rank)
    starts = np.cumsum(lengths) - lengths
    owner = np.repeat(np.arange(len(lengths)), lengths)
    step = np.arange(lengths.sum()) - starts[owner]
    times = np.concatenate(events.times)
    gaps = np.diff(times, prepend=0.0)
    # Where no begin is known nothing was before the first event, and no gap makes a difference.
    gaps[starts] = times[starts] - np.where(np.isnan(events.begins), times[starts], events.begins)
    given = events.num_given
    forecast = step >= given[owner]
    last_given = times[starts + np.maximum(given, 1) - 1]  # the first event, where none is
    place = np.lexsort((row[owner], step))
    rest = events.ends - times[starts + lengths - 1]
    return Steps(
        bounds=np.concatenate([[0], np.cumsum(np.bincount(step))]),
        gaps=gaps[place],
        event_types=np.concatenate(events.event_types).astype(np.int64)[place],
        forecast=forecast[place],
        heads=np.maximum(last_given[owner] - times, 0.0)[place],
        tails=(events.ends[owner] - times)[place],
        owner=owner[place],
        place=place,
        rank=rank,
        rest=rest,
        exposure=float(gaps[forecast].sum() + rest.sum()),
    )
