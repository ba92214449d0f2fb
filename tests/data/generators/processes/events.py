"""Sequences of events for tests of processes."""

import numpy as np
from hypothesis import strategies as st

from flax_linattn.data.events import EventSequences


def sequences(times, event_types=None, num_event_types=1, **bounds):
    """Sequences of lists of times and event types."""
    times = tuple(np.asarray(own, np.float64) for own in times)
    if event_types is None:
        event_types = [[0] * len(own) for own in times]
    names = tuple(f"m{event_type}" for event_type in range(num_event_types))
    bounds = {name: np.asarray(values) for name, values in bounds.items()}
    return EventSequences(
        "test", times, tuple(np.asarray(own, np.int32) for own in event_types), names, **bounds
    )


def some_events(num_event_types=1, ties=True):
    """Three sequences with begins known and not, given events, and a rest; gaps of 0 with ties."""
    second = [3.0, 3.0, 4.5, 9.0] if ties else [3.0, 3.5, 4.5, 9.0]
    times = [[0.5, 1.25, 4.0, 4.125], second, [-2.0, -1.0, 2.0, 2.5, 7.0]]
    event_types = [[0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 1, 0, 1]]
    if num_event_types == 1:
        event_types = None
    return sequences(
        times,
        event_types,
        num_event_types,
        begin=[0.0, np.nan, -3.0],
        end=[6.0, 9.0, 8.0],
        given=[0, 1, 2],
    )


@st.composite
def any_events(draw, num_event_types=2):
    """One to three sequences of anything that there may be."""
    times, event_types, begins, ends, given = [], [], [], [], []
    gap = st.sampled_from([0.0, 0.125, 0.5, 1.0, 3.0, 20.0])
    for _ in range(draw(st.integers(1, 3))):
        gaps = draw(st.lists(gap, min_size=1, max_size=8))
        first = draw(st.sampled_from([-5.0, 0.0, 100.0]))
        own = first + np.cumsum(gaps)
        known = draw(st.booleans())
        times.append(own)
        event_types.append(draw(st.lists(st.integers(0, num_event_types - 1), min_size=len(own),
                                   max_size=len(own))))  # fmt: skip
        begins.append(first if known else np.nan)
        ends.append(own[-1] + draw(gap))
        given.append(draw(st.integers(0 if known else 1, len(own))))
    return sequences(times, event_types, num_event_types, begin=begins, end=ends, given=given)
