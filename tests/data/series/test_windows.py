"""Windows and splits."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import data
from flax_linattn.checks import OptionError

few = st.integers(1, 5)


@given(st.integers(1, 40), few, few, few, few)
def test_every_window_comes_once_an_epoch(extra, context_length, horizon, stride, batch_size):
    rows = range(3, 3 + horizon + extra)
    values = np.arange(rows.stop + 2)
    try:
        windows = data.Windows({"values": values}, rows, context_length=context_length,
                               horizon=horizon, stride=stride, batch_size=batch_size,
                               seed=0)  # fmt: skip
    except ValueError as error:
        assert "to forecast needs" in str(error)
        assert rows.stop - max(rows.start - context_length, 0) < context_length + horizon
        return
    seen = []
    for batch in windows:
        taken = batch["values"][batch["weight"] > 0]
        assert (np.diff(taken, axis=1) == 1).all()
        seen += taken[:, context_length].tolist()
    first = max(rows.start, context_length)
    assert sorted(seen) == list(range(first, rows.stop - horizon + 1, stride))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), few, few, few)
def test_windows_of_several_series_are_those_of_each(lengths, context_length, horizon, stride):
    """One behind the other: the windows of each series alone, and none that two share."""
    begins = np.cumsum([0, *lengths])[:-1].tolist()
    values = np.arange(sum(lengths))
    options = {"context_length": context_length, "horizon": horizon, "stride": stride,
               "batch_size": 3, "seed": None}  # fmt: skip
    rows = [
        range(begin + length // 2, begin + length)
        for begin, length in zip(begins, lengths, strict=True)
    ]
    expected, owners = [], []
    for owner, (begin, part) in enumerate(zip(begins, rows, strict=True)):
        alone = range(part.start - begin, part.stop - begin)
        try:
            own = data.Windows({"values": values[: part.stop - begin]}, alone, **options)
        except ValueError:
            continue
        expected += (own.starts + begin).tolist()
        owners += [owner] * own.num_examples
    if not expected:
        with pytest.raises(ValueError, match="to forecast needs"):
            data.Windows({"values": values}, rows, begins=begins, **options)
        return
    windows = data.Windows({"values": values}, rows, begins=begins, **options)
    assert windows.starts.tolist() == expected and windows.owners.tolist() == owners
    taken = windows.take(np.arange(windows.num_examples))["values"]
    ends = np.array(begins) + lengths
    assert (taken[:, 0] >= np.array(begins)[owners]).all() and (taken[:, -1] < ends[owners]).all()


def test_beginnings_and_rows_of_several_series_go_together():
    with pytest.raises(ValueError, match="expected rows of 1 series"):
        data.Windows({"values": np.arange(9)}, [range(4), range(4, 9)], context_length=1, horizon=1,
                     batch_size=1, seed=None)  # fmt: skip


def test_customary_numbers_of_windows():
    """Time-Series-Library's, at lengths 96 and 96."""
    series = data.etth1()
    split = data.chronological_split(series.num_steps, "8640/2880/2880")
    counts = [
        data.Windows({"values": series.values}, rows, context_length=96, horizon=96, batch_size=32,
                     seed=None).num_examples
        for rows in split
    ]  # fmt: skip
    assert counts == [8640 - 191, 2785, 2785]


def test_shares_are_those_of_the_library():
    split = data.chronological_split(7588)
    assert [len(rows) for rows in split] == [5311, 760, 1517]
    assert split.test.stop == 7588


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("0.7/0.3", "three sizes such as"),
        ("a/b/c", "three sizes such as"),
        ("0.7/0.2/0.2", "fractions that add up to 1"),
        ("0/0.5/0.5", "the first above 0"),
        ("60/20/30", "has 100 rows, but 60/20/30 needs 110"),
        ("60.5/20/10", "integer numbers of rows"),
    ],
)
def test_bad_splits_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        data.chronological_split(100, parts)


def test_series_fill_forward_and_name_what_is_wrong():
    nan = np.nan
    series = data.TimeSeries("toy", np.array([[nan, 1.0], [2.0, nan], [nan, nan]]), ("a", "b"))
    assert series.fill_forward().values.tolist() == [[2, 1], [2, 1], [2, 1]]
    assert series.fill_forward(np.array([7.0, 8.0])).values.tolist() == [[7, 1], [2, 1], [2, 1]]
    assert series.select(["b"]).channels == ("b",)
    with pytest.raises(OptionError, match="unknown channel 'c'; toy has a, b") as unknown:
        series.select(["c"])
    again = pickle.loads(pickle.dumps(unknown.value))  # as worker processes do
    assert (str(again), again.options) == (str(unknown.value), ("channels",))
    with pytest.raises(ValueError, match="in channel 'b', got none"):
        data.TimeSeries("toy", np.array([[1.0, nan]]), ("a", "b")).fill_forward()
    with pytest.raises(ValueError, match="one name per column"):
        data.TimeSeries("toy", np.ones((2, 2)), ("a",))
