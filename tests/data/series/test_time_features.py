"""Calendar features are those of Python's own calendar."""

import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import data

PARTS = {
    "minute": (60, lambda t: t.minute),
    "hour": (24, lambda t: t.hour),
    "weekday": (7, lambda t: t.weekday()),
    "day": (31, lambda t: t.day - 1),
    "day of year": (366, lambda t: t.timetuple().tm_yday - 1),
    "week": (53, lambda t: t.isocalendar().week - 1),
    "month": (12, lambda t: t.month - 1),
}
TIMES = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))


@pytest.mark.parametrize(
    ("freq", "names"),
    [
        ("ME", ["month"]),
        ("W-WED", ["day", "week"]),
        ("B", ["weekday", "day", "day of year"]),
        ("h", ["hour", "weekday", "day", "day of year"]),
        ("15min", ["minute", "hour", "weekday", "day", "day of year"]),
    ],
)
@given(times=st.lists(TIMES, min_size=1, max_size=5))
def test_each_step_has_its_features(
    freq: str, names: list[str], times: list[datetime.datetime]
) -> None:
    """Years before 1970, leap years and the weeks at a year's ends among them."""
    got, found = data.calendar_features(pd.DatetimeIndex(times), freq)
    assert found == names
    want = [[PARTS[n][1](time) / (PARTS[n][0] - 1) - 0.5 for n in names] for time in times]
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert got.dtype == np.float32


@given(times=st.lists(TIMES, min_size=1, max_size=5))
def test_circles_are_those_of_the_calendar(times: list[datetime.datetime]) -> None:
    """As points of the complex plane; each alone, and all in the order asked for."""
    names = [*reversed(PARTS)]
    found = data.calendar_circles(pd.DatetimeIndex(times), names)
    turns = np.array([[PARTS[name][1](time) / PARTS[name][0] for name in names] for time in times])
    want = np.exp(2j * np.pi * turns)
    assert found.dtype == np.float32 and found.shape == (len(times), 2 * len(names))
    np.testing.assert_allclose(found[:, 1::2] + 1j * found[:, ::2], want, atol=1e-6)
    for place, name in enumerate(names):
        one = data.calendar_circles(pd.DatetimeIndex(times), [name])
        np.testing.assert_array_equal(one, found[:, 2 * place : 2 * place + 2])


def test_an_unknown_part_is_named():
    times = pd.DatetimeIndex(["2016-07-01"])
    with pytest.raises(ValueError, match=r"must be one of minute, hour, .*did you mean 'weekday'"):
        data.calendar_circles(times, ["weekdy"])
    assert data.calendar_circles(times, []).shape == (1, 0)
