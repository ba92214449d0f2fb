"""Frames of pandas, polars and Arrow, and Parquet files, to series and back."""

import datetime
import io
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from flax_linattn import data
from flax_linattn.checks import OptionError
from flax_linattn.data import DataFormatError, Dialect, TimeSeries

LIBRARIES = ("pandas", "polars", "pyarrow")
TABLE = (
    "shop,when,sales,open\nBern,2024-01-01 00:00,5,1\nUri,2024-01-01 00:00,1,0\n"
    "Bern,2024-01-01 01:00,,1\nBern,2024-01-01 02:00,7,1\nUri,2024-01-01 02:00,2,1\n"
)
HOURS = pd.date_range("2024-01-01", periods=3, freq="h")


def native(library):
    """The table as that library reads it itself."""
    if library == "pandas":
        return pd.read_csv(io.StringIO(TABLE), parse_dates=["when"])
    frame = pl.read_csv(io.StringIO(TABLE), try_parse_dates=True)
    return frame if library == "polars" else frame.to_arrow()


def same(one, other):
    assert (one.name, one.channels, one.freq) == (other.name, other.channels, other.freq)
    np.testing.assert_array_equal(one.values, other.values)
    assert one.time_zone == other.time_zone and (one.index == other.index).all()


@pytest.fixture
def shops(tmp_path):
    path = tmp_path / "shops.csv"
    path.write_text(TABLE)
    return data.load_long(path, id_column="shop", dialect=Dialect(time_column="when"))


@pytest.mark.parametrize("library", LIBRARIES)
def test_several_series_of_a_frame_are_those_of_the_table(library, shops):
    found = data.from_frame(native(library), id_column="shop")
    for one, other in zip(found, shops, strict=True):
        same(one, other)
    (bern, _) = data.from_frame(
        native(library), time_column="when", id_column="shop", channels=["open"]
    )
    assert bern.channels == ("open",)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("zone", [None, "Europe/Zurich"])
def test_a_frame_goes_there_and_back(library, zone, shops):
    index = shops[0].index if zone is None else shops[0].index.tz_localize(zone)
    one = TimeSeries("frame", shops[0].values, shops[0].channels, index)
    frame = data.to_frame(one, library=library)
    assert type(frame).__module__.startswith(library)
    same(data.from_frame(frame), one)
    several = data.to_frame(shops, library=library, id_column="shop")
    for back, other in zip(data.from_frame(several, id_column="shop"), shops, strict=True):
        same(back, other)
    untimed = TimeSeries("frame", one.values, one.channels)
    assert data.from_frame(data.to_frame(untimed, library=library)).times is None


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (HOURS, HOURS),
        (HOURS.tz_localize("Europe/Zurich"), HOURS.tz_localize("Europe/Zurich")),
        (pd.period_range("2024-01", periods=3, freq="M"),) * 2,
        (pd.RangeIndex(860, 863),) * 2,
        (pd.Index([5, 7, 9]),) * 2,
        (pd.RangeIndex(3),) * 2,
        (pd.Index([str(hour) for hour in HOURS]), HOURS),
        (
            pd.Index([datetime.date(2024, 1, day) for day in (1, 2, 3)]),
            pd.date_range("2024-01-01", periods=3),
        ),
    ],
)
def test_an_index_is_kept_and_its_name_too(index, expected):
    series = data.from_frame(pd.DataFrame({"load": [1, 2, 3]}, index.rename("when")))
    assert series.index.name == "when" and (series.index == expected).all()
    assert type(series.index) is type(expected) or series.times is None


@pytest.mark.parametrize("index", [["x", "y", "z"], [0.5, 1.0, 1.5]])
def test_an_index_of_something_else_is_refused(index):
    with pytest.raises(DataFormatError, match=r"in the index, got .* by pandas\.to_datetime"):
        data.from_frame(pd.DataFrame({"load": [1, 2, 3]}, index))


def test_clocks_that_go_back():
    times = pd.date_range("2024-10-27", periods=5, freq="h", tz="Europe/Zurich")
    for frame in (
        pd.DataFrame({"when": times, "load": range(5)}),
        pl.DataFrame({"when": times.tolist(), "load": range(5)}),
    ):
        series = data.from_frame(frame)
        assert (series.index == times).all() and series.freq == "h" and series.num_gaps == 0


NIXTLA = pd.DataFrame(
    {
        "unique_id": ["A", "A", "B"],
        "ds": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-01"]),
        "y": [1.0, 2.0, 3.0],
    }
)
PANEL = NIXTLA.set_index(["unique_id", "ds"])


@pytest.mark.parametrize(
    "frame", [NIXTLA, pl.from_pandas(NIXTLA), PANEL, PANEL.rename_axis([None, None])]
)
def test_panels_of_other_libraries_need_no_options(frame):
    one, two = data.from_frame(frame)
    assert (one.name, two.name) == ("A", "B") and one.channels == ("y",)
    assert one.values.ravel().tolist() == [1, 2] and one.freq == "D"


