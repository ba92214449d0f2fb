"""Protocol of point processes, and sampling of sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import MAX_SEED, OptionError, check_integers
from flax_linattn.data.events import SINGLE_EVENT_TYPE, EventSequences


class LogLikelihood(NamedTuple):
    """Log-likelihoods of event sequences, in nats; times are in the unit of the file.

    If all times are multiplied by c, ``time`` of a refitted process decreases by ``log(c)`` per
    forecast event; the other fields do not change.

    Attributes:
        time: Sum over the forecast events of the log density of the gap before the event, given all
            earlier events, float64 [N].
        event_type: Sum of the log probability of each event's type, given its time and all earlier
            events, float64 [N].
        survival: Log probability of no event from the last one to the end, float64 [N].

    Example:
        >>> LogLikelihood(np.array([-3.0]), np.array([-1.0]), np.array([-0.5])).total
        array([-4.5])
    """

    time: NDArray[np.float64]
    event_type: NDArray[np.float64]
    survival: NDArray[np.float64]

    @property
    def total(self) -> NDArray[np.float64]:
        """Log likelihood of each sequence, float64 [N]."""
        return self.time + self.event_type + self.survival


class Process(Protocol):
    """A marked point process, such as ``PoissonProcess`` or ``HawkesProcess``."""

    @property
    def num_event_types(self) -> int:
        """Number M of event types; an event type is an index from 0 to M - 1."""

    def sample(
        self, num_sequences: int, end: float, *, seed: int, begin: float = 0.0
    ) -> EventSequences:
        """Samples independent sequences, each observed from ``begin`` to ``end``.

        No events precede the start. A sequence without events, which ``EventSequences`` cannot
        hold, is sampled again. So the density of a sample is that of ``log_likelihood`` divided by
        the probability of at least one event, which is 1 - 2e-9 for a Poisson process with 20
        expected events. Choose ``end`` so that this does not matter.

        Args:
            num_sequences: Number N of sequences.
            end: End of all observations.
            seed: Random seed.
            begin: Start of all observations.

        Raises:
            OptionError: If the number of sequences is below 1, the end is not after the begin, or
                more than 20 million events are expected.
            ValueError: If a sequence had no events 1,000 times in a row.
        """

    def log_likelihood(self, events: EventSequences) -> LogLikelihood:
        """Exact log likelihood of each sequence, in float64.

        Given events, and the time up to the last of them, are history and not scored. If the start
        is unknown, no event precedes the first one.

        Raises:
            ValueError: If the events have another number of event types.
        """

    def rescaled(self, events: EventSequences) -> tuple[NDArray[np.float64], ...]:
        """Integrates the rate over the gap before each forecast event, float64 [n] per sequence.

        Under the true process, the integrals are independent and exponential with mean 1.

        Raises:
            ValueError: If the events have another number of event types.
        """


MAX_EVENTS = 20_000_000
"""Maximum number of events of one sample."""

_ROUNDS = 1000  # in which a sequence may be sampled again


class SampledEvents(NamedTuple):
    """Sampled events in any order: the sequence of each, its time and its event type, all [n]."""

    owner: NDArray[np.int64]
    times: NDArray[np.float64]
    event_types: NDArray[np.int64]


def sample_sequences(
    name: str,
    sample: Callable[[np.random.Generator, int], SampledEvents],
    num_event_types: int,
    num_sequences: int,
    begin: float,
    end: float,
    seed: int,
) -> EventSequences:
    """Samples sequences by ``sample``; a sequence without events is sampled again."""
    check_integers(1, num_sequences=num_sequences)
    check_integers(0, MAX_SEED, seed=seed)
    rng = np.random.default_rng(seed)
    times: list[NDArray[np.float64]] = [np.empty(0)] * num_sequences
    event_types: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * num_sequences
    missing = np.arange(num_sequences)
    for _ in range(_ROUNDS):
        sampled = sample(rng, len(missing))
        order = np.lexsort((sampled.times, sampled.owner))
        bounds = np.cumsum(np.bincount(sampled.owner, minlength=len(missing)))[:-1]
        # Rounding must not carry a time over the bounds.
        own_times = np.split(np.clip(sampled.times[order], begin, end), bounds)
        own_types = np.split(sampled.event_types[order].astype(np.int32), bounds)
        for index, new_times, new_types in zip(missing, own_times, own_types, strict=True):
            times[index], event_types[index] = new_times, new_types
        missing = np.array([i for i in missing if not times[i].size], np.int64)
        if not missing.size:
            break
    else:
        raise ValueError(
            f"{name}: expected events in each sequence, but {len(missing)} of {num_sequences} had "
            f"none in {_ROUNDS:,} samples from {begin:g} to {end:g}; choose a later end."
        )
    return EventSequences(
        name,
        tuple(times),
        tuple(event_types),
        SINGLE_EVENT_TYPE if num_event_types == 1 else tuple(map(str, range(num_event_types))),
        begin=np.full(num_sequences, float(begin)),
        end=np.full(num_sequences, float(end)),
    )


def check_window(begin: float, end: float) -> None:
    """Raises an error unless the observation ends after its start, at a finite time."""
    if not (np.isfinite(begin) and np.isfinite(end) and begin < end):
        raise OptionError(f"end must be a time after begin, got {begin} to {end}.", "end", "begin")


def check_expected(expected: float) -> None:
    """Raises an error if more than ``MAX_EVENTS`` are expected."""
    if not expected <= MAX_EVENTS:
        raise OptionError(
            f"at most {MAX_EVENTS:,} events can be sampled at once, but {expected:,.0f} "
            "are expected; choose an earlier end or fewer sequences.",
            "end",
            "num_sequences",
        )
