"""What every point process offers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.events import EventSequences


class LogLikelihood(NamedTuple):
    """Log likelihoods of sequences of events, in natural logarithms; times in the unit of the file.

    If all times are multiplied by c, ``time`` of a process fitted anew is less by ``log(c)`` for
    each event that is forecast; the others stay.

    Attributes:
        time: Sums over the forecast events of the log density of the gap before each, given all
            that came before, float64 [N].
        mark: Sums of the log probability of each mark, given its time and all before, float64 [N].
        survival: Log probability of no event from the last one to the end, float64 [N].

    Example:
        >>> LogLikelihood(np.array([-3.0]), np.array([-1.0]), np.array([-0.5])).total
        array([-4.5])
    """

    time: NDArray[np.float64]
    mark: NDArray[np.float64]
    survival: NDArray[np.float64]

    @property
    def total(self) -> NDArray[np.float64]:
        """Log likelihood of each sequence, float64 [N]."""
        return self.time + self.mark + self.survival


class Process(Protocol):
    """A marked point process, such as ``PoissonProcess`` or ``HawkesProcess``."""

    @property
    def num_marks(self) -> int:
        """M; marks are 0 to M - 1."""

    def draw(
        self, num_sequences: int, end: float, *, seed: int, begin: float = 0.0
    ) -> EventSequences:
        """Draws independent sequences, each observed from ``begin`` to ``end``.

        Nothing is before the begin. A sequence without events, which ``EventSequences`` cannot
        hold, is drawn again. So the density of what is drawn is that of ``log_likelihood`` divided
        by the probability of any event at all: by 1 - 2e-9 where 20 events are expected of a
        Poisson process. Choose an end so late that this does not matter.

        Args:
            num_sequences: N.
            end: Of all observations.
            seed: Of NumPy's generator.
            begin: Of all observations.

        Raises:
            OptionError: There are to be no sequences, the end is not after the begin, or more than
                20 million events are to be expected.
            ValueError: Some sequence had no events 1,000 times in a row.
        """

    def log_likelihood(self, events: EventSequences) -> LogLikelihood:
        """Exact log likelihood of each sequence, in float64.

        Events that are given are not scored, but are part of the history, as is the time up to the
        last of them. Where no begin is known, nothing was before the first event.

        Raises:
            ValueError: The events have another number of marks.
        """

    def rescaled(self, events: EventSequences) -> tuple[NDArray[np.float64], ...]:
        """The integrated rate over the gap before each forecast event, float64 [n] a sequence.

        Under the true process these are independent, and exponential with mean 1.

        Raises:
            ValueError: The events have another number of marks.
        """