@pytest.mark.parametrize("levels", [["shop"], ["shop", "when"], ["when"]])
def test_named_levels_of_an_index_are_columns(tmp_path, levels, shops):
    path = tmp_path / "shops.parquet"
    frame = native("pandas").set_index(levels)
    frame.to_parquet(path)
    dialect = Dialect(time_column="when")
    for one, two, other in zip(
        data.load_long(path, id_column="shop", dialect=dialect),
        data.from_frame(frame, id_column="shop", dialect=dialect),
        shops,
        strict=True,
    ):
        same(one, other)
        same(two, other)


def test_times_of_two_offsets_in_one_column():
    """As to_datetime of pandas 2 has them: in UTC."""
    times = [pd.Timestamp("2024-03-31 01:00+01:00"), pd.Timestamp("2024-03-31 03:00+02:00")]
    frame = pd.DataFrame({"when": pd.Series(times, dtype=object), "v": [1.0, 2.0]})
    series = data.from_frame(frame)
    assert series.time_zone == "UTC" and (series.index == times).all()
    assert data.from_frame(frame, dialect=Dialect(timezone="Europe/Berlin")).index[0] == times[0]
    frame["when"] = pd.Series([times[0], pd.Timestamp("2024-03-31 05:00")], dtype=object)
    message = r"row 1 .* its offset from UTC in column 1 \(when\), .* timezone="
    with pytest.raises(DataFormatError, match=message) as error:
        data.from_frame(frame, time_column="when")
    assert error.value.options == ("timezone",)


def test_periods_and_the_frequency_that_they_have():
    weeks = pd.period_range("2024-01-01", periods=5, freq="W-SUN")
    for freq in (None, "W-SUN", "W-MON"):
        series = TimeSeries("x", np.zeros((5, 1)), ("a",), weeks, freq=freq)
        assert series.freq == "W-MON" and series.num_gaps == 0  # of their first days


def test_columns_of_other_kinds():
    days = pl.DataFrame({"day": ["2024-01-01", "2024-01-02"], "b": [True, None]}).with_columns(
        pl.col("day").str.to_date()
    )
    series = data.from_frame(days)
    assert series.freq == "D"
    np.testing.assert_array_equal(series.values, [[1.0], [np.nan]])
    frame = pd.DataFrame(
        {
            "a": pd.array([2**60 + 1, None, -9999], dtype="Int64"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "c": pd.Categorical([1, 2, 1]),
            "d": ["1.5", "", "?"],
        }
    )
    found = data.from_frame(frame, dialect=Dialect(missing_values=("-9999",)))
    np.testing.assert_array_equal(
        found.values,
        [[2.0**60, 1, 1, 1.5], [np.nan, np.nan, 2, np.nan], [np.nan, 0, 1, np.nan]],
    )
    texts = pd.DataFrame({"date": ["1.7.2016", "2.7.2016"], "a": [1, 2]})
    assert data.from_frame(texts, dialect=Dialect(day_first=True)).freq == "D"
    seconds = pa.table({"t": [1467331200, 1467334800], "a": [1.0, 2.0]})
    epoch = data.from_frame(seconds, time_column="t", dialect=Dialect(time_unit="s"))
    assert epoch.time_zone == "UTC" and epoch.freq == "h"
    decimals = pa.table({"a": pa.array([1, None], pa.decimal128(5, 2))})
    np.testing.assert_array_equal(data.from_frame(decimals).values, [[1], [np.nan]])


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (pd.DataFrame({"n": [1, 2], "a": ["1", "x"]}), {},
         r"row 1 \(counting from 0\): .* column 2 \(a\), got 'x'; .* channels=.* id_column="),
        (pd.DataFrame({"a": [1.0]}), {"channels": ["b"]}, "unknown channel 'b'; frame has a"),
        (pd.DataFrame({"a": [1.0]}), {"time_column": "t"}, "unknown column 't'; frame has a"),
        (pd.DataFrame({"a": [1.0]}), {"id_column": "t"}, "unknown column 't'; frame has a"),
        (pd.DataFrame({"a": [np.inf]}), {}, "frame, row 0 .* expected a finite number"),
        (pd.DataFrame({"t": HOURS, "u": HOURS, "a": 1.0}), {},
         "expected one column of times, got t, u; .* time_column="),
        (pd.DataFrame({"t": HOURS[::-1], "a": 1.0}), {},
         "frame, row 1 .* a time after 2024-01-01 02:00:00"),
        (pd.DataFrame({"t": [HOURS[0], pd.NaT], "a": 1.0}), {}, "row 1 .* a time .* got none"),
        (pd.DataFrame({"date": ["soon", "now"], "a": 1.0}), {},
         r"frame, row 0 .* column 1 \(date\), got 'soon'"),
        (pd.DataFrame({"time": 1_700_000_000 + 3600 * np.arange(3), "a": 1.0}), {},
         "frame, row 0 .* got '1700000000'; .* time_unit='s'"),
        (pd.DataFrame({"t": HOURS[[0, 0, 1]], "a": 1.0}), {"times": "strict"},
         "frame, row 1 .* a time after 2024-01-01 00:00:00.*drop repeated"),
        (pd.DataFrame({"t": HOURS[[0, 0, 0, 1]], "a": 1.0}), {}, "frame, row 1 .* got 2 of 3"),
        (pd.DataFrame({"id": ["x", None], "a": 1.0}), {"id_column": "id"},
         "frame, row 1 .* the name of a series in column 1"),
        (pd.DataFrame({"id": ["x", "x"], "a": 1.0, "city": "Bern"}), {"id_column": "id"},
         r"frame, row 0 .* a finite number in column 3 \(city\), got 'Bern'"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), {}, "distinct column names, .* 'a' twice"),
        (pd.DataFrame({"a": []}), {}, "frame: expected rows with .* got 0 rows of a"),
    ],
)  # fmt: skip
def test_bad_frames_are_named(frame, options, message):
    with pytest.raises(ValueError, match=message):
        data.from_frame(frame, **options)


