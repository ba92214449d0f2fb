"""Maximum likelihood for the Hawkes process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from flax_linattn.checks import check_integers, check_positive
from flax_linattn.data.events import EventSequences
from flax_linattn.data.generators.processes.event_types import event_type_frequencies
from flax_linattn.data.generators.processes.flat import Steps, flatten, in_steps, some_forecast

MAX_EVENT_TYPES = 100
"""Maximum number M of event types whose M x M excitation is fitted."""

_FEW = 20_000  # events on which starts are compared
_FEW_ITERATIONS = 30
_STARTS = (0.1, 1.0, 10.0)  # decays, in mean gaps

Parameters = tuple[NDArray[np.float64], NDArray[np.float64], float]
"""Base [M], excitation [M, M] and decay."""


def fit_hawkes(events: EventSequences, resolution: float | None, max_iterations: int) -> Parameters:
    """Returns base, excitation and decay; see ``HawkesProcess.fit``."""
    M = len(events.event_type_names)
    if M > MAX_EVENT_TYPES:
        raise ValueError(
            f"{events.name}: expected at most {MAX_EVENT_TYPES} event types, whose excitation of "
            f"each other can be fitted, got {M}; IndependentEventTypes.fit(events, "
            "HawkesProcess.fit) fits a Hawkes process to the times and frequencies to the types."
        )
    check_integers(1, max_iterations=max_iterations)
    flat = flatten(events)
    some_forecast(flat, events.name)
    if resolution is None:
        above = flat.gaps[flat.gaps > 0]
        resolution = float(above.min()) if above.size else flat.exposure
    check_positive(resolution=resolution)
    spans = flat.ends - np.fmin(events.begins, [own[0] for own in events.times])
    slowest = 1 / float(spans.max())
    bounds = (slowest, max(slowest, 1 / resolution))

    few = _some(events)
    mean_gap = flat.exposure / len(flat.gaps)
    frequencies = event_type_frequencies(events)
    base = 0.5 / mean_gap * frequencies
    excitation = np.tile(0.5 * frequencies[:, None], (1, M))
    starts = [(base, excitation, float(np.clip(scale / mean_gap, *bounds))) for scale in _STARTS]
    search = Search(few, bounds)
    best, _ = min(
        (search.run(start, _FEW_ITERATIONS) for start in starts), key=lambda pair: pair[1]
    )
    (base, excitation, decay), _ = Search(events, bounds).run(best, max_iterations)
    occurs = np.bincount(np.concatenate(events.event_types), minlength=M) > 0
    return base, excitation * occurs, decay


class Search:
    """L-BFGS for the parameters, from a start.

    The parameters are the square roots of base and excitation, each in units of the events that it
    explains. All then have similar curvature, as Poisson counts have under the square root, and
    none can be negative. The decay is parameterized by its logarithm.

    Args:
        events: Events to fit.
        bounds: Bounds of the decay.
    """

    def __init__(self, events: EventSequences, bounds: tuple[float, float]) -> None:
        self.num_event_types = M = len(events.event_type_names)
        self.steps = in_steps(events)
        self.bounds = bounds
        self.number = max(1, int(self.steps.forecast.sum()))
        exposure = max(self.steps.exposure, 1 / bounds[1])
        self.base_unit = self.number / exposure
        counts = np.bincount(self.steps.event_types, minlength=M)
        self.excitation_unit = self.number / np.maximum(counts, 1)  # of the exciting event type

    def run(self, start: Parameters, max_iterations: int) -> tuple[Parameters, float]:
        """Returns the best parameters, and the minimum of the objective."""
        M = self.num_event_types
        base, excitation, decay = start
        x = np.concatenate(
            [
                np.sqrt(base / self.base_unit),
                np.sqrt(excitation / self.excitation_unit).ravel(),
                [np.log(decay)],
            ]
        )
        low, high = np.log(self.bounds)
        result = scipy.optimize.minimize(
            self.minimized,
            x,
            jac=True,
            method="L-BFGS-B",
            bounds=[(None, None)] * (M + M * M) + [(low, high)],
            options={"maxiter": max_iterations, "maxfun": 2 * max_iterations, "maxcor": 20}
            | {"ftol": 1e-9, "gtol": 1e-6},
        )
        return self.parameters(result.x), float(result.fun)

    def parameters(self, x: NDArray[np.float64]) -> Parameters:
        """Converts a point [M + M * M + 1] of the search to parameters."""
        M = self.num_event_types
        excitation = x[M:-1].reshape(M, M) ** 2 * self.excitation_unit
        decay = float(np.clip(np.exp(x[-1]), *self.bounds))
        return x[:M] ** 2 * self.base_unit, excitation, decay

    def minimized(self, x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Negative mean log likelihood, with one additional event per type, and its gradient."""
        M = self.num_event_types
        base, excitation, decay = self.parameters(x)
        # A base rate of 0 has no logarithm; a point on the way may come there.
        base = np.maximum(base, 1e-300)
        result = log_likelihood_and_gradient(self.steps, base, excitation, decay)
        value = result.value + np.log(base).sum()
        gradient = np.concatenate(
            [
                (result.base + 1 / base) * 2 * x[:M] * self.base_unit,
                (result.excitation * self.excitation_unit).ravel() * 2 * x[M:-1],
                [result.decay * decay],
            ]
        )
        return -value / self.number, -gradient / self.number


