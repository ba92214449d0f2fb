"""What a model of events has to beat: processes by maximum likelihood, and simple guesses."""

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
    IndependentMarks,
    PoissonProcess,
    Process,
    RenewalProcess,
)
from flax_linattn.tasks.baselines import Baselines

BASELINES = Baselines(
    "nll", ("poisson", "renewal", "hawkes"), title="NLL an event", num_train="num_train_events"
)

FITTED = 200_000
"""Most events that a Hawkes process is fitted to, in about a minute."""
PIECE, HISTORY = 1000, 200
"""Events of a sequence that it is fitted to at once, and those before that excite them: its time
goes with the longest sequence."""


def fit_processes(train: EventSequences, resolution: float) -> dict[str, Process]:
    """The processes by name, fitted to the events to train on, with the run's resolution."""
    fit: Callable[[EventSequences], Process] = partial(HawkesProcess.fit, resolution=resolution)
    if len(train.mark_names) > MAX_EVENT_TYPES:
        fit = partial(IndependentMarks.fit, fit=fit)
    return {
        "poisson": PoissonProcess.fit(train),
        "renewal": RenewalProcess.fit(train, resolution=resolution),
        "hawkes": fit(for_hawkes(train)),
    }


def for_hawkes(train: EventSequences) -> EventSequences:
    """Pieces of the first sequences: what a Hawkes process is fitted to."""
    # Pieces first: a single sequence may be longer than all that is to be fitted to.
    return few(train.cut(PIECE, HISTORY), FITTED)


def few(events: EventSequences, most: int) -> EventSequences:
    """The first sequences, with so many events or a few more."""
    sizes = np.cumsum([len(own) for own in events.times])
    return events.select(range(min(int(np.searchsorted(sizes, most)) + 1, len(events))))


def process_values(name: str, process: Process, test: EventSequences) -> dict[str, float]:
    """Negative log likelihoods an event, and the distance of integrated intensities."""
    found = process.log_likelihood(test)
    number = test.num_forecast
    rescaled = np.concatenate(process.rescaled(test))
    parts = {
        f"{name}_time_nll": -float(found.time.sum() + found.survival.sum()) / number,
        f"{name}_mark_nll": -float(found.mark.sum()) / number,
    }
    return {
        f"{name}_nll": -float(found.total.sum()) / number,
        **(parts if process.num_marks > 1 else {}),
        f"{name}_ks": ks_distance(rescaled),
    }


def ks_distance(rescaled: NDArray[np.float64]) -> float:
    """The statistic of Kolmogorov and Smirnov of values [n] and the exponential of mean one.

    By the time-rescaling theorem the integrated intensities of the true process are such values
    (Brown et al., 2002).

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
    """What ``ks_distance`` of so many independent values exceeds once in twenty times."""
    return 1.3581 / math.sqrt(number)


def guesses(train: EventSequences, test: EventSequences) -> dict[str, Any]:
    """Errors of the mean and the median gap, accuracies of the most frequent and the last mark."""
    gaps, own = np.concatenate(train.gaps()), np.concatenate(test.gaps())
    found = {
        "mean_gap_rmse": float(np.sqrt(np.mean((own - gaps.mean()) ** 2))),
        "median_gap_mae": float(np.mean(np.abs(own - np.median(gaps)))),
    }
    if len(train.mark_names) == 1:
        return found
    counts = np.bincount(forecast_marks(train), minlength=len(train.mark_names))
    marks = forecast_marks(test)
    # Where there was no event before, no mark is guessed.
    before = np.concatenate(
        [
            np.append(-1, own[:-1])[given:]
            for own, given in zip(test.marks, test.num_given, strict=True)
        ]
    )
    return found | {
        "frequent_mark_accuracy": float(np.mean(marks == counts.argmax())),
        "last_mark_accuracy": float(np.mean(marks == before)),
    }


def forecast_marks(events: EventSequences) -> NDArray[np.int32]:
    """Event types of all forecast events."""
    parts = zip(events.marks, events.num_given, strict=True)
    return np.concatenate([own[given:] for own, given in parts])
