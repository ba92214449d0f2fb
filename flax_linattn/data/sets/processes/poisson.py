"""Events that depend on nothing, at a constant rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import OptionError, shown
from flax_linattn.data.events import EventSequences
from flax_linattn.data.sets.processes.draws import (
    Drawn,
    check_expected,
    check_window,
    draw_sequences,
)
from flax_linattn.data.sets.processes.flat import flatten, some_forecast
from flax_linattn.data.sets.processes.marks import log, mark_frequencies
from flax_linattn.data.sets.processes.process import LogLikelihood, Process


class PoissonProcess(Process):
    """The homogeneous Poisson process: gaps are exponential, marks independent of all else.

    Args:
        rates: Events of each mark in a unit of time, float64 [M], none below 0, some above.

    Raises:
        OptionError: A rate is negative or not finite, or all are 0.

    Example:
        >>> process = PoissonProcess([0.5, 1.5])
        >>> events = EventSequences("a", (np.array([1.0, 1.5]),), (np.array([0, 1]),), ("x", "y"),
        ...                         begin=np.zeros(1), end=np.array([4.0]))
        >>> process.log_likelihood(events).total.round(2)
        array([-8.29])
        >>> PoissonProcess.fit(process.draw(200, end=50.0, seed=0)).rates.round(1)
        array([0.5, 1.5])
    """

    def __init__(self, rates: ArrayLike) -> None:
        self.rates = rates_of("rates", rates)
        """Events of each mark in a unit of time, float64 [M]."""

    @classmethod
    def fit(cls, events: EventSequences) -> PoissonProcess:
        """Fits the rate of all events by maximum likelihood: events divided by the time observed.

        It is shared among the marks by ``mark_frequencies``: one event more of each is counted, so
        no rate is 0. Events that are given do not count, nor does the time up to the last of them.

        Raises:
            ValueError: No event is forecast, or all are at one moment.
        """
        flat = flatten(events)
        some_forecast(flat, events.name)
        return cls(len(flat.gaps) / flat.exposure * mark_frequencies(events))

    @property
    def num_marks(self) -> int:
        return len(self.rates)

    @property
    def rate(self) -> float:
        """Events of all marks in a unit of time."""
        return float(self.rates.sum())

    def draw(
        self, num_sequences: int, end: float, *, seed: int, begin: float = 0.0
    ) -> EventSequences:
        check_window(begin, end)
        expected = self.rate * (end - begin)
        check_expected(expected * num_sequences)

        def sample(rng: np.random.Generator, rows: int) -> Drawn:
            owner = np.repeat(np.arange(rows), rng.poisson(expected, rows))
            times = rng.uniform(begin, end, len(owner))
            return Drawn(
                owner, times, rng.choice(self.num_marks, len(owner), p=self.rates / self.rate)
            )

        return draw_sequences("poisson", sample, self.num_marks, num_sequences, begin, end, seed)

    def log_likelihood(self, events: EventSequences) -> LogLikelihood:
        flat = flatten(events, self.num_marks)
        return LogLikelihood(
            time=flat.sums(np.log(self.rate) - self.rate * flat.gaps),
            mark=flat.sums(log(self.rates / self.rate)[flat.marks]),
            survival=-self.rate * flat.rest,
        )

    def rescaled(self, events: EventSequences) -> tuple[NDArray[np.float64], ...]:
        flat = flatten(events, self.num_marks)
        return flat.split(self.rate * flat.gaps)


def rates_of(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Returns rates as float64 [M].

    Raises:
        OptionError: They are none.
    """
    array = np.asarray(values, np.float64)
    good = array.ndim == 1 and bool(np.isfinite(array).all()) and bool((array >= 0).all())
    if not good or not array.sum() > 0:
        raise OptionError(
            f"{name} must be one rate for each mark, none below 0 and some above, got "
            f"{shown(array.tolist())}.",
            name,
        )
    return array
