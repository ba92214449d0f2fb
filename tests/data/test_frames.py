"""Frames of pandas, polars and Arrow, and Parquet files, to series and back."""

import builtins
import io

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from flax_linattn import data
from flax_linattn.checks import OptionError
from flax_linattn.data import DataFormatError, Dialect, TimeSeries

LIBRARIES = ("pandas", "polars", "pyarrow")
TABLE = (
    "shop,when,sales,open\nBern,2024-01-01 00:00,5,1\nUri,2024-01-01 00:00,1,0\n"
    "Bern,2024-01-01 01:00,,1\nBern,2024-01-01 02:00,7,1\nUri,2024-01-01 02:00,2,1\n"
)


def native(library):
    """The table as that library reads it itself."""
    if library == "pandas":
        return pd.read_csv(io.StringIO(TABLE), parse_dates=["when"])
    frame = pl.read_csv(io.StringIO(TABLE), try_parse_dates=True)
    return frame if library == "polars" else frame.to_arrow()


def same(one, other):
    assert (one.name, one.channels, one.time_zone) == (other.name, other.channels, other.time_zone)
    np.testing.assert_array_equal(one.values, other.values)
    assert (one.index == other.index).all()


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
    one = TimeSeries("frame", shops[0].values, shops[0].channels, shops[0].index.tz_localize(zone))
    frame = data.to_frame(one, library=library)
    assert type(frame).__module__.startswith(library)
    same(data.from_frame(frame), one)
    several = data.to_frame(shops, library=library, id_column="shop")
    for back, other in zip(data.from_frame(several, id_column="shop"), shops, strict=True):
        same(back, other)
    untimed = TimeSeries("frame", one.values, one.channels)
    assert data.from_frame(data.to_frame(untimed, library=library)).times is None


def test_times_of_an_index():
    hours = pd.date_range("2024-01-01", periods=3, freq="h")
    values = pd.DataFrame({"load": [1, 2, 3]})
    plain = data.from_frame(values.set_index(hours))
    assert plain.freq == "h" and plain.time_zone is None
    zoned = data.from_frame(values.set_index(hours.tz_localize("Europe/Zurich")))
    assert str(zoned.index[0]) == "2024-01-01 00:00:00+01:00"
    months = data.from_frame(values.set_index(pd.period_range("2024-01", periods=3, freq="M")))
    assert months.freq == "MS" and str(months.index[2]) == "2024-03"
    assert data.from_frame(values).times is None


def test_clocks_that_go_back():
    times = pd.date_range("2024-10-27", periods=5, freq="h", tz="Europe/Zurich")
    for frame in (
        pd.DataFrame({"when": times, "load": range(5)}),
        pl.DataFrame({"when": times.tolist(), "load": range(5)}),
    ):
        series = data.from_frame(frame)
        assert series.time_zone == "Europe/Zurich" and series.freq == "h" and series.num_gaps == 0


def test_columns_of_other_kinds():
    days = pl.DataFrame({"day": ["2024-01-01", "2024-01-02"], "b": [True, None]}).with_columns(
        pl.col("day").str.to_date()
    )
    series = data.from_frame(days)
    assert series.freq == "D"
    np.testing.assert_array_equal(series.values, [[1.0], [np.nan]])
    nullable = pd.DataFrame({"a": pd.array([1, None, -9999], dtype="Int64")})
    found = data.from_frame(nullable, dialect=Dialect(missing_values=("-9999",)))
    np.testing.assert_array_equal(found.values, [[1.0], [np.nan], [np.nan]])
    texts = pd.DataFrame({"date": ["1.7.2016", "2.7.2016"], "a": [1, 2]})
    assert data.from_frame(texts, dialect=Dialect(day_first=True)).freq == "D"
    seconds = pa.table({"t": [1467331200, 1467334800], "a": [1.0, 2.0]})
    epoch = data.from_frame(seconds, time_column="t", dialect=Dialect(time_unit="s"))
    assert epoch.time_zone == "UTC" and epoch.freq == "h"


