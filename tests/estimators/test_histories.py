"""Histories: kinds of index, time zones, and what a kept file says of them."""

import datetime

import numpy as np
import pytest

from flax_linattn import data
from flax_linattn.data.time_index import continue_index
from flax_linattn.estimators.histories import as_history, as_time, write_history

pd = pytest.importorskip("pandas")


def test_periods_come_back_as_periods():
    given = pd.Series(np.arange(5.0), pd.period_range("2024-01", periods=5, freq="M"))
    history = as_history(given)
    index = continue_index(history.series.index, history.series.freq, 2)
    ahead = history.like(np.ones((2, 1)), index, ["x0"])
    assert list(ahead.index) == list(pd.period_range("2024-06", periods=2, freq="M"))


def test_times_of_a_zone_are_kept(tmp_path):
    index = pd.date_range("2024-03-30 22:00", periods=6, freq="h", tz="Europe/Berlin")
    series = as_history(pd.DataFrame({"load": np.arange(6.0)}, index)).series
    assert str(series.times[0]) == "2024-03-30 22:00:00+01:00"
    write_history(tmp_path / "data.csv", series)
    read = data.load_series(tmp_path / "data.csv", header=True)
    assert read.time_zone is not None and (read.times == series.times).all()
    naive = as_history(pd.DataFrame({"load": np.arange(6.0)}, index.tz_localize(None)[:6]))
    assert naive.series.time_zone is None


@pytest.mark.parametrize(
    "time",
    [
        "2024-03-01T00:00:00",
        "2024/3/1 0:00",
        datetime.date(2024, 3, 1),
        np.datetime64("2024-03"),
        pd.Timestamp("2024-03-01"),
        pd.Period("2024-03", "M"),
    ],
)
def test_times_of_many_kinds(time):
    assert as_time(time) == datetime.datetime(2024, 3, 1)


def test_times_with_a_zone_are_in_utc():
    expected = datetime.datetime(2024, 2, 29, 23, tzinfo=datetime.UTC)
    assert as_time("2024-03-01 00:00:00+01:00") == expected
    assert as_time(pd.Timestamp("2024-03-01", tz="Europe/Zurich")) == expected


@pytest.mark.parametrize(
    "time", ["noon", 20240301, np.int64(20240301), pd.NaT, np.datetime64("NaT")]
)
def test_what_is_no_time(time):
    with pytest.raises(ValueError, match="expected a time such as 2016-07-01 00:00:00, got"):
        as_time(time)


def test_a_column_of_times_or_texts_is_named():
    """With what to do, which then works."""
    days = pd.date_range("2024-01-01", periods=3)
    frame = pd.DataFrame({"load": [1.0, 2.0, 3.0], "when": days})
    with pytest.raises(ValueError, match=r"times in column 'when'.*: frame.set_index\('when'\)\."):
        as_history(frame)
    assert as_history(frame.set_index("when")).series.channels == ("load",)
    texts = frame.assign(when=frame["when"].astype(str))
    with pytest.raises(ValueError, match=r"'when'.*set_index\(pandas\.to_datetime\(frame"):
        as_history(texts)
    assert as_history(texts.set_index(pd.to_datetime(texts.pop("when")))).series.freq is not None
    with pytest.raises(ValueError, match="expected numbers in column 'shop', got 'Bern'; leave"):
        as_history(frame[["load"]].assign(shop="Bern"))
    numbers = pd.DataFrame({"load": np.array([1, 2.5, "3"], object)})
    assert as_history(numbers).series.values.tolist() == [[1.0], [2.5], [3.0]]
    assert as_history(frame, ("load",)).series.channels == ("load",)  # others are left out


def test_quantiles_of_a_frame_keep_the_name_of_its_columns():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(np.ones((5, 2)), columns=pd.Index(["a", "b"], name="shop"))
    found = as_history(frame).quantiles_like(
        np.ones((3, 2, 1)), pd.RangeIndex(5, 8), ["a", "b"], (0.5,)
    )
    assert found.columns.names == ["shop", "quantile"]
