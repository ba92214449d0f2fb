"""Poisson processes with a constant rate, or with a sinusoidal rate."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import OptionError, check_positive, quote
from flax_linattn.data.events import EventSequences
from flax_linattn.data.generators.processes.event_types import event_type_frequencies, log
from flax_linattn.data.generators.processes.flat import flatten, some_forecast
from flax_linattn.data.generators.processes.process import (
    LogLikelihood,
    Process,
    SampledEvents,
    check_expected,
    check_window,
    sample_sequences,
)


class PoissonProcess(Process):
    """The homogeneous Poisson process: exponential gaps and independent event types.

    Args:
        rates: Rate of each event type per unit of time, float64 [M], nonnegative, with a positive
            sum.

    Raises:
        OptionError: If a rate is negative or not finite, or all are 0.

    Example:
        >>> process = PoissonProcess([0.5, 1.5])
        >>> events = EventSequences("a", (np.array([1.0, 1.5]),), (np.array([0, 1]),), ("x", "y"),
        ...                         begin=np.zeros(1), end=np.array([4.0]))
        >>> process.log_likelihood(events).total.round(2)
        array([-8.29])
        >>> PoissonProcess.fit(process.sample(200, end=50.0, seed=0)).rates.round(1)
        array([0.5, 1.5])
    """

    def __init__(self, rates: ArrayLike) -> None:
        self.rates = check_rates("rates", rates)
        """Rate of each event type per unit of time, float64 [M]."""

    @classmethod
    def fit(cls, events: EventSequences) -> PoissonProcess:
        """Fits the rate of all events by maximum likelihood: events divided by the time observed.

        ``event_type_frequencies`` distributes the rate over the event types: one additional event
        of each type is counted, so no rate is 0. Given events do not count, and neither does the
        time up to the last given event.

        Raises:
            ValueError: If no event is forecast, or all are at one time.
        """
        flat = flatten(events)
        some_forecast(flat, events.name)
        return cls(len(flat.gaps) / flat.exposure * event_type_frequencies(events))

    @property
    def num_event_types(self) -> int:
        return len(self.rates)

    @property
    def rate(self) -> float:
        """Rate of all event types per unit of time."""
        return float(self.rates.sum())

    def sample(
        self, num_sequences: int, end: float, *, seed: int, begin: float = 0.0
    ) -> EventSequences:
        check_window(begin, end)
        expected = self.rate * (end - begin)
        check_expected(expected * num_sequences)

        def sample(rng: np.random.Generator, rows: int) -> SampledEvents:
            owner = np.repeat(np.arange(rows), rng.poisson(expected, rows))
            times = rng.uniform(begin, end, len(owner))
            return SampledEvents(
                owner, times, rng.choice(self.num_event_types, len(owner), p=self.rates / self.rate)
            )

        return sample_sequences(
            "poisson", sample, self.num_event_types, num_sequences, begin, end, seed
        )

    def log_likelihood(self, events: EventSequences) -> LogLikelihood:
        flat = flatten(events, self.num_event_types)
        return LogLikelihood(
            time=flat.sums(np.log(self.rate) - self.rate * flat.gaps),
            event_type=flat.sums(log(self.rates / self.rate)[flat.event_types]),
            survival=-self.rate * flat.rest,
        )

    def rescaled(self, events: EventSequences) -> tuple[NDArray[np.float64], ...]:
        flat = flatten(events, self.num_event_types)
        return flat.split(self.rate * flat.gaps)


def check_rates(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Validates rates; returns them as float64 [M]."""
    array = np.asarray(values, np.float64)
    good = array.ndim == 1 and bool(np.isfinite(array).all()) and bool((array >= 0).all())
    if not good or not array.sum() > 0:
        raise OptionError(
            f"{name} must be one rate for each event type, none below 0 and some above, got "
            f"{quote(array.tolist())}.",
            name,
        )
    return array


