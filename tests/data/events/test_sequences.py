"""Sequences of events: what is given and forecast, their pieces, their places in messages."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.checks import OptionError
from flax_linattn.data.events import EventSequences, Piece
from tests.data.generators.processes.events import any_events, sequences

TYPES = "event types"


def test_what_is_given_where_nothing_is_said():
    events = sequences([[1.0, 3.0], [5.0, 9.0, 9.5], [2.0]], begin=[0.0, np.nan, np.nan])
    assert events.num_given.tolist() == [0, 1, 1]
    assert (events.num_events, events.num_forecast) == (6, 4)
    assert [own.tolist() for own in events.gaps()] == [[1.0, 2.0], [4.0, 0.5], []]
    unknown = dataclasses.replace(events, begin=None)
    assert unknown.num_given.tolist() == [1, 1, 1]
    assert np.isnan(unknown.begins).all()
    assert unknown.ends.tolist() == [3.0, 9.5, 2.0]


def test_gaps_are_those_of_forecast_events():
    events = sequences([[1.0, 3.0, 7.0]] * 4, begin=[0.0, 0.0, np.nan, 0.0], given=[0, 1, 2, 3])
    assert [own.tolist() for own in events.gaps()] == [[1.0, 2.0, 4.0], [2.0, 4.0], [4.0], []]
    assert events.num_forecast == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times": ()}, "expected sequences of the same length, got 0 of times, 2 of event_types"),
        (
            {"times": (), "event_types": ()},
            "test: expected at least one sequence of events, got none",
        ),
        (
            {"event_type_names": ("a", "a")},
            "test: expected distinct names of event types, got a, a",
        ),
        ({"times": ([0.0, 1.0], [])}, f"sequence 1: expected times and {TYPES} of the same shape"),
        ({"times": ([0.0], [2.0])}, "sequence 0: expected times and event types of the same shape"),
        (
            {"times": ([0.0, np.nan], [2.0])},
            "test: sequence 0, event 1, from 0: expected a finite time, got nan.",
        ),
        (
            {"times": ([1.5, 1.0], [2.0])},
            "sequence 0, event 1, from 0: expected times that never decrease, got 1 after 1.5",
        ),
        (
            {"times": ([1.7e9 + 0.25, 1.7e9], [2.0]), "lines": ([3, 2], [4])},
            "line 2: expected times that never decrease, got 1700000000 after 1700000000.25; sort",
        ),
        ({"event_types": ([0, 2], [0])}, f"sequence 0: expected {TYPES} from 0 to 1, got 0 to 2"),
        ({"event_types": ([0, -1], [0])}, f"sequence 0: expected {TYPES} from 0 to 1, got -1 to 0"),
        (
            {"event_types": ([0.0, 1], [0])},
            f"sequence 0: expected {TYPES} as integers, indices",
        ),
        ({"begin": [0.0]}, "test: expected begin for each of 2 sequences, got shape (1,)"),
        ({"end": [0.0] * 3}, "test: expected end for each of 2 sequences, got shape (3,)"),
        ({"given": [[0, 0]]}, "test: expected given for each of 2 sequences, got shape (1, 2)"),
        (
            {"begin": [0.0, 2.5]},
            "expected a finite begin at or before its first event at 2, or NaN, got 2.5.",
        ),
        ({"begin": [-np.inf, 0.0]}, "sequence 0: expected a finite begin at or before its first"),
        (
            {"end": [0.5, 2.0]},
            "sequence 0: expected a finite end at or after its last event at 1, got 0.5",
        ),
        ({"end": [1.0, np.inf]}, "sequence 1: expected a finite end at or after its last event"),
        ({"end": [np.nan, 2.0]}, "sequence 0: expected a finite end at or after its last event"),
        ({"given": [1.0, 1.0]}, "test: expected given as integers, got float64"),
        (
            {"given": [1, 0]},
            "sequence 1: expected from 1 to 1 given events, as its begin is not known, got 0",
        ),
        (
            {"given": [3, 0], "begin": [0.0, 0.0]},
            "sequence 0: expected from 0 to 2 given events, got 3",
        ),
        ({"lines": ([1, 2],)}, "expected sequences of the same length, got 2 of times, 1 of lines"),
        (
            {"lines": ([1], [2])},
            "sequence 0: expected one line for each of 2 events, got shape (1,)",
        ),
    ],
)
def test_what_does_not_fit(change, message):
    """The others are two sequences without begin, of types a and b."""
    fields = {"times": ([0.0, 1.0], [2.0]), "event_types": ([0, 1], [0])}
    fields |= {"event_type_names": ("a", "b")}
    fields |= change
    for name in ("times", "event_types", "lines"):
        if name in fields:
            fields[name] = tuple(np.array(own) for own in fields[name])
    for name in ("begin", "end", "given"):
        if name in fields:
            fields[name] = np.array(fields[name])
    with pytest.raises(ValueError, match=re.escape(message)):
        EventSequences("test", **fields)


def with_lines(events):
    """With a line for each event, from 2 on."""
    bounds = np.cumsum([len(own) for own in events.times])[:-1]
    lines = tuple(np.split(np.arange(2, 2 + events.num_events), bounds))
    return dataclasses.replace(events, lines=lines)


def test_places():
    events = sequences([[1.0, 3.0], [5.0]])
    assert events.place(1, 0) == "sequence 1, event 0, from 0"
    assert with_lines(events).place(1, 0) == "line 4"
    assert with_lines(events).select([1]).place(0, 0) == "line 4"


def test_event_types_of_another_list():
    events = with_lines(sequences([[1.0, 3.0], [5.0]], [[0, 2], [2]], 4))
    other = events.with_event_types(["m2", "x", "m0"])  # m1 and m3 do not occur
    assert other.event_type_names == ("m2", "x", "m0")
    assert [own.tolist() for own in other.event_types] == [[2, 0], [0]]
    assert other.event_types[0].dtype == np.int32
    new, old = other.event_type_names, events.event_type_names
    for own, same in zip(other.event_types, events.event_types, strict=True):
        assert [new[i] for i in own] == [old[i] for i in same]
    with pytest.raises(
        ValueError, match=r"test: line 3: expected one of the event types m0, m1, got 'm2'\."
    ):
        events.with_event_types(["m0", "m1"])


def test_selected_sequences():
    events = with_lines(
        sequences(
            [[1.0, 3.0], [5.0], [6.0, 7.0]],
            [[0, 1], [1], [1, 0]],
            2,
            begin=[0.0, 4.0, np.nan],
            end=[4.0, 5.0, 8.0],
            given=[1, 0, 2],
        )
    )
    some = events.select([2, 0])
    assert [own.tolist() for own in some.times] == [[6.0, 7.0], [1.0, 3.0]]
    assert [own.tolist() for own in some.event_types] == [[1, 0], [0, 1]]
    assert [own.tolist() for own in some.lines] == [[5, 6], [2, 3]]
    assert some.ends.tolist() == [8.0, 4.0]
    assert some.num_given.tolist() == [2, 1]
    np.testing.assert_array_equal(some.begins, [np.nan, 0.0])


@given(any_events(), st.integers(1, 9), st.integers(0, 9), st.booleans())
def test_pieces_forecast_what_the_whole_does(events, length, history, ends):
    events = with_lines(events)
    if not ends:
        events = dataclasses.replace(events, end=None)
    pieces = events.cut(length, history)
    for values in ("event_types", "lines", "times"):
        forecast = [
            np.concatenate(
                [own[skip:] for own, skip in zip(getattr(e, values), e.num_given, strict=True)]
            )
            for e in (events, pieces)
        ]
        assert forecast[0].tolist() == forecast[1].tolist()
    assert np.concatenate(events.gaps()).tolist() == np.concatenate(pieces.gaps()).tolist()
    assert max(len(gaps) for gaps in pieces.gaps()) <= length
    assert pieces.num_given.max() <= max(history, 1)
    # The time that is observed, behind the given events, is the same, too.
    rest = [e.ends - [own[-1] for own in e.times] for e in (events, pieces)]
    assert rest[0].sum() == rest[1].sum()


@given(any_events(), st.integers(1, 9))
def test_pieces_of_all_history_are_beginnings_of_the_whole(events, length):
    pieces = events.cut(length, history=100)
    sequence = 0
    for index, times in enumerate(pieces.times):
        whole = events.times[sequence]
        assert times.tolist() == whole[: len(times)].tolist()
        np.testing.assert_equal(pieces.begins[index], events.begins[sequence])
        if len(times) == len(whole):
            assert pieces.ends[index] == events.ends[sequence]
            sequence += 1
        else:
            assert pieces.ends[index] == times[-1]
    assert sequence == len(events)


def test_pieces_by_hand():
    events = sequences(
        [[1.0, 2.0, 4.0, 8.0, 9.0], [3.0]], begin=[np.nan, 0.0], end=[10.0, 5.0], given=[2, 1]
    )
    pieces = events.cut(2, history=1)
    assert [own.tolist() for own in pieces.times] == [[2.0, 4.0, 8.0], [8.0, 9.0], [3.0]]
    assert pieces.begins.tolist() == [1.0, 4.0, 0.0]
    assert pieces.ends.tolist() == [8.0, 10.0, 5.0]
    assert pieces.num_given.tolist() == [1, 1, 1]
    # Without history, the first piece has still a given event, where the whole has.
    assert [own.tolist() for own in events.cut(2).times] == [[2.0, 4.0, 8.0], [9.0], [3.0]]
    chosen = events.pieces([Piece(0, 1, 3, 4)])
    assert chosen.times[0].tolist() == [2.0, 4.0, 8.0]
    assert chosen.gaps()[0].tolist() == [4.0]


def test_pieces_that_cannot_be():
    events = sequences([[1.0, 2.0]])
    with pytest.raises(OptionError, match="length must be at least 1, got 0"):
        events.cut(0)
    with pytest.raises(OptionError, match="history must be at least 0, got -1"):
        events.cut(1, history=-1)
