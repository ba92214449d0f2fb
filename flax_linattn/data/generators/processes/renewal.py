"""Renewal processes, whose gaps are a mixture of log-normal distributions."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import (
    MAX_SEED,
    OptionError,
    check_integers,
    check_positive,
    check_same_length,
    quote,
)
from flax_linattn.data.events import EventSequences
from flax_linattn.data.generators.processes.event_types import (
    event_type_frequencies,
    log,
    probabilities,
)
from flax_linattn.data.generators.processes.flat import flatten, some_forecast
from flax_linattn.data.generators.processes.process import (
    LogLikelihood,
    Process,
    SampledEvents,
    check_expected,
    check_window,
    sample_sequences,
)

FLOOR = 0.01
"""Minimum fitted std of a component, in standard deviations of all logarithms.

Without a minimum, repeated gaps would get their own component of infinite density.
"""

_STARTS = 3  # one from quantiles, the others from values at random
_FEW = 20_000  # values on which they are compared
_MAX_STEPS = 500
_MIN_GAIN = 1e-6  # of the mean log density, in one step


Mixture = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""Weights, which sum to 1, and means and stds of the logarithms, each float64 [K]."""


def log_density(values: NDArray[np.float64], mixture: Mixture) -> NDArray[np.float64]:
    """Log density [n] of a mixture of log-normal distributions at values above 0, [n]."""
    logs = np.log(values)
    return np.logaddexp.reduce(_log_joint(logs, mixture), axis=0) - logs


def log_survival(values: NDArray[np.float64], mixture: Mixture) -> NDArray[np.float64]:
    """Log probability [n] of exceeding values, which may be 0; exact far out in the tails."""
    weights, means, deviations = mixture
    z = (log(values) - means[:, None]) / deviations[:, None]
    tails = np.logaddexp.reduce(log(weights)[:, None] + scipy.special.log_ndtr(-z), axis=0)
    return np.minimum(tails, 0)  # rounding of the weights must not make it a gain


def fit_mixture(values: NDArray[np.float64], num_components: int, seed: int) -> Mixture:
    """Fits a mixture of log-normal distributions by expectation maximization.

    Three initializations, from quantiles and from random values, are compared on a random sample of
    at most 20,000 values. The best one is continued on all values until the mean log density
    improves by less than 1e-6 in a step, for at most 500 steps. A component's standard deviation is
    at least ``FLOOR`` standard deviations of all logarithms; 0.01 if all are equal.
    """
    rng = np.random.default_rng(seed)
    logs = np.log(values)
    spread = float(logs.std())
    if not spread > 1e-9 * max(1.0, float(np.abs(logs).max())):  # all the same, but for rounding
        spread = 1.0
    few = rng.choice(logs, _FEW, replace=False) if len(logs) > _FEW else logs
    best, best_density = _follow(few, _start(few, num_components, spread, None), FLOOR * spread)
    for _ in range(_STARTS - 1):
        start = _start(few, num_components, spread, rng)
        other, reached = _follow(few, start, FLOOR * spread)
        if reached > best_density:
            best, best_density = other, reached
    if few is not logs:
        best, _ = _follow(logs, best, FLOOR * spread)
    return best


def _start(
    logs: NDArray[np.float64], K: int, spread: float, rng: np.random.Generator | None
) -> Mixture:
    means = np.quantile(logs, (np.arange(K) + 0.5) / K) if rng is None else rng.choice(logs, K)
    return np.full(K, 1 / K), means, np.full(K, spread / np.sqrt(K))


def _follow(logs: NDArray[np.float64], start: Mixture, floor: float) -> tuple[Mixture, float]:
    """Iterates from an initialization; returns the mixture and its mean log density."""
    x, counts = np.unique(logs, return_counts=True)
    mixture, before = start, -np.inf
    for _ in range(_MAX_STEPS):
        mixture, reached = em_step(x, counts, mixture, floor)
        if reached - before < _MIN_GAIN:
            break
        before = reached
    return mixture, reached