class SinePoisson(Process):
    """The Poisson process of rate ``mean * (1 + amplitude * sin(2 pi t / period + phase))``.

    Its events have no event types; ``IndependentEventTypes`` adds them. Events are sampled by
    thinning.

    Source: P. A. W. Lewis, G. S. Shedler, "Simulation of nonhomogeneous Poisson processes by
    thinning" (1979).

    Args:
        mean: Mean rate per unit of time, over whole periods.
        amplitude: Amplitude of the sine, from -1 to 1. At 1 the rate drops to 0 once per period.
        period: Period in units of time.
        phase: Phase at time 0 in radians.

    Raises:
        OptionError: If the mean or the period is not above 0, the amplitude is not from -1 to 1, or
            the phase is not finite.

    Example:
        >>> process = SinePoisson(mean=1.0, amplitude=0.8, period=20.0)
        >>> process.rate(np.array([0.0, 5.0, 15.0])).round(2)
        array([1. , 1.8, 0.2])
        >>> events = EventSequences("a", (np.array([1.0, 1.5]),), (np.array([0, 0]),),
        ...                         begin=np.zeros(1), end=np.array([4.0]))
        >>> process.log_likelihood(events).total.round(2)
        array([-5.23])
        >>> len(process.sample(3, end=100.0, seed=0))
        3
    """

    def __init__(self, mean: float, amplitude: float, period: float, phase: float = 0.0) -> None:
        check_positive(mean=mean, period=period)
        if not -1 <= amplitude <= 1:
            raise OptionError(f"amplitude must be from -1 to 1, got {amplitude}.", "amplitude")
        for name, value in (("mean", mean), ("period", period), ("phase", phase)):
            if not math.isfinite(value):
                raise OptionError(f"{name} must be finite, got {value}.", name)
        self.mean, self.amplitude, self.period, self.phase = mean, amplitude, period, phase

    @property
    def num_event_types(self) -> int:
        return 1

    def rate(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rate per unit of time at the given times, float64 of the same shape."""
        sine = np.sin(2 * np.pi * times / self.period + self.phase)
        return self.mean * (1 + self.amplitude * sine)

    def integral(
        self, begins: NDArray[np.float64], ends: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Expected number of events from starts to ends, float64 of the same shape."""
        span = ends - begins
        middle = 2 * np.pi * (begins + span / 2) / self.period + self.phase
        # cos(a) - cos(b) as a product: the difference would lose the digits of a small span.
        wave = self.period / np.pi * np.sin(middle) * np.sin(np.pi * span / self.period)
        return self.mean * (span + self.amplitude * wave)

    def sample(
        self, num_sequences: int, end: float, *, seed: int, begin: float = 0.0
    ) -> EventSequences:
        check_window(begin, end)
        max_rate = self.mean * (1 + abs(self.amplitude))
        check_expected(max_rate * (end - begin) * num_sequences)

        def sample(rng: np.random.Generator, rows: int) -> SampledEvents:
            owner = np.repeat(np.arange(rows), rng.poisson(max_rate * (end - begin), rows))
            times = rng.uniform(begin, end, len(owner))
            accepted = rng.uniform(0, max_rate, len(owner)) < self.rate(times)
            return SampledEvents(
                owner[accepted], times[accepted], np.zeros(accepted.sum(), np.int64)
            )

        return sample_sequences("sine", sample, 1, num_sequences, begin, end, seed)

    def log_likelihood(self, events: EventSequences) -> LogLikelihood:
        flat = flatten(events, 1)
        gaps = log(self.rate(flat.times)) - self.integral(flat.before, flat.times)
        return LogLikelihood(
            time=flat.sums(gaps),
            event_type=np.zeros(len(events)),
            survival=-self.integral(flat.last, flat.ends),
        )

    def rescaled(self, events: EventSequences) -> tuple[NDArray[np.float64], ...]:
        flat = flatten(events, 1)
        return flat.split(self.integral(flat.before, flat.times))


SIN = SinePoisson(mean=1.0, amplitude=1.0, period=4 * math.pi)
"""Process of the data set "Sin" in "Attention as an RNN" (Feng et al., 2024).

Appendix C.2 of the paper says that it is a sine with a period of 4 pi on [0, 32 pi]. The paper does
not give the mean and the amplitude. Here both are 1, and the phase is 0: the rate is 1 + sin(t /
2), and a sequence has 32 pi, about 100, expected events. Results are therefore not comparable with
the paper's.
"""

SIN_END = 32 * math.pi
"""End of the observation of a sequence of "Sin", which starts at 0."""
