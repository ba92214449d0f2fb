"""Histories: forms of series, kinds of index, panels, and what is known of their horizon."""

import datetime

import numpy as np
import pandas as pd
import polars
import pytest

from flax_linattn.data.tables.dialect import Dialect
from flax_linattn.data.tables.time_index import continue_index
from flax_linattn.estimators.history import FrameOptions
from flax_linattn.estimators.reading import convert_time, read_future, read_history

WHEN = pd.date_range("2024-01-31", periods=4, freq="ME", name="when")


def ahead(history, steps=2, levels=()):
    """A forecast of ones in the form of a history."""
    channels = history.series[0].channels
    found = {}
    for place, one in enumerate(history.series):
        index = continue_index(one.index, one.freq, steps)
        found[place] = index, np.full((steps, len(channels), 1 + len(levels)), 1.0 + place)
    outputs = [*range(1, 1 + len(levels))] if levels else 0
    return history.like(found, channels, outputs, levels)


def test_arrays_stay_arrays():
    for given, shape in ((np.ones(5), (2,)), (np.ones((5, 3)).tolist(), (2, 3))):
        assert ahead(read_history(given)).shape == shape
        assert ahead(read_history(given), levels=(0.1, 0.9)).shape == (*shape, 2)


def test_names_of_columns_and_their_levels_survive():
    columns = pd.MultiIndex.from_tuples([("Close", "X"), ("Open", "X")], names=["Price", "Ticker"])
    history = read_history(pd.DataFrame(np.ones((4, 2)), WHEN, columns))
    found = ahead(history)
    assert found.columns.equals(columns) and found.columns.names == ["Price", "Ticker"]
    quantiles = ahead(history, levels=(0.1, 0.9))
    assert quantiles.columns.names == ["Price", "Ticker", "quantile"]
    assert quantiles.columns[1] == ("Close", "X", 0.9)
    shop = read_history(pd.DataFrame(np.ones((4, 2)), WHEN, pd.Index([7, 8], name="shop")))
    assert ahead(shop).columns.equals(pd.Index([7, 8])) and ahead(shop).columns.name == "shop"
    assert ahead(shop, levels=(0.5,)).columns.names == ["shop", "quantile"]


def test_channels_by_name_whatever_their_order():
    frame = pd.DataFrame({"a": [1.0, 2, 3, 4], "b": [5, np.nan, 7, 8]}, WHEN)
    other = read_history(frame[["b", "a"]].assign(c=0), ("a", "b"))
    np.testing.assert_array_equal(other.series[0].values, frame.to_numpy())
    with pytest.raises(ValueError, match="'c'; the history has a, b"):
        read_history(frame, ("a", "c"))
    with pytest.raises(ValueError, match="X has 3 features, but Forecaster is expecting 2 feat"):
        read_history(np.zeros((4, 3)), ("a", "b"))
    with pytest.raises(ValueError, match=r"expecting 2 features as input: a, b\. Reshape your"):
        read_history(np.zeros(4), ("a", "b"))


@pytest.mark.parametrize(
    ("history", "error", "message"),
    [
        (np.zeros((0, 2)), ValueError, "0 sample"),
        (np.zeros((2, 0)), ValueError, "0 feature"),
        (np.zeros((2, 2, 2)), ValueError, "with one row for each time"),
        ([["a"], ["b"]], ValueError, "expected X as numbers"),
        ([0.0, np.inf], ValueError, r"infinity at \[1\]"),
        ([[0.0], [1e39]], ValueError, r"too large for float32 at \[1, 0\]"),
        ([1j, 2], ValueError, "Complex data not supported"),
        (np.array([{}, 1], object), TypeError, "argument must be a string or a real number"),
        (pd.DataFrame({"a": [0.0, 1e39]}), ValueError, "too large for float32"),
    ],
)
def test_what_is_no_history(history, error, message):
    with pytest.raises(error, match=message):
        read_history(history)


