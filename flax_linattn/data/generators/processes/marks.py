"""Marks that depend on nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import OptionError, quote
from flax_linattn.data.events import UNMARKED, EventSequences
from flax_linattn.data.generators.processes.flat import check_marks, flatten
from flax_linattn.data.generators.processes.process import LogLikelihood, Process


def mark_frequencies(events: EventSequences) -> NDArray[np.float64]:
    """Probabilities of the marks, ``(count + 1) / (n + M)``: one event more of each is counted.

    So a mark that does not occur has a probability above 0. Events that are not forecast do not
    count.

    Args:
        events: With n forecast events.

    Returns:
        Float64 [M], of sum 1.

    Example:
        >>> marks = (np.array([0, 0], np.int32),)
        >>> events = EventSequences("a", (np.array([1.0, 2.0]),), marks, ("x", "y"),
        ...                         begin=np.zeros(1))
        >>> mark_frequencies(events).tolist()
        [0.75, 0.25]
    """
    counts = np.bincount(flatten(events).marks, minlength=len(events.mark_names))
    return (counts + 1) / (counts.sum() + len(counts))


def probabilities(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Returns probabilities as float64 [K], of sum 1; refuses what is none."""
    array = np.asarray(values, np.float64)
    good = array.ndim == 1 and array.size > 0 and bool((array >= 0).all())
    if not good or not abs(array.sum() - 1) < 1e-6:
        raise OptionError(
            f"{name} must be one or more probabilities, of sum 1, got {quote(array.tolist())}.",
            name,
        )
    return array / array.sum()


def log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm; that of 0 is -inf, as the impossible may well be asked for."""
    with np.errstate(divide="ignore"):
        return np.log(values)


class IndependentMarks(Process):
    """A process of unmarked events, each with a mark that depends on nothing.

    Args:
        process: Of the times, with one mark.
        mark_probabilities: Float64 [M], of sum 1.

    Raises:
        ValueError: The process has marks of its own, or the probabilities are none.

    Example:
        >>> from flax_linattn.data.generators.processes import SinePoisson
        >>> process = IndependentMarks(SinePoisson(1.0, 0.5, period=10.0), [0.9, 0.1])
        >>> events = process.sample(3, end=100.0, seed=0)
        >>> len(events), events.mark_names, process.log_likelihood(events).mark.shape
        (3, ('0', '1'), (3,))
    """

    def __init__(self, process: Process, mark_probabilities: ArrayLike) -> None:
        if process.num_marks != 1:
            raise OptionError(
                f"process must have one mark, got one of {process.num_marks}.", "process"
            )
        self.process = process
        self.mark_probabilities = probabilities("mark_probabilities", mark_probabilities)

    @classmethod
    def fit(
        cls, events: EventSequences, fit: Callable[[EventSequences], Process]
    ) -> IndependentMarks:
        """Fits a process to the times, and ``mark_frequencies`` to the marks.

        Args:
            events: With any number of marks.
            fit: Fits the process of the times, such as ``HawkesProcess.fit``.

        Raises:
            ValueError: What ``fit`` raises.
        """
        return cls(fit(_unmarked(events)), mark_frequencies(events))

    @property
    def num_marks(self) -> int:
        return len(self.mark_probabilities)

    def sample(
        self, num_sequences: int, end: float, *, seed: int, begin: float = 0.0
    ) -> EventSequences:
        events = self.process.sample(num_sequences, end, seed=seed, begin=begin)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
        marks = rng.choice(self.num_marks, events.num_events, p=self.mark_probabilities)
        bounds = np.cumsum([len(times) for times in events.times])[:-1]
        if self.num_marks == 1:
            return events
        return dataclasses.replace(
            events,
            marks=tuple(np.split(marks.astype(np.int32), bounds)),
            mark_names=tuple(str(mark) for mark in range(self.num_marks)),
        )

    def log_likelihood(self, events: EventSequences) -> LogLikelihood:
        flat = flatten(events, self.num_marks)
        mark = flat.sums(log(self.mark_probabilities)[flat.marks])
        return self.process.log_likelihood(_unmarked(events))._replace(mark=mark)

    def rescaled(self, events: EventSequences) -> tuple[NDArray[np.float64], ...]:
        check_marks(events, self.num_marks)
        return self.process.rescaled(_unmarked(events))


def _unmarked(events: EventSequences) -> EventSequences:
    marks = tuple(np.zeros_like(own) for own in events.marks)
    return dataclasses.replace(events, marks=marks, mark_names=UNMARKED)
