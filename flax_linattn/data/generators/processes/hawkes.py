"""The Hawkes process, whose events excite further events."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import OptionError, check_positive, quote
from flax_linattn.data.events import EventSequences
from flax_linattn.data.generators.processes.event_types import log
from flax_linattn.data.generators.processes.flat import Steps, check_num_event_types, in_steps
from flax_linattn.data.generators.processes.hawkes_fit import fit_hawkes
from flax_linattn.data.generators.processes.poisson import check_rates
from flax_linattn.data.generators.processes.process import (
    LogLikelihood,
    Process,
    SampledEvents,
    check_expected,
    check_window,
    sample_sequences,
)


class HawkesProcess(Process):
    """The Hawkes process with exponential kernels, for several event types.

    The rate of type m at time t is ``base[m]`` plus the sum, over all previous events of type k at
    time s, of ``excitation[m, k] * decay * exp(-decay * (t - s))``. So an event of type k directly
    excites ``excitation[m, k]`` expected events of type m. Of simultaneous events, earlier ones in
    the sequence excite later ones. No event precedes the begin of a sequence.

    Sources: A. G. Hawkes, "Spectra of some self-exciting and mutually exciting point processes"
    (1971); A. G. Hawkes, D. Oakes, "A cluster process representation of a self-exciting process"
    (1974), for exact sampling; Y. Ogata, "On Lewis' simulation method for point processes" (1981);
    T. Ozaki, "Maximum likelihood estimation of Hawkes' self-exciting point processes" (1979), whose
    recursion gives the likelihood in O(n M); Y. Ogata, "Statistical models for earthquake
    occurrences and residual analysis for point processes" (1988), for ``rescaled``.

    Args:
        base: Rate of spontaneous events of each type, per unit of time, float64 [M].
        excitation: Expected number of directly excited events, by excited and exciting event type,
            float64 [M, M].
        decay: Inverse of the mean time to an excited event.

    Raises:
        OptionError: If a number is negative or not finite, the base is all 0, the decay is 0, or
            the shapes do not fit.

    Example:
        >>> process = HawkesProcess([0.2, 0.1], [[0.5, 0.0], [0.3, 0.2]], decay=2.0)
        >>> round(process.spectral_radius, 2)
        0.5
        >>> events = EventSequences("a", (np.array([1.0, 1.5]),), (np.array([0, 1]),), ("x", "y"),
        ...                         begin=np.zeros(1), end=np.array([4.0]))
        >>> process.log_likelihood(events).total.round(2)
        array([-4.94])
        >>> len(process.sample(3, end=100.0, seed=0))
        3
    """

    def __init__(self, base: ArrayLike, excitation: ArrayLike, decay: float) -> None:
        self.base = check_rates("base", base)
        self.excitation = np.asarray(excitation, np.float64)
        M = len(self.base)
        good = self.excitation.shape == (M, M) and bool(np.isfinite(self.excitation).all())
        if not good or (self.excitation < 0).any():
            raise OptionError(
                f"excitation must be [{M}, {M}], as there are {M} rates of base, of numbers not "
                f"below 0, got {quote(self.excitation.tolist())}.",
                "excitation",
            )
        check_positive(decay=decay)
        if not np.isfinite(decay):
            raise OptionError(f"decay must be finite, got {decay}.", "decay")
        self.decay = float(decay)

    @classmethod
    def fit(
        cls,
        events: EventSequences,
        *,
        resolution: float | None = None,
        max_iterations: int = 500,
    ) -> HawkesProcess:
        """Fits all parameters by maximum likelihood, by L-BFGS with exact gradients.

        One additional event of each type is counted, at the base rate, so no base rate is 0, and
        every type has a positive probability at any time. A type that never occurs excites nothing.

        The best of three initial decays is found on a part of the sequences. The decay stays
        between 1 / (the longest observation) and 1 / ``resolution``: if simultaneous events could
        excite each other instantly, the likelihood would be unbounded.

        The computing time grows with the product of the numbers of events and event types, and with
        the length of the longest sequence: about 0.1 ms for each event of it and iteration.
        ``EventSequences.cut`` shortens sequences; with a history of some events, pieces still
        include nearly all of the excitation.

        Args:
            events: Events of at most ``MAX_EVENT_TYPES`` event types.
            resolution: Minimum gap in units of time. Default: the smallest gap above 0.
            max_iterations: Maximum number of iterations; the search ends there, converged or not.

        Returns:
            The process. If its spectral radius is 1 or more, it cannot be sampled.

        Raises:
            ValueError: If there are more than 100 event types, no event is forecast, all are at one
                time, or a number is out of range.

        Example:
            >>> true = HawkesProcess([0.5], [[0.6]], decay=2.0)
            >>> process = HawkesProcess.fit(true.sample(50, end=100.0, seed=0))
            >>> process.base.round(1), process.excitation.round(1), round(process.decay)
            (array([0.5]), array([[0.6]]), 2)
        """
        return cls(*fit_hawkes(events, resolution, max_iterations))

    @property
    def num_event_types(self) -> int:
        return len(self.base)

    @property
    def spectral_radius(self) -> float:
        """Spectral radius of the excitation; at 1 or more, a cascade of events may never end."""
        return float(np.abs(np.linalg.eigvals(self.excitation)).max())

    def sample(
        self, num_sequences: int, end: float, *, seed: int, begin: float = 0.0
    ) -> EventSequences:
        """Samples independent sequences, without excitation from before the start.

        Raises:
            OptionError: If the spectral radius is 1 or more, or an argument is out of range; see
                ``Process.sample``.
            ValueError: If a sequence had no events 1,000 times in a row.
        """
        check_window(begin, end)
        if not self.spectral_radius < 1:
            raise OptionError(
                "excitation must have a spectral radius below 1 for sampling, got "
                f"{self.spectral_radius:.3g}: each event would cause more than one.",
                "excitation",
            )
        span, M = end - begin, self.num_event_types
        total = np.linalg.solve(np.eye(M) - self.excitation, self.base).sum()
        check_expected(total * span * num_sequences)
        children = self.excitation.sum(axis=0)
        # Where nothing is excited, no child asks for its event type.
        shares = np.cumsum(self.excitation / np.where(children > 0, children, 1), axis=0)

        def sample(rng: np.random.Generator, rows: int) -> SampledEvents:
            owner = np.repeat(np.arange(rows), rng.poisson(self.base.sum() * span, rows))
            times = rng.uniform(0, span, len(owner))
            types = rng.choice(M, len(owner), p=self.base / self.base.sum())
            generations = []
            while owner.size:
                generations.append(SampledEvents(owner, begin + times, types))
                born = rng.poisson(children[types])
                parent = np.repeat(np.arange(len(owner)), born)
                times = times[parent] + rng.exponential(1 / self.decay, len(parent))
                parent, times = parent[times <= span], times[times <= span]
                threshold = rng.uniform(0, shares[-1, types[parent]])
                owner, types = (owner[parent], _first_above(shares, types[parent], threshold))
            if not generations:
                return SampledEvents(owner, times, types)
            return SampledEvents(
                *(np.concatenate(parts) for parts in zip(*generations, strict=True))
            )

        return sample_sequences("hawkes", sample, M, num_sequences, begin, end, seed)

    def log_likelihood(self, events: EventSequences) -> LogLikelihood:
        check_num_event_types(events, self.num_event_types)
        steps = in_steps(events)
        total, own, integral, last = self._follow(steps)
        log_own, log_total = log(own), log(total)
        possible = own > 0
        event_type = np.where(possible, log_own - np.where(possible, log_total, 0), -np.inf)
        survival = np.empty(len(events))
        survival[steps.rank] = -self._integral(last, steps.rest[steps.rank])
        return LogLikelihood(
            time=steps.sums(log_total - integral),
            event_type=steps.sums(event_type),
            survival=survival,
        )

    def rescaled(self, events: EventSequences) -> tuple[NDArray[np.float64], ...]:
        check_num_event_types(events, self.num_event_types)
        steps = in_steps(events)
        return steps.by_sequence(self._follow(steps)[2])

    def _integral(
        self, history: NDArray[np.float64], spans: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Expected number of events in time spans, without new excitation."""
        excited = history @ self.excitation.sum(axis=0)
        return self.base.sum() * spans - excited * np.expm1(-self.decay * spans)

    def _follow(self, steps: Steps) -> tuple[NDArray[np.float64], ...]:
        """Computes each event's total rate, the rate of its type, and the integral of its gap.

        Also returns the decayed number of events of each type after the last event of each row.
        """
        total, own, integral = (np.empty(len(steps.gaps)) for _ in range(3))
        history = np.zeros((len(steps.rank), self.num_event_types))
        children = self.excitation.sum(axis=0)
        for step in steps:
            gaps, types = steps.gaps[step], steps.event_types[step]
            now = history[: len(gaps)]  # a view: the rows that have ended stay as they are
            integral[step] = self._integral(now, gaps)
            now *= np.exp(-self.decay * gaps)[:, None]
            total[step] = self.base.sum() + self.decay * (now @ children)
            excited = np.einsum("nm,nm->n", self.excitation[types], now)
            own[step] = self.base[types] + self.decay * excited
            now[np.arange(len(types)), types] += 1
        return total, own, integral, history


def _first_above(
    shares: NDArray[np.float64], columns: NDArray[np.int64], thresholds: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Returns the first row of each column whose fraction exceeds the threshold, int64 [n]."""
    rows = np.empty(len(columns), np.int64)
    for column in np.unique(columns):
        own = columns == column
        rows[own] = np.searchsorted(shares[:, column], thresholds[own], side="right")
    return np.minimum(rows, len(shares) - 1)