def test_a_column_of_times():
    """It is found and comes back, in pandas and polars."""
    days = pd.date_range("2024-01-01", periods=3)
    frame = pd.DataFrame({"load": [1.0, 2.0, 3.0], "when": days})
    history = read_history(frame)
    assert history.series[0].channels == ("load",) and history.options.time == "when"
    found = ahead(history)
    assert found.columns.tolist() == ["when", "load"] and found["when"][0] == days[-1] + days.freq
    assert ahead(history, levels=(0.5, 0.9)).columns.tolist() == ["when", "load@0.5", "load@0.9"]
    other = ahead(read_history(polars.from_pandas(frame)))
    assert isinstance(other, polars.DataFrame) and other.columns == ["when", "load"]
    assert other["when"].to_list() == found["when"].tolist()
    again = read_history(frame.assign(more=days), ("load",), FrameOptions(time="when"))
    assert again.series[0].index.equals(days)
    with pytest.raises(ValueError, match="unknown column 'day'; the history has load, when"):
        read_history(frame, options=FrameOptions(dialect=Dialect(time_column="day")))


def panel(**columns):
    """Two series of Nixtla's form, of 3 and 4 rows."""
    return pd.DataFrame(
        {
            "unique_id": [7, 7, 7, 3, 3, 3, 3],
            "ds": [*pd.date_range("2024-01-31", periods=3, freq="ME"), *WHEN],
            "y": np.arange(7.0),
            **columns,
        }
    )


def test_panels_in_long_form():
    history = read_history(panel())
    assert [(one.name, one.num_steps) for one in history.series] == [("7", 3), ("3", 4)]
    found = ahead(history)
    assert found.columns.tolist() == ["unique_id", "ds", "y"]
    assert found["unique_id"].tolist() == [7, 7, 3, 3] and found["y"].tolist() == [1, 1, 2, 2]
    assert found["ds"].astype(str).tolist() == [
        "2024-04-30", "2024-05-31", "2024-05-31", "2024-06-30",
    ]  # fmt: skip
    named = panel().rename(columns={"unique_id": "shop", "ds": "day"})
    other = read_history(named, options=FrameOptions("shop", "day"))
    assert ahead(other).columns.tolist() == ["shop", "day", "y"]
    in_polars = ahead(read_history(polars.from_pandas(panel())))
    assert in_polars.columns == ["unique_id", "ds", "y"] and in_polars["unique_id"].to_list() == [
        7, 7, 3, 3,
    ]  # fmt: skip
    counted = ahead(read_history(panel(ds=[1, 2, 3, 11, 12, 13, 14])))
    assert counted["ds"].tolist() == [4, 5, 15, 16]
    mixed = read_history(panel(ds=[1, 2, 3, 11, 12, 13, 14]).iloc[[3, 0, 4, 1, 5, 2, 6]])
    assert [one.index.tolist() for one in mixed.series] == [[11, 12, 13, 14], [1, 2, 3]]
    assert history.select(3).series[0].num_steps == 4
    with pytest.raises(ValueError, match="expected series as one of 7, 3, got 8"):
        history.select(8)
    with pytest.raises(ValueError, match=r"row 1 .* the name of a series in .*\(unique_id\)"):
        read_history(panel(unique_id=["a", None, *"abbbb"]))
    with pytest.raises(ValueError, match="differ as strings"):
        read_history(panel(unique_id=np.array([1, 1, 1, *"1111"], object)))


def test_panels_with_a_multiindex():
    long = panel().set_index(["unique_id", "ds"])
    found = ahead(read_history(long))
    assert found.index.names == ["unique_id", "ds"] and found.columns.tolist() == ["y"]
    assert found.index[2] == (3, pd.Timestamp("2024-05-31"))
    series = ahead(read_history(long["y"]))
    assert isinstance(series, pd.Series) and series.name == "y"
    levels = pd.MultiIndex.from_product([["CH", "DE"], ["a", "b"], range(3)])
    deep = read_history(pd.DataFrame({"y": np.arange(12.0)}, levels))
    assert [one.name for one in deep.series] == ["CH/a", "CH/b", "DE/a", "DE/b"]
    assert ahead(deep).index[-1] == ("DE", "b", 4)