TIMES = pd.date_range("2024-01-01", periods=3, freq="h")


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (pd.DataFrame({"a": ["x", "y", "z"]}), {},
         "frame: expected numbers in column 'a', got String; .* channels="),
        (pd.DataFrame({"a": [1.0]}), {"channels": ["b"]}, "unknown channel 'b'; frame has a"),
        (pd.DataFrame({"a": [1.0]}), {"time_column": "t"}, "unknown column 't'; frame has a"),
        (pd.DataFrame({"a": [1.0]}), {"id_column": "t"}, "unknown column 't'; frame has a"),
        (pd.DataFrame({"a": [np.inf]}), {}, "frame, row 0, from 0: expected a finite number"),
        (pd.DataFrame({"t": TIMES, "u": TIMES, "a": 1.0}), {},
         "expected one column of times, got t, u; .* time_column="),
        (pd.DataFrame({"t": TIMES[::-1], "a": 1.0}), {}, "times that never fall"),
        (pd.DataFrame({"t": [TIMES[0], pd.NaT], "a": 1.0}), {}, "row 1, .* a time, got none"),
        (pd.DataFrame({"date": ["soon", "now"], "a": 1.0}), {},
         "frame, row 0, .* column 'date', got 'soon'; .* pandas.to_datetime"),
        (pd.DataFrame({"t": TIMES[[0, 0, 1]], "a": 1.0}), {"times": "strict"},
         "frame, row 1, .* a time after 2024-01-01 00:00:00, got it again"),
        (pd.DataFrame({"t": TIMES[[0, 0, 0, 1]], "a": 1.0}), {}, "frame, row 1, .* got 2 of 3"),
        (pd.DataFrame({"id": ["x", None], "a": 1.0}), {"id_column": "id"},
         "frame, row 1, .* the name of a series in column 'id', got none"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), {}, "different names .* 'a' twice"),
        (pd.DataFrame({"a": []}), {}, r"expected rows and a column of numbers, got \(0, 1\)"),
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
    with pytest.raises(ValueError, match="got 2 kinds; make a frame of each"):
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
    frame = data.to_frame(shops[0]).set_index("time")
    frame.to_parquet(path)
    series = data.load_series(path, channels=["open", "sales"])
    assert series.name == "shops" and series.channels == ("open", "sales")
    assert (series.index == shops[0].index).all()
    assert data.load_series(path, resample="1d").num_steps == 1


def test_bad_parquet_files(tmp_path, monkeypatch):
    path = tmp_path / "toy.parquet"
    with pytest.raises(FileNotFoundError, match="expected a data file"):
        data.load_series(path)
    path.write_text("date,a\n2024-01-01,1\n")
    with pytest.raises(DataFormatError, match=r"toy\.parquet: expected a whole Parquet file"):
        data.load_series(path)
    parquet.write_table(pa.table({"a": ["x"]}), path)
    with pytest.raises(ValueError, match=r"toy\.parquet: expected numbers in column 'a'"):
        data.load_series(path)
    kept = path.read_bytes()
    path.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(DataFormatError, match=r"toy\.parquet: expected a whole Parquet file"):
        data.load_series(path)


def missing(monkeypatch, library):
    """As if a library were not installed."""
    real = builtins.__import__

    def imported(name, *args, **kwargs):
        if name.partition(".")[0] == library:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", imported)


def test_extras_that_are_not_there_are_named(tmp_path, monkeypatch):
    path = tmp_path / "toy.parquet"
    path.write_bytes(b"")
    missing(monkeypatch, "pyarrow")
    with pytest.raises(ValueError, match=r"pip install 'flax-linattn\[parquet\]'"):
        data.load_series(path)
    missing(monkeypatch, "narwhals")
    with pytest.raises(ValueError, match=r"pip install 'flax-linattn\[frames\]'"):
        data.from_frame(pd.DataFrame({"a": [1.0]}))