def em_step(
    x: NDArray[np.float64], counts: NDArray[np.int64], mixture: Mixture, floor: float
) -> tuple[Mixture, float]:
    """Performs one step of expectation maximization, with a minimum for the stds.

    ``counts`` are the numbers of repeats of the logarithms x. Returns the next mixture, and the
    mean log density of the logarithms under the previous one.
    """
    _, means, deviations = mixture
    shares = _log_joint(x, mixture)
    top = shares.max(axis=0)
    shares = np.exp(shares - top)
    total = shares.sum(axis=0)
    reached = float(np.sum(counts * (top + np.log(total))) / counts.sum())
    shares *= counts / total
    size = shares.sum(axis=1)
    lives = size > 1e-12 * counts.sum()  # a component that owns nothing stays where it is
    divisor = np.where(lives, size, 1)
    # Sums without BLAS, whose threads would wait for each other ten times as long as this takes
    # while other processes compute.
    means = np.where(lives, (shares * x).sum(axis=1) / divisor, means)
    squares = (shares * (x - means[:, None]) ** 2).sum(axis=1)
    deviations = np.where(lives, np.maximum(np.sqrt(squares / divisor), floor), deviations)
    return (size / size.sum(), means, deviations), reached


def _log_joint(logs: NDArray[np.float64], mixture: Mixture) -> NDArray[np.float64]:
    """Joint log density of component and logarithm, [K, n]."""
    weights, means, deviations = mixture
    z = (logs - means[:, None]) / deviations[:, None]
    return (log(weights / deviations) - 0.5 * np.log(2 * np.pi))[:, None] - 0.5 * z * z


_BLOCK = 2_000_000  # gaps that are sampled at once