def test_strings_that_never_change_within_a_series_are_channels():
    history = read_history(panel(region=["south"] * 3 + ["north"] * 4, size=[1] * 3 + [2] * 4))
    channels = ("y", "size", "region=north", "region=south")
    assert history.series[0].channels == channels
    assert history.series[0].values[0].tolist() == [0, 1, 0, 1]
    assert history.feature_names == ["y", "size", "region"] and history.channels.tolist() == [
        "y",
        "size",
    ]
    options = FrameOptions(categories=history.options.categories)
    other = read_history(panel(region="west", size=0), channels, options)  # of no fitted region
    assert other.series[0].values[0].tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="columns of fit, got none with the name 'region'"):
        read_history(panel(size=0), channels, options)
    with pytest.raises(
        ValueError, match=r"got 'a' in row 0 .* and 2 different values in series '7'"
    ):
        read_history(panel(region=[*"abb", *"cccc"]))


@pytest.mark.parametrize(
    ("history", "message"),
    [
        (None, "expected X as an array .* got NoneType; pass the series as X"),
        ("file.csv", "got str; read the file first"),
        ({"y": [1.0]}, r"got dict; pass pandas.DataFrame\(X\)"),
        ([{"y": 1.0}], r"got list of dict; pass pandas.DataFrame\(X\)"),
        ([pd.DataFrame({"y": [1.0]})], "got list of DataFrame; pass a panel: pandas.concat"),
    ],
)
def test_objects_that_are_no_series(history, message):
    with pytest.raises(TypeError, match=message):
        read_history(history)


def test_rows_of_different_lengths():
    with pytest.raises(ValueError, match="same number of channels, got rows of 1, 2 numbers"):
        read_history([[1.0, 2.0], [3.0]])


def test_columns_of_a_panel_of_the_wrong_type():
    rows = r"in row 1 \(counting from 0\)"
    with pytest.raises(ValueError, match=f"in column 'y', a target, got 'oops' {rows}; con"):
        read_history(panel(y=[0, "oops", *range(5)]))
    with pytest.raises(ValueError, match=r"numbers in column 'y', a target, got 'x' in row 0"):
        read_history(panel(y="x"))
    options = FrameOptions(targets=("sales",))
    with pytest.raises(ValueError, match="numbers in column 'sales', a target"):
        read_history(panel(sales="x"), options=options)
    for ids, odd in (
        (np.arange(7) + 0.5, r"0.5 \(float\)"),
        (WHEN[[0, 0, 0, 1, 1, 1, 1]], r"Timestamp\(.* \(Timestamp\)"),
        (pd.Series([[1]] * 7), r"\[1\] \(list\)"),
    ):
        with pytest.raises(ValueError, match=f"strings or integers in column 'unique_id' .*{odd}"):
            read_history(panel(unique_id=ids))


def test_what_is_known_of_the_horizon():
    history = read_history(panel(price=range(7)))
    indices = [continue_index(one.index, one.freq, 2) for one in history.series]
    later = ahead(history, 3).drop(columns="y").assign(price=range(6))
    found = read_future(later, history, ["price"], ["price"], indices)
    assert [one["price"].tolist() for one in found] == [[0, 1], [3, 4]]
    for frame, message in (
        (later.drop(columns="price"), "the column 'price' in X_future, got the columns ds, unique"),
        (later[later["unique_id"] == 7], "expected 2 rows of series '3' in X_future, got none"),
        (later[later.index.values[:, None] == [0, 1, 2, 4, 5]].iloc[:0], "0 sample"),
        (later.drop(index=[1, 4]), "of series '7': expected rows from 2024-04-30 .* to 2024-05-31"),
        (later.drop(index=4), "of series '3': expected rows from 2024-05-31 .* to 2024-06-30"),
        (pd.concat([later[:1], later]), "of series '7': expected one row .*, got several for 2024"),
        ([[1.0], [2.0]], "expected X_future as a data frame, like the history, got list"),
    ):
        with pytest.raises(ValueError, match=message):
            read_future(frame, history, ["price"], ["price"], indices)
    array = read_history(np.ones((4, 2)))
    known = [
        read_future(given, array, ["x1"], ["x1"], indices)[0] for given in ([1, 2], [[1], [2]])
    ]
    assert [one["x1"].tolist() for one in known] == [[1, 2], [1, 2]]
    with pytest.raises(ValueError, match=r"X_future as an array \[2, 1\], .* \[3, 1\]; pass"):
        read_future(np.ones((3, 1)), array, ["x1"], ["x1"], indices)