@dataclass(frozen=True, eq=False)
class Gradient:
    """The log likelihood of all events, and its gradient by each parameter."""

    value: float
    base: NDArray[np.float64]
    excitation: NDArray[np.float64]
    decay: float


def log_likelihood_and_gradient(
    steps: Steps, base: NDArray[np.float64], excitation: NDArray[np.float64], decay: float
) -> Gradient:
    """Returns the log likelihood of all events and its gradient, by recursion in O(n M)."""
    M = len(base)
    one_hot = np.eye(M)
    history = np.zeros((len(steps.rank), M))  # sum of exp(-decay * age), by event type
    aged = np.zeros_like(history)  # sum of age * exp(-decay * age), by event type
    value, by_decay = 0.0, 0.0
    by_base, by_excitation = np.zeros(M), np.zeros((M, M))
    for index, step in enumerate(steps):
        gaps, types = steps.gaps[step], steps.event_types[step]
        now, old = history[: len(gaps)], aged[: len(gaps)]  # views, as in HawkesProcess
        if index:
            old += gaps[:, None] * now
            shrink = np.exp(-decay * gaps)[:, None]
            old *= shrink
            now *= shrink
        rows = excitation[types]
        excited = np.einsum("nm,nm->n", rows, now)
        rate = base[types] + decay * excited
        scored = steps.forecast[step]
        value += float(np.log(np.where(scored, rate, 1)).sum())
        weight = scored / rate
        own = one_hot[types]
        by_base += weight @ own
        by_excitation += (own * weight[:, None]).T @ now
        by_decay += float(weight @ (excited - decay * np.einsum("nm,nm->n", rows, old)))
        now += own
    by_excitation *= decay

    # The integral of the rate is one of each event's excitement alone, from the last given event or
    # the event itself till the end.
    at_head, spans = np.exp(-decay * steps.heads), steps.tails - steps.heads
    delayed = steps.tails * np.exp(-decay * steps.tails) - steps.heads * at_head
    excited_by = np.bincount(steps.event_types, -at_head * np.expm1(-decay * spans), minlength=M)
    delayed_by = np.bincount(steps.event_types, delayed, minlength=M)
    children = excitation.sum(axis=0)
    return Gradient(
        value=value - float(base.sum() * steps.exposure + children @ excited_by),
        base=by_base - steps.exposure,
        excitation=by_excitation - excited_by,
        decay=by_decay - float(children @ delayed_by),
    )


def _some(events: EventSequences) -> EventSequences:
    """Selects evenly spaced sequences with about 20,000 events in total."""
    every = max(1, events.num_events // _FEW)
    return events.select(range(0, len(events), every))
