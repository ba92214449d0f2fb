"""From drawn events to sequences of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import LARGEST_SEED, OptionError, at_least
from flax_linattn.data.events import UNMARKED, EventSequences

MOST_EVENTS = 20_000_000
"""That are drawn at once."""

_ROUNDS = 1000  # in which a sequence may be drawn again


class Drawn(NamedTuple):
    """Events in any order: the sequence of each, its time and its mark, all [n]."""

    owner: NDArray[np.int64]
    times: NDArray[np.float64]
    marks: NDArray[np.int64]


def draw_sequences(
    name: str,
    sample: Callable[[np.random.Generator, int], Drawn],
    num_marks: int,
    num_sequences: int,
    begin: float,
    end: float,
    seed: int,
) -> EventSequences:
    """Draws sequences, those without events again.

    Args:
        name: Of the data set.
        sample: Draws so many sequences.
        num_marks: M.
        num_sequences: N.
        begin: Of all observations.
        end: Of all observations.
        seed: Of NumPy's generator.

    Raises:
        ValueError: As ``Process.draw``.
    """
    check_window(begin, end)
    at_least(1, num_sequences=num_sequences)
    at_least(0, LARGEST_SEED, seed=seed)
    rng = np.random.default_rng(seed)
    times: list[NDArray[np.float64]] = [np.empty(0)] * num_sequences
    marks: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * num_sequences
    missing = np.arange(num_sequences)
    for _ in range(_ROUNDS):
        drawn = sample(rng, len(missing))
        order = np.lexsort((drawn.times, drawn.owner))
        bounds = np.cumsum(np.bincount(drawn.owner, minlength=len(missing)))[:-1]
        # Rounding must not carry a time over the bounds.
        own_times = np.split(np.clip(drawn.times[order], begin, end), bounds)
        own_marks = np.split(drawn.marks[order].astype(np.int32), bounds)
        for index, new_times, new_marks in zip(missing, own_times, own_marks, strict=True):
            times[index], marks[index] = new_times, new_marks
        missing = np.array([i for i in missing if not times[i].size], np.int64)
        if not missing.size:
            break
    else:
        raise ValueError(
            f"{name}: expected events in each sequence, but {len(missing)} of {num_sequences} had "
            f"none in {_ROUNDS:,} draws from {begin:g} to {end:g}; choose a later end."
        )
    return EventSequences(
        name,
        tuple(times),
        tuple(marks),
        UNMARKED if num_marks == 1 else tuple(str(mark) for mark in range(num_marks)),
        begin=np.full(num_sequences, float(begin)),
        end=np.full(num_sequences, float(end)),
    )


def check_window(begin: float, end: float) -> None:
    """Refuses an observation that does not end after its begin.

    Raises:
        OptionError: It does not, or lasts for ever.
    """
    if not (np.isfinite(begin) and np.isfinite(end) and begin < end):
        raise OptionError(f"end must be a time after begin, got {begin} to {end}.", "end", "begin")


def check_expected(expected: float) -> None:
    """Refuses to draw too many events.

    Raises:
        OptionError: More than ``MOST_EVENTS`` are to be expected.
    """
    if not expected <= MOST_EVENTS:
        raise OptionError(
            f"at most {MOST_EVENTS:,} events are drawn at once, but {expected:,.0f} are to be "
            "expected; choose an earlier end or fewer sequences.",
            "end",
            "num_sequences",
        )