class RenewalProcess(Process):
    """Renewal process: independent gaps from a log-normal mixture, independent event types.

    The start of a sequence counts as an event: the first gap has the same distribution.

    Source of the mixture: O. Shchur, M. Bilos, S. Guennemann, "Intensity-free learning of temporal
    point processes" (2020), where it also depends on the history.

    Args:
        weights: Weights of the components, float64 [K], which sum to 1.
        means: Means of the logarithms of the gaps, float64 [K].
        deviations: Standard deviations of the logarithms of the gaps, float64 [K], above 0.
        type_probabilities: Probabilities of the event types, float64 [M], which sum to 1.
        resolution: Minimum gap in units of time, which replaces shorter gaps when scoring. None
            raises an error for gaps of 0, where the density is undefined.

    Raises:
        ValueError: If shapes do not match, or a value is out of range.

    Example:
        >>> process = RenewalProcess([0.3, 0.7], [-1.0, 1.0], [0.5, 0.2], [0.9, 0.1])
        >>> events = EventSequences("a", (np.array([1.0, 1.5]),), (np.array([0, 1]),), ("x", "y"),
        ...                         begin=np.zeros(1), end=np.array([4.0]))
        >>> process.log_likelihood(events).total.round(2)
        array([-7.53])
        >>> len(process.sample(3, end=100.0, seed=0))
        3
    """

    def __init__(
        self,
        weights: ArrayLike,
        means: ArrayLike,
        deviations: ArrayLike,
        type_probabilities: ArrayLike = (1.0,),
        *,
        resolution: float | None = None,
    ) -> None:
        self.weights = probabilities("weights", weights)
        self.means = np.atleast_1d(np.asarray(means, np.float64))
        self.deviations = np.atleast_1d(np.asarray(deviations, np.float64))
        check_same_length(weights=self.weights, means=self.means, deviations=self.deviations)
        for name, values in (("means", self.means), ("deviations", self.deviations)):
            if values.ndim != 1 or not np.isfinite(values).all():
                raise OptionError(
                    f"{name} must be a finite number of each component, got "
                    f"{quote(values.tolist())}.",
                    name,
                )
        check_positive(deviations=float(self.deviations.min()))
        self.type_probabilities = probabilities("type_probabilities", type_probabilities)
        if resolution is not None:
            _check_resolution(resolution)
        self.resolution = resolution

    @classmethod
    def fit(
        cls,
        events: EventSequences,
        num_components: int = 8,
        *,
        seed: int = 0,
        resolution: float | None = None,
    ) -> RenewalProcess:
        """Fits the mixture to the logarithms of the gaps, by expectation maximization.

        Only gaps that end with an event count; the times from the last event to the end do not. No
        component's standard deviation is below 0.01 standard deviations of the logarithms of all
        gaps, so that repeated gaps do not get infinite density. The event types have their
        ``event_type_frequencies``.

        Args:
            events: Events, of which n are forecast.
            num_components: Number K of components.
            seed: Random seed of the initial values.
            resolution: Minimum gap in units of time, which replaces shorter gaps here and when
                scoring. Default: the smallest gap above 0.

        Raises:
            ValueError: If no event is forecast, all gaps are 0, or a number is out of range.

        Example:
            >>> true = RenewalProcess([1.0], [0.5], [0.3])
            >>> process = RenewalProcess.fit(true.sample(50, end=100.0, seed=0), num_components=1)
            >>> process.means.round(1), process.deviations.round(1)
            (array([0.5]), array([0.3]))
        """
        check_integers(1, num_components=num_components)
        check_integers(0, MAX_SEED, seed=seed)
        flat = flatten(events)
        some_forecast(flat, events.name)
        if resolution is None:
            resolution = _min_positive_gap(flat.gaps, events.name)
        _check_resolution(resolution)
        mixture = fit_mixture(np.maximum(flat.gaps, resolution), num_components, seed)
        return cls(*mixture, event_type_frequencies(events), resolution=resolution)

    @property
    def num_event_types(self) -> int:
        return len(self.type_probabilities)

    def sample(
        self, num_sequences: int, end: float, *, seed: int, begin: float = 0.0
    ) -> EventSequences:
        check_window(begin, end)

        def sample(rng: np.random.Generator, rows: int) -> SampledEvents:
            owners, times, num_events = [], [], 0
            active, now = np.arange(rows), np.zeros(rows)
            while active.size:
                size = (len(active), max(1, min(256, _BLOCK // len(active))))
                component = rng.choice(len(self.weights), size, p=self.weights)
                normal = rng.standard_normal(size)
                with np.errstate(over="ignore"):  # a gap beyond all numbers is as good as any
                    gaps = np.exp(self.means[component] + self.deviations[component] * normal)
                    own = now[:, None] + np.cumsum(gaps, axis=1)
                row, column = np.nonzero(own <= end - begin)
                owners.append(active[row])
                times.append(begin + own[row, column])
                num_events += len(row)
                check_expected(num_events)
                goes_on = own[:, -1] <= end - begin
                active, now = active[goes_on], own[goes_on, -1]
            owner = np.concatenate(owners)
            event_types = rng.choice(self.num_event_types, len(owner), p=self.type_probabilities)
            return SampledEvents(owner, np.concatenate(times), event_types)

        return sample_sequences(
            "renewal", sample, self.num_event_types, num_sequences, begin, end, seed
        )

    def log_likelihood(self, events: EventSequences) -> LogLikelihood:
        """Computes the exact log likelihood of each sequence in float64; see ``Process``.

        Raises:
            ValueError: If the events have another number of event types, or a gap is 0 and there is
                no resolution.
        """
        flat = flatten(events, self.num_event_types)
        gaps = self._floored(flat.gaps, events.name)
        return LogLikelihood(
            time=flat.sums(log_density(gaps, self._mixture)),
            event_type=flat.sums(log(self.type_probabilities)[flat.event_types]),
            survival=log_survival(flat.rest, self._mixture),
        )

    def rescaled(self, events: EventSequences) -> tuple[NDArray[np.float64], ...]:
        flat = flatten(events, self.num_event_types)
        gaps = self._floored(flat.gaps, events.name)
        return flat.split(-log_survival(gaps, self._mixture))

    @property
    def _mixture(self) -> Mixture:
        return self.weights, self.means, self.deviations

    def _floored(self, gaps: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        if self.resolution is not None:
            return np.maximum(gaps, self.resolution)
        if zeros := int((gaps == 0).sum()):
            raise ValueError(
                f"{name}: expected gaps above 0, but {zeros} of {len(gaps)} are 0, where a "
                "log-normal density is not defined; give a resolution."
            )
        return gaps


def _check_resolution(resolution: float) -> None:
    check_positive(resolution=resolution)
    if not np.isfinite(resolution):
        raise OptionError(f"resolution must be finite, got {resolution}.", "resolution")


def _min_positive_gap(gaps: NDArray[np.float64], name: str) -> float:
    """The smallest gap above 0, the default resolution."""
    if not (gaps > 0).any():
        raise ValueError(
            f"{name}: expected some gap above 0 before a forecast event, got none; give events at "
            "several times."
        )
    return float(gaps[gaps > 0].min())
