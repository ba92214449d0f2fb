"""Times at one distance: means within intervals, and what is too irregular to be taken as it is."""

import dataclasses
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import data
from flax_linattn.checks import OptionError
from flax_linattn.data import DataFormatError, TimeSeries

SECOND = np.timedelta64(1, "s")


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9000), st.floats(allow_nan=False, allow_infinity=False) | st.just(np.nan)
        ),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([("90s", 90), ("15min", 900), ("1h", 3600), ("2D", 172800), ("1w", 604800)]),
)
def test_means_within_intervals(rows, length):
    every, seconds = length
    rows = sorted(rows, key=lambda row: row[0])
    begin = np.datetime64("2024-01-03T23:55", "s")
    times = begin + np.array([row[0] for row in rows]) * SECOND
    values = np.array([[row[1], 1.0] for row in rows])
    large = np.nanmax(np.abs(values))
    found = data.resample(
        TimeSeries("x", values, ("a", "b"), pd.DatetimeIndex(times, tz="UTC")), every
    )
    assert found.time_zone == "UTC"
    found = dataclasses.replace(found, index=found.index.tz_convert(None))
    assert (np.diff(found.times) == seconds * SECOND).all()
    assert found.times[0] <= times[0] and found.times[-1] <= times[-1]
    for time, (mean, one) in zip(found.times, found.values, strict=True):
        inside = (time <= times) & (times < time + seconds * SECOND)
        known = values[inside, 0][~np.isnan(values[inside, 0])]
        expected = float(sum(map(Fraction, known)) / len(known)) if len(known) else np.nan
        np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-15 * large)
        assert one == 1.0 if inside.any() else np.isnan(one)


def test_intervals_begin_with_days_and_mondays():
    times = np.array(["2024-01-03T07:01", "2024-01-10T09:00"], "M8[s]")
    series = TimeSeries("x", np.array([[1.0], [2.0]]), ("a",), times)
    assert str(data.resample(series, "1d").times[0]) == "2024-01-03 00:00:00"
    assert str(data.resample(series, "1w").times[0]) == "2024-01-01 00:00:00"


@pytest.mark.parametrize("every", ["1m", "0h", "-1h", "1 month", "9" * 20 + "h", ""])
def test_lengths_that_are_none(every):
    series = TimeSeries("x", np.ones((1, 1)), ("a",), np.array(["2024-01-01"], "M8[s]"))
    with pytest.raises(OptionError, match="resample must be a frequency as pandas writes it"):
        data.resample(series, every)


def test_what_cannot_be_resampled():
    with pytest.raises(
        OptionError, match="x: resample needs rows with dates and times, got none"
    ) as error:
        data.resample(TimeSeries("x", np.ones((1, 1)), ("a",)), "1h")
    assert error.value.options == ("resample", "time_column", "date_format")
    times = np.array(["1970-01-01", "2024-01-01"], "M8[s]")
    with pytest.raises(OptionError, match=r"1,704,067,201 intervals of 1s are too many"):
        data.resample(TimeSeries("x", np.ones((2, 1)), ("a",), times), "1s")


def table(tmp_path, seconds):
    times = np.datetime64("2024-01-01", "s") + np.cumsum([0, *seconds]) * SECOND
    path = tmp_path / "toy.csv"
    path.write_text("date,a\n" + "".join(f"{time},{i}\n" for i, time in enumerate(times)))
    return path


def test_mostly_irregular_rows_are_refused(tmp_path):
    path = table(tmp_path, np.random.default_rng(0).integers(1, 4000, 1199))
    with pytest.raises(DataFormatError, match=r"toy\.csv:3: .* got 1,19\d of 1,199") as error:
        data.load_series(path)
    assert error.value.options == ("resample", "times", "id_column")
    assert data.load_series(path, times="irregular").num_steps == 1200
    hourly = data.load_series(path, resample="1h")
    assert hourly.freq == "h" and hourly.num_gaps == 0


@pytest.mark.parametrize("seconds", [[3600, 3600, 0, 0], [86400] * 7 + [3 * 86400], [60, 3600]])
def test_a_few_that_do_not_follow_are_told(tmp_path, seconds):
    series = data.load_series(table(tmp_path, seconds))
    assert series.num_steps == len(seconds) + 1
    assert len(series.gaps) + len(series.repeated) > 0


def test_times_that_series_share_are_refused_without_their_id(tmp_path):
    path = tmp_path / "toy.csv"
    lines = [f"2024-01-{day:02},{shop},{day}" for day in range(1, 20) for shop in "ab"]
    path.write_text("\n".join(["date,shop,sales", *lines]) + "\n")
    with pytest.raises(DataFormatError, match=r"toy\.csv:3: .* got 19 of 37 .* id_column="):
        data.load_series(path, channels=["sales"])
    assert [one.num_steps for one in data.load_long(path, id_column="shop")] == [19, 19]
    weekly = data.load_series(path, channels=["sales"], resample="1w")
    assert weekly.values.ravel().tolist() == [4.0, 11.0, 17.0]
