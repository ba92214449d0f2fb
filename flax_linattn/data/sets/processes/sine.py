"""Events at a rate that goes up and down as a sine of time."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, positive
from flax_linattn.data.events import EventSequences
from flax_linattn.data.sets.processes.draws import (
    Drawn,
    check_expected,
    check_window,
    draw_sequences,
)
from flax_linattn.data.sets.processes.flat import flatten
from flax_linattn.data.sets.processes.marks import log
from flax_linattn.data.sets.processes.process import LogLikelihood, Process


class SinePoisson(Process):
    """The Poisson process of rate ``mean * (1 + amplitude * sin(2 pi t / period + phase))``.

    Its events have no marks; ``IndependentMarks`` adds some. They are drawn by thinning.

    Source: P. A. W. Lewis, G. S. Shedler, "Simulation of nonhomogeneous Poisson processes by
    thinning" (1979).

    Args:
        mean: Events in a unit of time, over whole periods.
        amplitude: Of the sine, from -1 to 1. At 1 the rate comes down to 0 once in a period.
        period: In units of time.
        phase: In radians, at time 0.

    Raises:
        OptionError: The mean or the period is not above 0, the amplitude not from -1 to 1, or the
            phase not finite.

    Example:
        >>> process = SinePoisson(mean=1.0, amplitude=0.8, period=20.0)
        >>> process.rate(np.array([0.0, 5.0, 15.0])).round(2)
        array([1. , 1.8, 0.2])
        >>> events = EventSequences("a", (np.array([1.0, 1.5]),), (np.array([0, 0]),),
        ...                         begin=np.zeros(1), end=np.array([4.0]))
        >>> process.log_likelihood(events).total.round(2)
        array([-5.23])
        >>> len(process.draw(3, end=100.0, seed=0))
        3
    """

    def __init__(self, mean: float, amplitude: float, period: float, phase: float = 0.0) -> None:
        positive(mean=mean, period=period)
        if not -1 <= amplitude <= 1:
            raise OptionError(f"amplitude must be from -1 to 1, got {amplitude}.", "amplitude")
        for name, value in (("mean", mean), ("period", period), ("phase", phase)):
            if not math.isfinite(value):
                raise OptionError(f"{name} must be finite, got {value}.", name)
        self.mean = mean
        self.amplitude = amplitude
        self.period = period
        self.phase = phase

    @property
    def num_marks(self) -> int:
        return 1

    def rate(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Events in a unit of time at these times, float64 of their shape."""
        sine = np.sin(2 * np.pi * times / self.period + self.phase)
        return self.mean * (1 + self.amplitude * sine)

    def integral(
        self, begins: NDArray[np.float64], ends: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Events to be expected from the begins to the ends, float64 of their shape."""
        span = ends - begins
        middle = 2 * np.pi * (begins + span / 2) / self.period + self.phase
        # cos(a) - cos(b) as a product: the difference would lose the digits of a small span.
        wave = self.period / np.pi * np.sin(middle) * np.sin(np.pi * span / self.period)
        return self.mean * (span + self.amplitude * wave)

    def draw(
        self, num_sequences: int, end: float, *, seed: int, begin: float = 0.0
    ) -> EventSequences:
        check_window(begin, end)
        most = self.mean * (1 + abs(self.amplitude))
        check_expected(most * (end - begin) * num_sequences)

        def sample(rng: np.random.Generator, rows: int) -> Drawn:
            owner = np.repeat(np.arange(rows), rng.poisson(most * (end - begin), rows))
            times = rng.uniform(begin, end, len(owner))
            kept = rng.uniform(0, most, len(owner)) < self.rate(times)
            return Drawn(owner[kept], times[kept], np.zeros(kept.sum(), np.int64))

        return draw_sequences("sine", sample, 1, num_sequences, begin, end, seed)

    def log_likelihood(self, events: EventSequences) -> LogLikelihood:
        flat = flatten(events, 1)
        gaps = log(self.rate(flat.times)) - self.integral(flat.before, flat.times)
        return LogLikelihood(
            time=flat.sums(gaps),
            mark=np.zeros(len(events)),
            survival=-self.integral(flat.last, flat.ends),
        )

    def rescaled(self, events: EventSequences) -> tuple[NDArray[np.float64], ...]:
        flat = flatten(events, 1)
        return flat.split(self.integral(flat.before, flat.times))


SIN = SinePoisson(mean=1.0, amplitude=1.0, period=4 * math.pi)
"""The process of the set "Sin" of "Attention as an RNN" (Feng et al. 2024), as far as it is known.

Appendix C.2 of the paper says that it is a sine with a period of 4 pi on [0, 32 pi]. The mean and
the amplitude are not given. Here both are 1, the phase is 0: 32 pi, about 100, events are expected
of a sequence, and the rate is 1 + sin(t / 2). So numbers on it are not those of the paper.
"""

SIN_END = 32 * math.pi
"""When a sequence of "Sin" ends; it begins at 0."""
