"""Dates as seconds."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.checks import OptionError
from flax_linattn.data.events.clock import Clock, SkippedTimeError

ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia")


@given(st.datetimes())
def test_utc_is_as_numpy_has_it(time):
    microseconds = int(np.datetime64(time, "us").astype(np.int64))
    assert Clock().seconds(time.isoformat(" ")) == microseconds / 10**6


@given(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), st.sampled_from(ZONES))
def test_there_and_back(time, zone):
    """Every instant has a time of the day that is read as it, but for the second of two."""
    there = time.replace(tzinfo=UTC).astimezone(ZoneInfo(zone))
    seconds = there.timestamp()
    assert Clock().seconds(there.isoformat()) == pytest.approx(seconds, abs=1e-6)
    if there.fold == 0:
        local = there.replace(tzinfo=None).isoformat()
        assert Clock(zone).seconds(local) == pytest.approx(seconds, abs=1e-6)


def test_an_hour_that_comes_twice_is_the_first():
    clock = Clock("America/New_York")  # goes back at 06:00 UTC
    first = datetime(2015, 11, 1, 5, 30, tzinfo=UTC).timestamp()
    assert clock.seconds("2015-11-01 01:30") == first
    assert clock.seconds("2015-11-01 01:30-05:00") == first + 3600
    assert clock.seconds("2015-11-01 02:00") == first + 5400


def test_an_hour_that_is_skipped_is_refused():
    clock = Clock("America/New_York")
    before = clock.seconds("2015-03-08 01:59:59")
    assert before is not None and clock.seconds("2015-03-08 03:00:00") == before + 1
    for text in ("2015-03-08 02:00", "2015-03-08 02:59:59.999999", "2015/3/8 2:30"):
        with pytest.raises(SkippedTimeError, match="clocks of America/New_York skip it"):
            clock.seconds(text)
    assert clock.seconds("2015-03-08 02:30+00:00") == before + 1 - 7 * 3600 + 2.5 * 3600
    with pytest.raises(SkippedTimeError):
        Clock("Pacific/Apia").seconds("2011-12-30")  # a whole day


def test_fractions_are_kept_and_zones_honoured():
    clock = Clock("Asia/Tokyo")
    assert clock.seconds("1970-01-01 09:00:00.25") == 0.25
    assert clock.seconds("1970-01-01T00:00:00.000001Z") == 1e-6
    assert clock.seconds("1970-01-01 00:00:00.1234569+00:00") == 0.123456
    assert clock.seconds("1970-01-01 00:00-00:30") == 1800
    assert clock.seconds("1970/1/1 9:00") == 0
    year = clock.seconds("2015-05-02 21:43:00.000001")
    later = clock.seconds("2015-05-02 21:43:00.000002")
    assert year is not None and later is not None and later > year
    for text in ("noon", "", "2015-13-01", "2015-05-02 21:43 UTC", "02/05/2015"):
        assert clock.seconds(text) is None


def test_the_ends_of_the_calendar():
    for zone in ZONES:
        for text in ("0001-01-01", "9999-12-31 23:59:59.999999", "0001-01-01 00:00+23:59"):
            assert Clock(zone).seconds(text) is not None
    assert Clock().seconds("0001-01-01 00:00+24:00") is None
    day = Clock().seconds("0001-01-02")
    assert day == (datetime(1, 1, 2) - datetime(1970, 1, 1)) / timedelta(seconds=1)


@pytest.mark.parametrize("zone", ["", "Zurich", "America", "../UTC", "/etc", "a\0b", None, 5, []])
def test_no_time_zone(zone):
    with pytest.raises(OptionError, match="timezone must be a name of the IANA database") as error:
        Clock(zone)
    assert error.value.options == ("timezone",)
