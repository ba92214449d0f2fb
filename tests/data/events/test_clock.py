"""Dates as seconds."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data.events.clock import SkippedTimeError, format_date, parse_date
from flax_linattn.data.tables.times import parse_zone

ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia")


def seconds_of(text, zone="UTC"):
    return parse_date(text, parse_zone(zone))


@given(st.datetimes())
def test_utc_is_as_numpy_has_it(time):
    microseconds = int(np.datetime64(time, "us").astype(np.int64))
    assert seconds_of(time.isoformat(" ")) == microseconds / 10**6


@given(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), st.sampled_from(ZONES))
def test_there_and_back(time, zone):
    """Every instant has a time of the day that is read as it, but for the second of two."""
    there = time.replace(tzinfo=UTC).astimezone(ZoneInfo(zone))
    seconds = there.timestamp()
    assert seconds_of(there.isoformat()) == pytest.approx(seconds, abs=1e-6)
    assert format_date(seconds_of(there.isoformat())) == str(time.replace(tzinfo=UTC))
    if there.fold == 0:
        local = there.replace(tzinfo=None).isoformat()
        assert seconds_of(local, zone) == pytest.approx(seconds, abs=1e-6)


def test_an_hour_that_comes_twice_is_the_first():
    zone = "America/New_York"  # goes back at 06:00 UTC
    first = datetime(2015, 11, 1, 5, 30, tzinfo=UTC).timestamp()
    assert seconds_of("2015-11-01 01:30", zone) == first
    assert seconds_of("2015-11-01 01:30-05:00", zone) == first + 3600
    assert seconds_of("2015-11-01 02:00", zone) == first + 5400


def test_an_hour_that_is_skipped_is_refused():
    zone = "America/New_York"
    before = seconds_of("2015-03-08 01:59:59", zone)
    assert seconds_of("2015-03-08 03:00:00", zone) == before + 1
    for text in ("2015-03-08 02:00", "2015-03-08 02:59:59.999999", "2015/3/8 2:30"):
        with pytest.raises(SkippedTimeError, match="clocks of America/New_York skip it"):
            seconds_of(text, zone)
    assert seconds_of("2015-03-08 02:30+00:00", zone) == before + 1 - 7 * 3600 + 2.5 * 3600
    with pytest.raises(SkippedTimeError):
        seconds_of("2011-12-30", "Pacific/Apia")  # a whole day


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01 09:00:00.25", 0.25),
        ("1970-01-01T00:00:00.000001Z", 1e-6),
        ("1970-01-01 00:00-00:30", 1800),
        ("1970/1/1 9:00", 0),
        # Digits after the microsecond count, as far as float64 has any.
        ("1970-01-01 00:00:00.1234569+00:00", 0.1234569),
        ("1969-12-31 23:59:59.999999999Z", -1e-9),
        ("2016-07-01 00:00:00.0000009Z", 1467331200.0000009),
        ("1970/1/1 9:00:00.0000019", 1.9e-6),
        *((text, None) for text in ("noon", "", "2015-13-01", "2015-05-02 21:43 UTC")),
        ("02/05/2015", None),
        ("0001-01-01 00:00+24:00", None),
    ],
)
def test_fractions_are_kept_and_zones_honored(text, seconds):
    found = seconds_of(text, "Asia/Tokyo")
    assert found == (None if seconds is None else pytest.approx(seconds, rel=1e-15, abs=1e-17))


def test_the_ends_of_the_calendar():
    for zone in ZONES:
        for text in ("0001-01-01", "9999-12-31 23:59:59.999999", "0001-01-01 00:00+23:59"):
            assert seconds_of(text, zone) is not None
    day = (datetime(1, 1, 2) - datetime(1970, 1, 1)) / timedelta(seconds=1)
    assert seconds_of("0001-01-02") == day
