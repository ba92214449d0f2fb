"""Training, validation and test parts of sequences of events."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.checks import OptionError
from flax_linattn.data.events import split_events
from flax_linattn.data.generators.processes import HawkesProcess
from tests.data.generators.processes.events import sequences


def many(number, length=3):
    return sequences([np.arange(length) + 10.0 * i for i in range(number)])


def firsts(part):
    return [times[0] for times in part.times]


def test_whole_sequences_in_their_order():
    train, validation, test = split_events(many(10), "0.6/0.2/0.2")
    assert firsts(train) == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    assert firsts(validation) == [60.0, 70.0]
    assert firsts(test) == [80.0, 90.0]


def test_numbers_of_sequences():
    parts = split_events(many(6), "3/1/2")
    assert [firsts(part) for part in parts] == [[0.0, 10.0, 20.0], [30.0], [40.0, 50.0]]


def test_few_sequences_are_cut_by_time():
    events = sequences([np.arange(12.0), np.arange(6.0) * 2], end=[15.0, 12.0], given=[2, 1])
    train, validation, test = split_events(events, "0.6/0.2/0.2")
    assert [own.tolist() for own in train.gaps()] == [[1.0] * 6, [2.0] * 3]
    assert [len(times) for times in validation.times] == [10, 5]
    assert validation.num_given.tolist() == [8, 4]
    assert test.num_given.tolist() == [10, 5]
    assert [times.tolist() for times in test.times] == [own.tolist() for own in events.times]
    # A part ends with its last event, and the last one as the whole.
    assert [part.ends.tolist() for part in (train, validation, test)] == [
        [7.0, 6.0],
        [9.0, 8.0],
        [15.0, 12.0],
    ]


def test_by_time_where_it_is_said():
    parts = split_events(many(4, length=11), "6/2/1", by="time")
    assert [len(part) for part in parts] == [4, 4, 4]
    assert [part.num_forecast for part in parts] == [24, 8, 4]
    assert parts.test.times[0].tolist() == list(range(10))  # what comes after is left out


def test_sequences_too_short_for_a_part_are_in_the_others():
    events = sequences([np.arange(11.0), [0.0, 5.0]])
    train, validation, test = split_events(events, "0.6/0.2/0.2")
    assert (len(train), len(validation), len(test)) == (1, 2, 1)
    assert validation.gaps()[1].tolist() == [5.0]


@given(st.integers(10, 60), st.integers(0, 5))
def test_parts_have_the_likelihood_of_the_whole(n, seed):
    rng = np.random.default_rng(seed)
    events = sequences([np.cumsum(rng.exponential(size=n))], begin=[0.0])
    process = HawkesProcess([0.5], [[0.4]], 1.0)
    whole = process.log_likelihood(events).total.sum()
    parts = [process.log_likelihood(part).total.sum() for part in split_events(events)]
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-12)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("0.6/0.4", "test: 10 sequences: expected three sizes such as 0.7/0.1/0.2"),
        ("0.6/0.2/0.3", "test: 10 sequences: expected fractions that add up to 1"),
        ("7/2/2", "test: 10 sequences: the series has 10 rows, but 7/2/2 needs 11; choose another"),
        ("0.9/0.1/0", "0.9/0.1/0 by sequences leaves none for test; choose a larger fraction for"),
        ("8/0/2", "8/0/2 by sequences leaves none for validation; choose a larger frac"),
    ],
)
def test_splits_that_do_not_fit(split, message):
    with pytest.raises(OptionError, match=re.escape(message)) as error:
        split_events(many(10), split)
    assert error.value.options[0] == "split"


def test_few_sequences_are_cut_by_time_unless_they_are_counted():
    """A fifth of four sequences is none."""
    assert [len(part) for part in split_events(sequences([np.arange(11.0)] * 4))] == [4, 4, 4]
    assert [len(part) for part in split_events(many(3), "1/1/1")] == [1, 1, 1]
    assert [len(part) for part in split_events(many(5))] == [3, 1, 1]


def test_what_cannot_be_split():
    with pytest.raises(OptionError, match=r"by time leaves none for train; choose a larger frac"):
        split_events(sequences([[1.0, 2.0]]))
    with pytest.raises(OptionError, match=r"5 events to forecast of sequence 0: the series has 5"):
        split_events(sequences([np.arange(6.0)]), "4/1/1")
    # Sequences without an event to forecast are no test.
    events = sequences([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0]])
    with pytest.raises(OptionError, match="by sequences leaves none for test"):
        split_events(events, "2/1/1")
    with pytest.raises(OptionError, match=r"by must be one of sequences, time, got 'tim'; did you"):
        split_events(events, by="tim")
