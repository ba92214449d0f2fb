"""What a run on events remembers of its data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from flax_linattn.checks import OptionError, at_least
from flax_linattn.tasks.run_types import Problem


@dataclasses.dataclass(frozen=True)
class EventsProblem(Problem):
    """What the training data say: kept in the run folder so that a run needs no training data.

    Attributes:
        dataset: its name.
        mark_names: in the order of the model's marks.
        dates: whether times are dates, and so seconds since 1970-01-01 UTC.
        scale: the gap that counts as one, in the file's unit.
        spread: the deviation of the logarithms of gaps.
        resolution: a gap below it counts as it, in the file's unit.
        periods: of whose phases the model is told, in the file's unit.
        clock: the periods of the time since a sequence began, in the file's unit.
        lengths: lengths that pieces of sequences are padded to.
        begins: whether a sequence to train on has a known begin, so that the wait for its first
            event is learned.
        checksum: of the events to train on ("train") and to test ("test").
    """

    dataset: str
    mark_names: tuple[str, ...]
    dates: bool
    scale: float
    spread: float
    resolution: float
    periods: tuple[float, ...]
    clock: tuple[float, ...]
    lengths: tuple[int, ...]
    begins: bool = True
    checksum: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def num_marks(self) -> int:
        """M."""
        return len(self.mark_names)

    @property
    def all_periods(self) -> tuple[float, ...]:
        """Those of the model's waves, in units of the scale."""
        return tuple(period / self.scale for period in (*self.periods, *self.clock))

    def check(self) -> None:
        """Types and sizes."""
        super().check()
        at_least(1, num_marks=self.num_marks, num_lengths=len(self.lengths))
        for length in self.lengths:
            at_least(1, lengths=length)
        for name, values in (
            ("scale", (self.scale,)),
            ("spread", (self.spread,)),
            ("resolution", (self.resolution,)),
            ("periods", self.periods),
            ("clock", self.clock),
        ):
            if not all(0 < value < float("inf") for value in values):
                raise OptionError(f"{name} must be positive and finite, got {values}.", name)