def test_what_is_no_frame():
    with pytest.raises(TypeError, match="expected a frame of pandas, polars or Arrow, got list"):
        data.from_frame([[1.0]])


def test_series_that_make_no_frame(shops):
    other = TimeSeries("x", shops[0].values, ("a", "b"))
    with pytest.raises(ValueError, match="got 2 kinds; create a separate frame"):
        data.to_frame([shops[0], other])
    with pytest.raises(ValueError, match="'sales' of another column"):
        data.to_frame(shops[0], time_column="sales")
    with pytest.raises(OptionError, match="library must be one of pandas, polars, pyarrow"):
        data.to_frame(shops[0], library="numpy")


def test_parquet_files_are_read_as_tables_are(tmp_path, shops):
    path = tmp_path / "shops.parquet"
    native("pandas").to_parquet(path)
    for one, other in zip(data.load_long(path, id_column="shop"), shops, strict=True):
        same(one, other)
    frame = data.to_frame(shops[0], time_column="time").set_index("time")
    frame.to_parquet(path)
    series = data.load_series(path, channels=["open", "sales"])
    assert series.name == "shops" and series.channels == ("open", "sales")
    assert (series.index == shops[0].index).all()
    assert data.load_series(path, resample="1d").num_steps == 1
    pd.DataFrame({"v": np.arange(3) + 2**60}).to_parquet(path)
    assert data.load_series(path).values.ravel().tolist() == [float(2**60 + i) for i in range(3)]


@pytest.mark.parametrize(
    ("days", "row", "date"),
    [([0, 10, 2**29], 2, "1471872-08-19"), ([0, 139, 11, 140], 2, "1970-01-12")],
    ids=["a bad date", "falling times"],
)
@pytest.mark.parametrize("suffix", ["csv", "feather", "parquet"])
def test_errors_on_times_name_file_row_and_column(tmp_path, suffix, days, row, date):
    dates = np.array(days, "datetime64[D]")
    path = tmp_path / f"toy.{suffix}"
    table = pa.table({"date": dates, "a": np.arange(len(days))})
    if suffix == "csv":
        lines = [f"{day},{n}\n" for n, day in enumerate(dates)]
        path.write_text("date,a\n" + "".join(lines))
    elif suffix == "feather":
        feather.write_feather(table, str(path))
    else:
        parquet.write_table(table, path)
    place = f":{row + 2}:" if suffix == "csv" else f", row {row} (counting from 0):"
    pattern = re.escape(f"{path}{place} expected a ") + rf".* in column 1 \(date\), got '?{date}"
    with pytest.raises(DataFormatError, match=pattern):
        data.load_series(path)


def test_bad_parquet_files(tmp_path):
    path = tmp_path / "toy.parquet"
    with pytest.raises(FileNotFoundError, match="expected a data file"):
        data.load_series(path)
    path.write_text("date,a\n2024-01-01,1\n")
    with pytest.raises(DataFormatError, match=r"toy\.parquet: expected a whole Parquet file"):
        data.load_series(path)
    parquet.write_table(pa.table({"n": [1], "a": ["x"]}), path)
    with pytest.raises(ValueError, match=r"toy\.parquet, row 0 .* column 2 \(a\), got 'x'"):
        data.load_series(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataFormatError, match=r"toy\.parquet: expected a whole Parquet file"):
        data.load_series(path)