def test_the_horizon_is_read_as_the_history_is():
    """By its codes of missing values, its order of day and month, and its time zone."""
    days = [f"{day}/2/2024" for day in range(1, 8)]
    frame = pd.DataFrame({"y": range(7), "price": [1, 2, 3, 4, 5, -9999, 7]}, pd.Index(days))
    options = FrameOptions(
        dialect=Dialect(day_first=True, timezone="Europe/Berlin", missing_values=("-9999",))
    )
    history = read_history(frame[:5], options=options)
    (one,) = history.series
    indices = [continue_index(one.index, one.freq, 2)]
    (found,) = read_future(frame[["price"]], history, ["price"], ["price"], indices)
    np.testing.assert_array_equal(found["price"], [np.nan, 7])


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
    assert convert_time(time) == datetime.datetime(2024, 3, 1)


def test_integers_of_a_panel_are_read_as_those_of_a_series():
    """Each series has the values and the times of its own rows, in order."""
    frame = pd.DataFrame(
        {"unique_id": ["b", "a"] * 3, "ds": [7, 1, 8, 2, 9, 4], "y": np.arange(6.0)}
    )
    levels = frame.set_index(["unique_id", "ds"])
    for given in (frame, frame.set_index("ds"), levels, frame.rename(index=lambda i: 9 - i)):
        b, a = read_history(given).series
        assert b.index.tolist() == [7, 8, 9] and a.index.tolist() == [1, 2, 4]
        assert b.values.ravel().tolist() == [0, 2, 4] and a.values.ravel().tolist() == [1, 3, 5]
        assert a.gaps.tolist() == [2]
    with pytest.raises(ValueError, match=r"row 2 .* expected a time after 4"):
        read_history(frame[::-1])
    with pytest.raises(ValueError, match="expected a time after 7"):
        strict = FrameOptions(times="strict")
        read_history(frame.replace({"ds": {8: 7}}), options=strict)


def test_dates_of_a_panel_come_before_the_numbers_of_its_rows():
    days = pd.date_range("2024-01-01", periods=3)
    frame = pd.DataFrame({"unique_id": ["a"] * 3 + ["b"] * 3, "day": [*days] * 2, "y": range(6)})
    a, b = read_history(frame).series
    assert a.index.equals(b.index) and a.index.tolist() == days.tolist()
    a, b = read_history(frame.drop(columns="day")).series
    assert b.index.tolist() == [0, 1, 2] and not b.has_integer_times


def test_integers_stay_integers():
    assert convert_time(1949) == convert_time(np.int64(1949)) == 1949


def test_times_with_a_zone_are_in_utc():
    expected = datetime.datetime(2024, 2, 29, 23, tzinfo=datetime.UTC)
    assert convert_time("2024-03-01 00:00:00+01:00") == expected
    assert convert_time(pd.Timestamp("2024-03-01", tz="Europe/Zurich")) == expected


@pytest.mark.parametrize(
    "time", ["noon", 2024.5, np.float64(2024), True, pd.NaT, np.datetime64("NaT", "s")]
)
def test_what_is_no_time(time):
    with pytest.raises(ValueError, match="expected a time such as 2016-07-01 00:00:00, got"):
        convert_time(time)


def test_ids_in_the_index_and_columns_of_their_names():
    ids = pd.Index(["a"] * 4 + ["b"] * 4, name="unique_id")
    frame = pd.DataFrame({"ds": [*WHEN, *WHEN], "y": np.arange(8.0)}, ids)
    found = read_history(frame)
    assert [one.name for one in found.series] == ["a", "b"]
    assert found.series[1].values.ravel().tolist() == [4, 5, 6, 7]
    index = pd.MultiIndex.from_product([["a", "b"], WHEN], names=["store", "day"])
    panel = pd.DataFrame({"store": np.arange(8.0), "unique_id": 1.0}, index)
    found = read_history(panel)
    assert [one.name for one in found.series] == ["a", "b"]
    assert found.series[0].channels == ("store", "unique_id")
    again = read_history(panel, found.series[0].channels, found.options)
    assert again.series[1].values[:, 0].tolist() == [4, 5, 6, 7]
