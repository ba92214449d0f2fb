"""Calendar features are those of Python's own calendar."""

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import data

EXPECTED = {
    "minute": lambda t: t.minute / 59,
    "hour": lambda t: t.hour / 23,
    "weekday": lambda t: t.weekday() / 6,
    "day": lambda t: (t.day - 1) / 30,
    "day of year": lambda t: (t.timetuple().tm_yday - 1) / 365,
    "week": lambda t: (t.isocalendar().week - 1) / 52,
    "month": lambda t: (t.month - 1) / 11,
}
TIMES = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))


@pytest.mark.parametrize(
    ("days", "names"),
    [
        (30, ["month"]),
        (7, ["day", "week"]),
        (1, ["weekday", "day", "day of year"]),
        (1 / 24, ["hour", "weekday", "day", "day of year"]),
        (1 / 96, ["minute", "hour", "weekday", "day", "day of year"]),
    ],
)
@given(times=st.lists(TIMES, min_size=1, max_size=5))
def test_each_step_has_its_features(
    days: float, names: list[str], times: list[datetime.datetime]
) -> None:
    """Years before 1970, leap years and the weeks at a year's ends among them."""
    step = np.timedelta64(round(days * 86400), "s")
    got, found = data.calendar_features(np.array(times, "M8[s]"), step)
    assert found == names
    want = [[EXPECTED[name](time) - 0.5 for name in names] for time in times]
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert got.dtype == np.float32
