"""Frequencies of indices: inferred with gaps, continued as pandas' own ranges, written and read."""

import datetime
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import data
from flax_linattn.checks import OptionError
from flax_linattn.data.tables.time_index import (
    continue_index,
    follows,
    infer_frequency,
    parse_frequency,
    same_step,
    season_length,
    shortest_step,
    zone_name,
)


def same(found: pd.Index, other: pd.Index) -> None:
    """Values, time zone and kind; not whether pandas knows a frequency."""
    assert type(found) is type(other) or {type(found), type(other)} == {pd.Index, pd.RangeIndex}
    assert found.equals(other), (found, other)
    assert getattr(found, "tz", None) == getattr(other, "tz", None)


def month_days(day: int, first: str, periods: int, months: int = 1) -> pd.DatetimeIndex:
    """A day of each month, or the last one of a shorter month, by the standard library."""
    begins = pd.date_range(first, periods=periods, freq=f"{months}MS")
    return pd.DatetimeIndex([t.replace(day=min(day, t.days_in_month)) for t in begins])


BERLIN = {"freq": "D", "tz": "Europe/Berlin"}
TRADING = pd.offsets.CustomBusinessHour(start="10:00", end="16:00", holidays=["2024-01-01"])
RANGES = {
    "days across the change to summer time": pd.date_range("2023-11-20", "2024-04-10", **BERLIN),
    "days across the change to winter time": pd.date_range("2024-08-01", "2024-11-20", **BERLIN),
    "hours of a zone": pd.date_range("2024-10-26", periods=60, freq="h", tz="Europe/Berlin"),
    "the 29th": month_days(29, "2022-01-01", 30),
    "the 30th": month_days(30, "2010-01-01", 150),
    "the 31st": month_days(31, "2022-01-01", 30),
    "the 15th of quarters": month_days(15, "2022-02-01", 12, 3),
    "the 30th of half years": month_days(30, "2020-02-01", 12, 6),
    "business days": pd.date_range("2023-01-02", periods=200, freq="B"),
    "two business days": pd.date_range("2023-01-02", periods=20, freq="2B"),
    "integers": pd.RangeIndex(860, 1000),
    "even integers": pd.RangeIndex(0, 40, 2),
    "years as integers": pd.Index(range(1949, 1969), name="Year"),
    **{f"weeks of {day}": pd.date_range("2024-01-01", periods=20, freq=f"W-{day}")
       for day in ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")},
    **{freq: pd.date_range("2019-01-01 06:00", periods=20, freq=freq)
       for freq in ("MS", "ME", "BMS", "BME", "2MS", "QS-JAN", "QS-FEB", "QE-DEC", "QE-NOV",
                    "BQE-DEC", "YS-JAN", "YE-DEC", "YE-JUN", "BYE-DEC", "WOM-3FRI", "4W-SUN")},
    "business hours": pd.date_range("2024-01-02 09:00", periods=40, freq="bh"),
    "business hours of an exchange": pd.date_range("2023-12-28 10:00", periods=40, freq=TRADING),
    "milliseconds": pd.date_range("2024-01-01", periods=30, freq="250ms"),
    "fifty hertz": pd.date_range("2024-01-01 00:00:59.94", periods=30, freq="20ms"),
    "microseconds": pd.date_range("2024-01-01", periods=30, freq="125us"),
    "periods of months": pd.period_range("2024-01", periods=20, freq="M"),
    "periods of quarters": pd.period_range("1960Q1", periods=20, freq="Q"),
    "periods of years": pd.period_range("1960", periods=20, freq="Y"),
    "periods of weeks": pd.period_range("2024-01-01", periods=20, freq="W-THU"),
    "periods of hours": pd.period_range("2024-01-01", periods=20, freq="h"),
}  # fmt: skip

GIVEN = ("two business days", "business hours of an exchange")
"""What pandas writes in an index, and nobody infers from its rows."""


@pytest.mark.parametrize("name", RANGES)
def test_an_index_is_continued_as_pandas_made_it(name):
    """In any of its kinds, and where all that is known of its frequency is the inferred text."""
    whole = RANGES[name].rename("when")
    series = data.TimeSeries("x", np.zeros((len(whole) - 3, 1)), ("a",), whole[:-3])
    found = continue_index(series.index, series.freq, 3)
    same(found, whole[-3:])
    assert found.name == "when" and series.num_gaps == 0
    if isinstance(whole, pd.DatetimeIndex) and name not in GIVEN:
        bare = pd.DatetimeIndex(whole[:-3], freq=None)
        freq = infer_frequency(bare)
        assert freq is not None and parse_frequency(freq) == freq
        same(continue_index(bare, freq, 3), whole[-3:])
        assert follows(whole, freq).all()


FREQUENCIES = st.one_of(
    st.builds(
        "{}{}".format,
        st.sampled_from(["", 2, 3, 4, 5, 6, 10, 12, 15, 20, 30]),
        st.sampled_from(["ms", "s", "min"]),
    ),
    st.sampled_from(["h", "2h", "3h", "6h", "12h", "D", "2D", "3D", "B", "MS", "ME", "BMS", "BME"]),
    st.sampled_from(["W-MON", "W-WED", "W-SUN", "2W-FRI", "QS-JAN", "QE-DEC", "YS-JAN", "YE-DEC"]),
    st.sampled_from(["2MS", "QS-FEB", "BQE-DEC", "YE-JUN", "M@15", "M@30", "3M@29"]),
)
ZONES = st.sampled_from([None, "UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])


def time_range(freq, zone, periods):
    if "M@" in freq:
        months, day = freq.split("M@")
        days = month_days(int(day), "2018-03-01", periods, int(months or 1))
        return days.tz_localize(zone)
    return pd.date_range("2018-03-05 06:00", periods=periods, freq=freq, tz=zone)


@given(FREQUENCIES, ZONES, st.data())
def test_a_frequency_is_found_where_a_third_of_the_rows_is_missing(freq, zone, draw):
    whole = time_range(freq, zone, 60)
    count = draw.draw(st.integers(0, 15))
    missing = draw.draw(st.sets(st.integers(1, 43), min_size=count, max_size=count))
    index = pd.DatetimeIndex(whole[:45].delete(sorted(missing)), freq=None)
    text = infer_frequency(index)
    assert text is not None
    same(continue_index(index, text, 15), whole[45:])
    gaps = data.TimeSeries("x", np.zeros((len(index), 1)), ("a",), index).gaps
    before = whole.get_indexer(index)
    assert gaps.tolist() == (1 + np.flatnonzero(np.diff(before) > 1)).tolist()


@given(FREQUENCIES, st.integers(0, 5))
def test_rows_that_repeat_change_no_frequency(freq, row):
    whole = time_range(freq, None, 30)
    index = pd.DatetimeIndex(whole.insert(row, whole[row]), freq=None)
    series = data.TimeSeries("x", np.zeros((31, 1)), ("a",), index)
    assert series.repeated.tolist() == [row + 1] and series.num_gaps == 0
    assert series.freq == infer_frequency(pd.DatetimeIndex(whole, freq=None))


@pytest.mark.parametrize(
    ("times", "after"),
    [
        (["2024-02-28", "2024-02-29"], ["2024-03-01", "2024-03-02"]),
        (["2023-12-01", "2024-01-01"], ["2024-02-01", "2024-03-01"]),
        (["2023-09-30", "2023-12-31"], ["2024-03-31", "2024-06-30"]),
        (["2023-01-01", "2024-01-01"], ["2025-01-01", "2026-01-01"]),
        (["2023-01-15", "2023-02-15"], ["2023-03-15", "2023-04-15"]),
        (["2023-07-31", "2023-08-31"], ["2023-09-30", "2023-10-31"]),
        # Every 30 days is not every month.
        (["2023-01-01", "2023-01-31"], ["2023-03-02", "2023-04-01"]),
        # Days of one week may be any; those around a weekend are business days.
        (["2024-01-01", "2024-01-02", "2024-01-05"], ["2024-01-06", "2024-01-07"]),
        (["2024-01-04", "2024-01-05", "2024-01-08"], ["2024-01-09", "2024-01-10"]),
    ],
)
def test_a_few_rows_are_continued(times, after):
    index = pd.DatetimeIndex(times)
    assert continue_index(index, infer_frequency(index), 2).astype(str).tolist() == after


def test_a_frequency_of_before_decides_where_rows_do_not():
    week = pd.date_range("2024-01-01", periods=5, freq="D")
    assert infer_frequency(pd.DatetimeIndex(week, freq=None), usual="B") == "B"
    assert infer_frequency(week[:1], usual="MS") == "MS"
    month = pd.DatetimeIndex(pd.date_range("2024-01-01", periods=31), freq=None)
    assert infer_frequency(month, usual="B") == "D"
    assert infer_frequency(pd.DatetimeIndex(["2024-01-01"])) is None
    assert infer_frequency(week[:1]) == "D"  # of its own freq
    assert infer_frequency(pd.RangeIndex(5)) is None


def test_a_row_off_the_grid_is_followed_by_the_grid():
    saturday = pd.DatetimeIndex(["2024-01-06"])
    assert continue_index(saturday, "B", 2).astype(str).tolist() == ["2024-01-08", "2024-01-09"]
    assert continue_index(saturday, "ME", 1).astype(str).tolist() == ["2024-01-31"]
    assert continue_index(saturday, "M@30", 1).astype(str).tolist() == ["2024-02-29"]


def test_a_step_is_one_from_either_of_its_rows():
    days = pd.date_range("2024-01-30", periods=4)
    assert not follows(days, "MS").any() and not follows(days, "M@30").any()
    assert follows(days, "B").tolist() == [True, True, True]
    saturday = pd.DatetimeIndex(["2024-01-05", "2024-01-06", "2024-01-08"])
    assert not follows(saturday, "B").any()


def test_months_on_any_of_their_days_are_no_gaps():
    """Such as the last trading day, which was the 28th of March for Good Friday."""
    days = [(1, 31), (2, 29), (3, 28), (4, 30), (5, 31), (6, 28), (8, 30), (9, 15)]
    index = pd.DatetimeIndex([datetime.datetime(2024, *day) for day in days])
    series = data.TimeSeries("x", np.zeros((len(index), 1)), ("a",), index)
    assert series.freq == "BME" and series.gaps.tolist() == [6, 7]


def test_clocks_that_skip_an_hour_or_show_it_twice():
    night = pd.DatetimeIndex(["2024-03-30 02:30"], tz="Europe/Berlin")
    found = [str(time) for time in continue_index(night, "D", 2)]
    assert found == ["2024-03-31 03:00:00+02:00", "2024-04-01 02:30:00+02:00"]
    night = pd.DatetimeIndex(["2024-10-26 02:30"], tz="Europe/Berlin")
    assert str(continue_index(night, "D", 1)[0]) == "2024-10-27 02:30:00+02:00"


def test_jitter_below_a_thousandth_is_no_gap():
    """Stamps since 1970 as float64 are 0.2 microseconds apart."""
    exact = 1_709_298_972.0 + np.arange(100) / 50
    index = pd.to_datetime(np.round(exact * 1e9 + np.arange(100) % 3).astype("M8[ns]"))
    assert data.TimeSeries("x", np.zeros((100, 1)), ("a",), index).num_gaps == 0
    assert data.TimeSeries("x", np.zeros((99, 1)), ("a",), index.delete(7)).gaps.tolist() == [7]


@pytest.mark.parametrize(
    "text", ["", "soon", "0h", "-1D", "M", "M@0", "M@32", "0M@3", "9" * 20 + "h"]
)
def test_what_is_no_frequency(text):
    with pytest.raises(OptionError, match="freq must be a"):
        parse_frequency(text)


def test_texts_are_read_as_they_are_written():
    for text in ("15min", "B", "W-SUN", "ME", "QE-DEC", "20ms", "M@30", "3M@15", "bh"):
        assert parse_frequency(text) == text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [parse_frequency(text) for text in ("1d", "15MIN", "w", "H")] == [
            "D",
            "15min",
            "W-SUN",
            "h",
        ]


@pytest.mark.parametrize(
    ("freq", "season", "step"),
    [
        (None, 1, None), ("20ms", 4_320_000, "20ms"), ("s", 86400, "1s"), ("min", 1440, "1min"),
        ("15min", 96, "15min"), ("h", 24, "1h"), ("6h", 4, "6h"), ("bh", 8, "1h"), ("D", 7, "1D"),
        ("2D", 4, "2D"), ("B", 5, "1D"), ("W-WED", 52, "7D"), ("2W-FRI", 26, "14D"),
        ("MS", 12, "28D"), ("BME", 12, "28D"), ("M@30", 12, "28D"), ("QS-JAN", 4, "90D"),
        ("YE-DEC", 1, "365D"),
    ],
)  # fmt: skip
def test_seasons_and_steps(freq, season, step):
    assert season_length(freq) == season
    if step is not None:
        assert shortest_step(freq) >= pd.Timedelta(step)
        assert shortest_step(freq) <= pd.Timedelta(step) * 1.1


def test_steps_that_are_the_same():
    assert same_step("MS", "M@30") and same_step("B", "D") and same_step("W-SUN", "W-FRI")
    assert not same_step("MS", "QS-JAN") and not same_step("h", "30min")
    assert not same_step("30D", "20D")


def test_names_of_zones_are_read_back():
    half = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
    for zone in (half, datetime.UTC, "Europe/Berlin", "UTC"):
        times = pd.date_range("2024-01-01", periods=2, tz=zone)
        name = zone_name(times.tz)
        assert name is not None and (times.tz_convert(name).tz_localize(None)
                                     == times.tz_localize(None)).all()  # fmt: skip
    assert zone_name(None) is None


def test_times_beyond_those_of_pandas():
    with pytest.raises(ValueError, match="expected times that pandas can hold, got 4 steps of YE"):
        continue_index(pd.DatetimeIndex(["2261-12-31"]).as_unit("ns"), "YE-DEC", 4)


@given(st.integers(1, 1000), st.lists(st.integers(1, 1000), max_size=9, unique=True), st.data())
def test_integers_continue_by_their_most_frequent_step(step, others, draw):
    steps = draw.draw(st.permutations([step, step, *others]))
    index = pd.Index(np.cumsum([-5, *steps]))
    assert continue_index(index, None, 2).tolist() == [index[-1] + step, index[-1] + 2 * step]


def test_rows_around_a_time_that_clocks_skip_follow():
    index = pd.date_range("2024-03-27 02:30", periods=4, freq="D", tz="Europe/Berlin")
    whole = index.append(continue_index(index, "D", 4))
    assert str(whole[4]) == "2024-03-31 03:00:00+02:00"
    assert follows(whole, "D").all() and infer_frequency(whole) == "D"
