"""Options of streams of events."""

from __future__ import annotations

import dataclasses

from flax_linattn.checks import LARGEST, OptionError, at_least
from flax_linattn.data.cells import is_number


@dataclasses.dataclass(frozen=True)
class EventsStreamOptions:
    """Options of a stream of events.

    An event is a line: its time, and its mark where the run has any, separated by a comma; a first
    line may name the columns. A blank line begins a new sequence. What comes out are times from the
    event to the next one, in the unit of the run's file (of dates, seconds).

    Attributes:
        quantiles: of the time to the next event, separated by commas.
        marks: how many of the likeliest marks are told.
        within: also tell the probability of an event within so long a time; 0 = leave it out.
        begin: when the observation of each sequence began, for a run whose data say so: the first
            event is then forecast, too.
        max_length: most events of a sequence, for mechanisms with a cache; default one more than
            the run was trained on at once.
        simulate: say nothing of each event, and draw so many futures after the last one.
        events: of each future.
        seed: of the futures.
    """

    quantiles: str = "0.05,0.5,0.95"
    marks: int = 1
    within: float = 0.0
    begin: str = ""
    max_length: int | None = None
    simulate: int = 0
    events: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(0, 2**20, marks=self.marks)
        at_least(1, 2**20, events=self.events)
        at_least(0, 2**16, simulate=self.simulate)
        at_least(0, LARGEST, seed=self.seed)
        at_least(1, max_length=self.max_length)
        if not 0 <= self.within < float("inf"):
            raise OptionError(f"within must be at least 0 and finite, got {self.within}.", "within")
        if self.simulate and self.within:
            raise OptionError(
                "within tells of the next event, and futures are drawn instead; leave one out.",
                "within",
                "simulate",
            )
        self.shares()

    def shares(self) -> tuple[float, ...]:
        """The quantiles as numbers.

        Raises:
            OptionError: one is not between 0 and 1.
        """
        cells = [cell for cell in self.quantiles.split(",") if cell.strip()]
        shares = tuple(float(cell) if is_number(cell.strip()) else -1.0 for cell in cells)
        if not all(0 < share < 1 for share in shares):
            raise OptionError(
                f"quantiles must be numbers between 0 and 1, separated by commas, got "
                f"{self.quantiles!r}.",
                "quantiles",
            )
        return shares
