"""Baselines of event models: point processes by maximum likelihood, and constant predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.events import EventSequences
from flax_linattn.data.generators.processes import (
    MAX_EVENT_TYPES,
    HawkesProcess,
    IndependentEventTypes,
    PoissonProcess,
    Process,
    RenewalProcess,
)
from flax_linattn.tasks.baselines import Baselines

BASELINES = Baselines(
    "nll", ("poisson", "renewal", "hawkes"), title="NLL per event", num_train="num_train_events"
)

MAX_HAWKES_EVENTS = 200_000
"""Maximum number of events that a Hawkes process is fitted to, in about a minute."""
HAWKES_LENGTH, HAWKES_HISTORY = 1000, 200
"""Events of a chunk that a Hawkes process is fitted to, and earlier events that excite them; the
time of a fit grows with the longest chunk."""


def fit_processes(train: EventSequences, resolution: float) -> dict[str, Process]:
    """Fits each process to the training events, with the resolution of the run."""
    fit: Callable[[EventSequences], Process] = partial(HawkesProcess.fit, resolution=resolution)
    if len(train.event_type_names) > MAX_EVENT_TYPES:
        fit = partial(IndependentEventTypes.fit, fit=fit)
    return {
        "poisson": PoissonProcess.fit(train),
        "renewal": RenewalProcess.fit(train, resolution=resolution),
        "hawkes": fit(hawkes_sequences(train)),
    }


def hawkes_sequences(train: EventSequences) -> EventSequences:
    """The chunks of sequences that a Hawkes process is fitted to."""
    # Sequences are cut first, because a single one may have more events than the limit.
    return take_events(train.cut(HAWKES_LENGTH, HAWKES_HISTORY), MAX_HAWKES_EVENTS)


def take_events(events: EventSequences, num_events: int) -> EventSequences:
    """The first sequences that together have at least ``num_events`` events."""
    sizes = np.cumsum([len(own) for own in events.times])
    return events.select(range(min(int(np.searchsorted(sizes, num_events)) + 1, len(events))))


def score_process(name: str, process: Process, test: EventSequences) -> dict[str, float]:
    """Negative log likelihoods per event of a process, and its Kolmogorov-Smirnov distance."""
    likelihood = process.log_likelihood(test)
    number = test.num_forecast
    rescaled = np.concatenate(process.rescaled(test))
    parts = {
        f"{name}_time_nll": -float(likelihood.time.sum() + likelihood.survival.sum()) / number,
        f"{name}_mark_nll": -float(likelihood.event_type.sum()) / number,
    }
    return {
        f"{name}_nll": -float(likelihood.total.sum()) / number,
        **(parts if process.num_event_types > 1 else {}),
        f"{name}_ks": ks_distance(rescaled),
    }


def ks_distance(rescaled: NDArray[np.float64]) -> float:
    """Kolmogorov-Smirnov distance of values [n] from the exponential distribution of mean 1.

    By the time-rescaling theorem, the integrated intensities of the true process follow this
    distribution (Brown et al., 2002).

    Example:
        >>> n = 1000
        >>> exact = -np.log1p(-(np.arange(n) + 0.5) / n)
        >>> round(ks_distance(exact), 6), ks_distance(exact) < ks_limit(n) < ks_distance(2 * exact)
        (0.0005, True)
    """
    reached = np.sort(-np.expm1(-rescaled))
    steps = np.arange(len(reached) + 1) / len(reached)
    return float(max(np.max(steps[1:] - reached), np.max(reached - steps[:-1])))


def ks_limit(number: int) -> float:
    """The 95 % quantile of ``ks_distance`` for a number of independent values."""
    return 1.3581 / math.sqrt(number)


def naive_scores(train: EventSequences, test: EventSequences) -> dict[str, Any]:
    """Errors of the mean and median gap; accuracies of the most frequent and last event type."""
    gaps, own = np.concatenate(train.gaps()), np.concatenate(test.gaps())
    scores = {
        "mean_gap_rmse": float(np.sqrt(np.mean((own - gaps.mean()) ** 2))),
        "median_gap_mae": float(np.mean(np.abs(own - np.median(gaps)))),
    }
    if len(train.event_type_names) == 1:
        return scores
    counts = np.bincount(forecast_event_types(train), minlength=len(train.event_type_names))
    event_types = forecast_event_types(test)
    # The first event of a sequence has no previous type, so -1 is a wrong prediction.
    previous = np.concatenate(
        [
            np.append(-1, own[:-1])[given:]
            for own, given in zip(test.event_types, test.num_given, strict=True)
        ]
    )
    return scores | {
        "frequent_mark_accuracy": float(np.mean(event_types == counts.argmax())),
        "last_mark_accuracy": float(np.mean(event_types == previous)),
    }


def forecast_event_types(events: EventSequences) -> NDArray[np.int32]:
    """Event types of all forecast events, in the order of the sequences."""
    parts = zip(events.event_types, events.num_given, strict=True)
    return np.concatenate([own[given:] for own, given in parts])
