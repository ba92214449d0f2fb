"""The forecast events of all sequences, one behind the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.events import EventSequences


@dataclass(frozen=True, eq=False)
class Flat:
    """All n forecast events of N sequences.

    Attributes:
        owner: The sequence of each, int64 [n].
        before: The time of the event before, or of the begin, float64 [n].
        times: Float64 [n].
        gaps: Float64 [n].
        marks: Int32 [n].
        last: The time of the last event of each sequence, float64 [N].
        ends: Float64 [N].
    """

    owner: NDArray[np.int64]
    before: NDArray[np.float64]
    times: NDArray[np.float64]
    gaps: NDArray[np.float64]
    marks: NDArray[np.int32]
    last: NDArray[np.float64]
    ends: NDArray[np.float64]

    @property
    def rest(self) -> NDArray[np.float64]:
        """Times from the last event to the end, float64 [N]."""
        return self.ends - self.last

    @property
    def exposure(self) -> float:
        """All the time in which events were waited for."""
        return float(self.gaps.sum() + self.rest.sum())

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums of values [n] by sequence, [N]."""
        return np.bincount(self.owner, values, minlength=len(self.last)).astype(np.float64)

    def split(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """Values [n], by sequence."""
        counts = np.bincount(self.owner, minlength=len(self.last))
        return tuple(np.split(values, np.cumsum(counts)[:-1]))


def flatten(events: EventSequences, num_marks: int | None = None) -> Flat:
    """Returns the forecast events of all sequences.

    Args:
        events: Of N sequences.
        num_marks: Marks that there must be; None does for any number.

    Raises:
        ValueError: There are more marks, or fewer.

    Example:
        >>> two = (np.array([1.0, 3.0]), np.array([5.0, 9.0]))
        >>> marks = (np.zeros(2, np.int32), np.zeros(2, np.int32))
        >>> flat = flatten(EventSequences("a", two, marks, begin=np.array([0.0, np.nan])))
        >>> flat.gaps.tolist(), flat.owner.tolist()
        ([1.0, 2.0, 4.0], [0, 0, 1])
    """
    if num_marks is not None:
        check_marks(events, num_marks)
    given = events.num_given
    before = [
        np.concatenate([[begin], own[:-1]])[skip:]
        for own, begin, skip in zip(events.times, events.begins, given, strict=True)
    ]
    times = [own[skip:] for own, skip in zip(events.times, given, strict=True)]
    marks = [own[skip:] for own, skip in zip(events.marks, given, strict=True)]
    return Flat(
        owner=np.repeat(np.arange(len(events)), [len(own) for own in times]),
        before=np.concatenate(before),
        times=np.concatenate(times),
        gaps=np.concatenate(events.gaps()),
        marks=np.concatenate(marks),
        last=np.array([own[-1] for own in events.times]),
        ends=events.ends,
    )


def check_marks(events: EventSequences, num_marks: int) -> None:
    """Refuses events of another number of marks.

    Raises:
        ValueError: There are more marks, or fewer.
    """
    if len(events.mark_names) != num_marks:
        raise ValueError(
            f"{events.name}: expected events of as many marks as the process has, {num_marks}, got "
            f"{len(events.mark_names)}; EventSequences.with_marks brings them to another list."
        )


def some_forecast(flat: Flat, name: str) -> None:
    """Refuses events that nothing can be fitted to.

    Raises:
        ValueError: None is forecast, or all are at one moment.
    """
    if not flat.gaps.size:
        raise ValueError(
            f"{name}: expected events to fit to, but none is forecast; give longer sequences, or "
            "the begins of those of a single event."
        )
    if not flat.exposure > 0:
        raise ValueError(f"{name}: expected events over some time, but all gaps are 0.")
