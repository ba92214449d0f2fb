"""Event types that are independent of the times and of each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import OptionError, quote
from flax_linattn.data.events import SINGLE_EVENT_TYPE, EventSequences
from flax_linattn.data.generators.processes.flat import check_num_event_types, flatten
from flax_linattn.data.generators.processes.process import LogLikelihood, Process


def event_type_frequencies(events: EventSequences) -> NDArray[np.float64]:
    """Relative frequencies of the event types with add-one smoothing, ``(count + 1) / (n + M)``.

    An event type that does not occur has a probability above 0. Only forecast events count.

    Args:
        events: Events, of which n are forecast.

    Returns:
        Frequencies, float64 [M], which sum to 1.

    Example:
        >>> event_types = (np.array([0, 0], np.int32),)
        >>> events = EventSequences("a", (np.array([1.0, 2.0]),), event_types, ("x", "y"),
        ...                         begin=np.zeros(1))
        >>> event_type_frequencies(events).tolist()
        [0.75, 0.25]
    """
    counts = np.bincount(flatten(events).event_types, minlength=len(events.event_type_names))
    return (counts + 1) / (counts.sum() + len(counts))


def probabilities(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Validates probabilities; returns them as float64 [K], normalized to sum 1."""
    array = np.asarray(values, np.float64)
    good = array.ndim == 1 and array.size > 0 and bool((array >= 0).all())
    if not good or not abs(array.sum() - 1) < 1e-6:
        raise OptionError(
            f"{name} must be one or more probabilities, of sum 1, got {quote(array.tolist())}.",
            name,
        )
    return array / array.sum()


def log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm without a warning for 0, which gives -inf."""
    with np.errstate(divide="ignore"):
        return np.log(values)


class IndependentEventTypes(Process):
    """Process of times with independent event types.

    Args:
        process: Process of the times, with one event type.
        type_probabilities: Probabilities of the event types, float64 [M], which sum to 1.

    Raises:
        ValueError: If the process has event types of its own, or the probabilities are invalid.

    Example:
        >>> from flax_linattn.data.generators.processes import SinePoisson
        >>> process = IndependentEventTypes(SinePoisson(1.0, 0.5, period=10.0), [0.9, 0.1])
        >>> events = process.sample(3, end=100.0, seed=0)
        >>> len(events), events.event_type_names, process.log_likelihood(events).event_type.shape
        (3, ('0', '1'), (3,))
    """

    def __init__(self, process: Process, type_probabilities: ArrayLike) -> None:
        if process.num_event_types != 1:
            raise OptionError(
                f"process must have one event type, got {process.num_event_types}.", "process"
            )
        self.process = process
        self.type_probabilities = probabilities("type_probabilities", type_probabilities)

    @classmethod
    def fit(
        cls, events: EventSequences, fit: Callable[[EventSequences], Process]
    ) -> IndependentEventTypes:
        """Fits a process to the times, and ``event_type_frequencies`` to the event types.

        Args:
            events: Events of any number of event types.
            fit: Function that fits the process of the times, such as ``HawkesProcess.fit``.

        Raises:
            ValueError: If ``fit`` of the process refuses the events.
        """
        return cls(fit(_without_types(events)), event_type_frequencies(events))

    @property
    def num_event_types(self) -> int:
        return len(self.type_probabilities)

    def sample(
        self, num_sequences: int, end: float, *, seed: int, begin: float = 0.0
    ) -> EventSequences:
        events = self.process.sample(num_sequences, end, seed=seed, begin=begin)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
        event_types = rng.choice(self.num_event_types, events.num_events, p=self.type_probabilities)
        bounds = np.cumsum([len(times) for times in events.times])[:-1]
        if self.num_event_types == 1:
            return events
        return dataclasses.replace(
            events,
            event_types=tuple(np.split(event_types.astype(np.int32), bounds)),
            event_type_names=tuple(map(str, range(self.num_event_types))),
        )

    def log_likelihood(self, events: EventSequences) -> LogLikelihood:
        flat = flatten(events, self.num_event_types)
        event_type = flat.sums(log(self.type_probabilities)[flat.event_types])
        return self.process.log_likelihood(_without_types(events))._replace(event_type=event_type)

    def rescaled(self, events: EventSequences) -> tuple[NDArray[np.float64], ...]:
        check_num_event_types(events, self.num_event_types)
        return self.process.rescaled(_without_types(events))


def _without_types(events: EventSequences) -> EventSequences:
    event_types = tuple(np.zeros_like(own) for own in events.event_types)
    return dataclasses.replace(events, event_types=event_types, event_type_names=SINGLE_EVENT_TYPE)
