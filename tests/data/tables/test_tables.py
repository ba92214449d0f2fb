"""Tables as users have them: what is read, in every kind of file, and what is refused, and how."""

import csv
import gzip
import lzma
import subprocess
import sys
from datetime import datetime, timedelta
from unittest import mock
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from flax_linattn import data
from flax_linattn.checks import OptionError
from flax_linattn.data import DataFormatError, Dialect
from flax_linattn.data.tables import tables
from flax_linattn.data.tables.times import BadTimeError, join_date_and_clock

SEPARATORS = {",": ",", ";": ";", "tab": "\t", "|": "|"}
FIRST = datetime(2016, 7, 1)
NAN = np.nan


def write(tmp_path, text, name="toy.csv", **options):
    path = tmp_path / name
    path.write_text(text, **options)
    return path


def load(path, **options):
    """The series of a table, one or several."""
    if "id_column" in options:
        return data.load_long(path, **options)
    return (data.load_series(path, **options),)


def test_the_embedded_series():
    series = data.etth1()
    assert series.values.shape == (17420, 7) and series.num_gaps == series.num_missing == 0
    assert series.freq == "h" and str(series.index[-1]) == "2018-06-26 19:00:00"
    np.testing.assert_allclose(series.values[0, [0, -1]], [5.827, 30.531], atol=1e-6)


@pytest.mark.parametrize(
    ("file", "shape", "freq"),
    [
        ("ett/ETTm2.csv.gz", (69680, 7), "15min"),
        ("exchange_rate/exchange_rate.csv", (7588, 8), "D"),
        ("exchange_rate/exchange_rate.txt.gz", (7588, 8), None),
        ("electricity_subset/electricity_2clients_full_length.csv.gz", (26304, 2), "h"),
        ("electricity_subset/electricity_weekly_dataset.tsf.gz", (156, 321), "W-SUN"),
    ],
)
def test_official_files(file, shape, freq, data_dir):
    series = data.load_series(data_dir / file)
    assert series.values.shape == shape and series.freq == freq


def test_the_file_that_was_cut_short(data_dir):
    path = data_dir / "traffic_subset" / "traffic_862sensors_first25rows_truncated.csv"
    with pytest.raises(DataFormatError, match=r"truncated\.csv:27: expected 863 cells, .* got 242"):
        data.load_series(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_compressed_or_not_in_any_encoding(tmp_path, suffix, encoding):
    text = "# a comment\ndate,é\n2024-01-01,1\n\n# \n2024-01-02,2\n"
    path = tmp_path / f"toy.csv{suffix}"
    opened = {"": open, ".gz": gzip.open, ".xz": lzma.open}[suffix]
    with opened(path, "wb") as file:
        file.write(text.encode(encoding))
    dialect = Dialect(encoding="latin-1" if encoding == "latin-1" else "auto")
    series = data.load_series(path, dialect=dialect)
    assert series.values.ravel().tolist() == [1, 2] and series.channels == ("é",)
    assert series.name == "toy" and series.lines is not None and series.lines.tolist() == [3, 6]


@pytest.mark.parametrize(
    ("text", "line"), [("date,é\n1,2\n", 1), ("date,v,city\n1,2,a\n1,2,é\n", 3)]
)
def test_text_of_another_encoding_is_refused(tmp_path, text, line):
    path = write(tmp_path, text, encoding="latin-1")
    message = rf"toy\.csv:{line}: expected text in UTF-8, got the byte 0xe9; .*latin-1"
    with pytest.raises(DataFormatError, match=message) as error:
        data.load_series(path)
    assert error.value.options == ("encoding",)
    path.write_bytes("date,v\n1,2\n".encode("utf-16")[:-1])
    with pytest.raises(DataFormatError, match=r":\d: expected text in UTF-16"):
        data.load_series(path)
    path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    with pytest.raises(DataFormatError, match=r"toy\.csv:1: expected text, got a binary file"):
        data.load_series(path)


@given(
    st.lists(
        st.lists(st.floats(allow_infinity=False, width=64), min_size=2, max_size=2), min_size=1
    )
)
def test_what_is_written_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("table") / "toy.csv"
    lines = [",".join("" if np.isnan(x) else repr(x) for x in row) for row in rows]
    path.write_text("a,b\n" + "\n".join(lines) + "\n")
    np.testing.assert_array_equal(data.load_series(path).values, np.array(rows))


def table(path, rows, dialect, place, hours):
    """Writes rows of two numbers in a dialect, with the times in some column."""

    def number(x):
        text = "-9999" if np.isnan(x) and dialect.missing_values else "" if np.isnan(x) else repr(x)
        return text.replace(".", dialect.decimal)

    def time(hour):
        when = FIRST + timedelta(hours=hour)
        if dialect.time_unit != "none":
            seconds = int((when - datetime(1970, 1, 1)).total_seconds())
            return str(seconds * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[dialect.time_unit])
        if dialect.date_format:
            return when.strftime(dialect.date_format)
        if dialect.day_first:
            return when.strftime("%d.%m.%Y %H:%M")
        return when.strftime("%m/%d/%Y %H:%M" if dialect.month_first else "%Y-%m-%d %H:%M:%S")

    with open(path, "w", newline="") as file:
        out = csv.writer(file, delimiter=SEPARATORS[dialect.separator])
        out.writerows(
            [*cells[:place], when, *cells[place:]]
            for when, cells in (
                ("when", ["a, b", "c;d"]),
                *((time(hour), [*map(number, row)]) for hour, row in zip(hours, rows, strict=True)),
            )
        )


@st.composite
def dialects(draw):
    decimal = draw(st.sampled_from([".", ","]))
    unit = draw(st.sampled_from(["none", "s", "ms", "us", "ns"]))
    order = draw(st.sampled_from(["", "day_first", "month_first", "date_format"]))
    return Dialect(
        separator=draw(st.sampled_from([s for s in SEPARATORS if s != decimal])),
        decimal=decimal,
        time_column="when",
        day_first=order == "day_first",
        month_first=order == "month_first",
        date_format="%d %b %Y, %H h" if order == "date_format" else "",
        time_unit=unit,
        timezone=draw(st.sampled_from(["", "Asia/Tokyo"])),
        missing_values=draw(st.sampled_from([(), ("-9999",)])),
    )


@given(
    dialects(),
    st.lists(
        st.lists(st.floats(-9998, allow_infinity=False) | st.just(NAN), min_size=2, max_size=2),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 2),
    st.data(),
)
def test_what_is_written_in_a_dialect_is_read(tmp_path_factory, dialect, rows, place, draw):
    path = tmp_path_factory.mktemp("dialect") / "toy.csv"
    hours = range(0, 5 * len(rows), draw.draw(st.integers(1, 5)))[: len(rows)]
    table(path, rows, dialect, place, hours)
    series = data.load_series(path, header=True, dialect=dialect)
    np.testing.assert_array_equal(series.values, np.array(rows))
    assert series.channels == ("a, b", "c;d")
    zone = dialect.timezone or (None if dialect.time_unit == "none" else "UTC")
    times = pd.DatetimeIndex([FIRST + timedelta(hours=hour) for hour in hours])
    if dialect.time_unit != "none":
        times = times.tz_localize("UTC").tz_convert(zone)
    elif zone:
        times = times.tz_localize(zone)
    assert series.time_zone == zone and (series.index == times).all()


MINUTES = ("2006-12-16 17:24", "2006-12-16 17:25")
COMMAS = Dialect(separator=";", decimal=",")
ZURICH = Dialect(timezone="Europe/Zurich")
NIGHT = "2016-10-30T0{}:00"


@pytest.mark.parametrize(
    ("text", "options", "channels", "values", "times"),
    [
        ("10,20\n1,2\n", {"header": True}, ("10", "20"), [[1, 2]], None),
        ("10,20\n1,2\n", {"header": False}, ("0", "1"), [[10, 20], [1, 2]], None),
        ("2024-01-01 00:00,1\n2024-01-01 01:00,2\n", {}, ("0",), [[1], [2]],
         ("2024-01-01 00:00", "2024-01-01 01:00")),
        ("Date,a\n20240101,1\n20240102,2\n", {}, ("a",), [[1], [2]], ("2024-01-01", "2024-01-02")),
        ('"date","b, c"\n"2024-01-01 00:00","1"\n', {}, ("b, c",), [[1]], ("2024-01-01",)),
        ('date, "b, c"\n2024-01-01, "1"\n', {}, ("b, c",), [[1]], ("2024-01-01",)),
        ("a,b\n?,NA\n1,\n+1.5,<NA>\nN/A,\u00a02 \n", {}, ("a", "b"),
         [[NAN, NAN], [1, NAN], [1.5, NAN], [NAN, 2]], None),
        ("flow,level\n1.5,10\n#N/A,11\n", {}, ("flow", "level"), [[1.5, 10], [NAN, 11]], None),
        ("#N/A,11\n1.5,10\n", {"header": False}, ("0", "1"), [[NAN, 11], [1.5, 10]], None),
        ("#NASA\n#name,b\nname,b\n1,2\n", {}, ("name", "b"), [[1, 2]], None),
        ("date,a\n2024-01-01,1\n# restart\n\n2024-01-02,2\n", {}, ("a",), [[1], [2]],
         ("2024-01-01", "2024-01-02")),
        ("1,x,3\n", {"header": False, "channels": ["2"]}, ("2",), [[3]], None),
        ("date,a,store,b,note,note\n2024-01-01,1,Zurich,2,x,y\n2024-01-02,3,Bern,4,,\n",
         {"channels": ("b", "a")}, ("b", "a"), [[2, 1], [4, 3]], ("2024-01-01", "2024-01-02")),
        *(("date,load,OT\n2016-07-01 00:00,5.5,\n2016-07-01 01:00,6,7\n".replace(",", separator),
           {}, ("load", "OT"), [[5.5, NAN], [6, 7]], ("2016-07-01", "2016-07-01 01:00"))
          for separator in SEPARATORS.values()),
        ("a\tb\n1\t2\n\t\n", {}, ("a", "b"), [[1, 2], [NAN, NAN]], None),
        ("date,load|MW,x|y\n2024-01-01,1,2\n", {}, ("load|MW", "x|y"), [[1, 2]], ("2024-01-01",)),
        ("a,when\n1,2024-01-01\n", {"dialect": Dialect(time_column="when")}, ("a",), [[1]],
         ("2024-01-01",)),
        ("a,timestamp\n1,2024-01-01\n", {}, ("a",), [[1]], ("2024-01-01",)),
        ("a,time\n1,35\n2,40\n", {}, ("a",), [[1], [2]], (35, 40)),
        ("a,time\n1,35\n2,30\n", {}, ("a", "time"), [[1, 35], [2, 30]], None),
        ("a,time\n1,35\n2,40\n", {"channels": ["time"]}, ("time",), [[35], [40]], None),
        ("a,time,year\n1,3,1949\n2,4,1950\n", {}, ("a", "time", "year"),
         [[1, 3, 1949], [2, 4, 1950]], None),
        ("P,Year\n101,1949\n102,1950\n", {}, ("P",), [[101], [102]], (1949, 1950)),
        ("P,Year\n101,1949\n102,1950\n", {"dialect": Dialect(time_column="Year",
         date_format="%Y")}, ("P",), [[101], [102]], ("1949-01-01", "1950-01-01")),
        ("Date;Time;V\n16/12/2006;17:24:00;234,5\n16/12/2006;17:25:00;?\n",
         {"dialect": Dialect(decimal=",", time_column=("Date", "Time"), day_first=True)},
         ("V",), [[234.5], [NAN]], MINUTES),
        ("Month,P\n1949-01,101\n1949-02,102\n", {}, ("P",), [[101], [102]],
         ("1949-01-01", "1949-02-01")),
        ("q,P\n1960Q1,101\n1960Q2,102\n", {}, ("P",), [[101], [102]],
         ("1960-01-01", "1960-04-01")),
        ("Year,P\n1949,101\n1950,102\n", {}, ("P",), [[101], [102]], (1949, 1950)),
        ("year,month\n1949,1\n1949,2\n", {}, ("year", "month"), [[1949, 1], [1949, 2]], None),
        ("time,a\n1694532425.580000,3.8\n1694532425.600000,3.9\n",
         {"dialect": Dialect(time_unit="s")}, ("a",), [[3.8], [3.9]],
         ("2023-09-12 15:27:05.58Z", "2023-09-12 15:27:05.60Z")),
        (f"date,a\n{NIGHT.format(1)}+02:00,1\n{NIGHT.format(2)}+02:00,2\n{NIGHT.format(2)}+01:00,3\n",
         {}, ("a",), [[1], [2], [3]],
         ("2016-10-29 23:00Z", "2016-10-30 00:00Z", "2016-10-30 01:00Z")),
        (f"date,a\n{NIGHT.format(1)},1\n{NIGHT.format(2)},2\n{NIGHT.format(2)},3\n",
         {"dialect": ZURICH}, ("a",), [[1], [2], [3]],
         ("2016-10-29 23:00Z", "2016-10-30 00:00Z", "2016-10-30 01:00Z")),
        ("date,a\n2016-07-01 02:00+05:30,1\n2016-07-01 03:00+05:30,2\n", {}, ("a",), [[1], [2]],
         ("2016-07-01 02:00+05:30", "2016-07-01 03:00+05:30")),
        ("date,a\n2016-07-01 02:00Z,1\n2016-07-01 05:00,2\n", {"dialect": ZURICH}, ("a",),
         [[1], [2]], ("2016-07-01 04:00+02:00", "2016-07-01 05:00+02:00")),
        ("unique_id,ds,y\n01,2024-01-01,1\n01,2024-01-02,2\n", {}, ("y",), [[1], [2]],
         ("2024-01-01", "2024-01-02")),
    ],
)  # fmt: skip
def test_what_is_read(tmp_path, text, options, channels, values, times):
    (series,) = load(write(tmp_path, text, encoding="utf-8"), **options)
    assert series.channels == channels
    np.testing.assert_array_equal(series.values, values)
    if times is None:
        assert series.times is None and not series.has_integer_times
    elif isinstance(times[0], int):
        assert series.has_integer_times and series.index.tolist() == [*times]
    else:
        assert (
            series.index == pd.DatetimeIndex(pd.to_datetime(list(times), format="ISO8601"))
        ).all()


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_times_since_1970_ask_for_their_unit_in_every_kind_of_file(tmp_path, unit, scale):
    frame = pd.DataFrame({"time": scale * (1_700_000_000 + 3600 * np.arange(3)), "v": [1.0, 2, 3]})
    frame.to_csv(tmp_path / "toy.csv", index=False)
    frame[["v", "time"]].to_csv(tmp_path / "last.csv", index=False)
    frame.to_parquet(tmp_path / "toy.parquet")
    frame.to_feather(tmp_path / "toy.feather")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(DataFormatError, match=rf"{path.name}.* time_unit='{unit}'") as error:
            data.load_series(path)
        assert error.value.options == ("time_unit",)
        series = data.load_series(path, dialect=Dialect(time_unit=unit))
        assert series.channels == ("v",) and series.freq == "h" and series.time_zone == "UTC"
        assert str(series.index[0]) == "2023-11-14 22:13:20+00:00"


def test_an_excel_export(tmp_path):
    pytest.importorskip("openpyxl")
    hours = pd.date_range("2024-01-01", periods=3, freq="h")
    frame = pd.DataFrame({"when": hours, "a": [1, 2.5, NAN], "b": [1, 2, 3]})
    frame.to_excel(tmp_path / "toy.xlsx", index=False)
    series = data.load_series(tmp_path / "toy.xlsx")
    np.testing.assert_array_equal(series.values, frame[["a", "b"]])
    assert series.freq == "h" and series.lines is not None and series.lines.tolist() == [2, 3, 4]
    texts = pd.DataFrame({"when": ["1.2.2024", "2.2.2024"], "a": ["1,5", "x"]})
    texts.to_excel(tmp_path / "texts.xlsx", index=False)
    dialect = Dialect(day_first=True, decimal=",")
    with pytest.raises(DataFormatError, match=r"texts\.xlsx:3: .* column 2 \(a\), got 'x'"):
        data.load_series(tmp_path / "texts.xlsx", dialect=dialect)
    whole = (tmp_path / "toy.xlsx").read_bytes()
    (tmp_path / "cut.xlsx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataFormatError, match=r"cut\.xlsx: expected a whole Excel file"):
        data.load_series(tmp_path / "cut.xlsx")
    title = pd.DataFrame([["Sales of 2024", None, None], [None] * 3, ["when", "a", "b"]])
    sheet = pd.concat([title, pd.DataFrame(frame.to_numpy(object))])
    sheet.to_excel(tmp_path / "title.xlsx", index=False, header=False, sheet_name="Q1")
    message = r"title\.xlsx:1: .* in sheet 'Q1', got none for 2 .*\(Sales of 2024\); remove rows"
    with pytest.raises(DataFormatError, match=message):
        data.load_series(tmp_path / "title.xlsx")


@pytest.mark.parametrize(
    ("text", "options", "message", "option"),
    [
        ("", {}, ":1: expected rows of a table, got none", None),
        ("a,b\n", {}, ":1: expected rows after the header, got none", None),
        ('a,b\n1,"2\n3,4\n', {}, ":2: expected cells .* got '1,\"2'", None),
        ("a\n1\n" + "x" * 200_000 + "\n", {}, ":3: expected cells", None),
        ("1,2\n3,4\n", {}, ":1: .* got only numbers; set whether it is a header", "header"),
        ("a,b\n1,2\n3\n", {}, ":3: expected 2 cells, as in the first line, got 1", None),
        ("a,b\n1,2\n3,4x\n", {}, r":3: expected a finite number in column 2 \(b\), got '4x'",
         "channels"),
        ("a,b\n1,x\n", {}, r":2: .* column 2 \(b\), got 'x'; .* missing_values=", "missing_values"),
        ("a,b\n1,1_0\n", {}, "got '1_0'", None),
        ("a;b\n1;1,234\n", {}, ":2: .* got '1,234'; .* decimal=.* separates thousands", "decimal"),
        ("a;b\n1;1,234,567\n", {}, ":2: .* got '1,234,567', with separators of thousands", None),
        ("a;b\n1;1,234.5\n", {}, ":2: .* separators of thousands; remove .* thousands=", None),
        ("a,b\n1,$5\n", {}, ":2: .* got '\\$5', a number with its unit; write", None),
        ("a,b\n1,5 EUR\n", {}, ":2: .* got '5 EUR', a number with its unit", None),
        ("a,b\n1,True\n", {}, ":2: .* got 'True', a truth value; write 1 and 0", None),
        ("<!DOCTYPE html>\n<html>\n", {}, ":1: expected a table, got an HTML page; download", None),
        ("a,b\n1,inf\n", {}, "got 'inf'", None),
        ("a,b\n1,2\n3,inf\n", {}, ":3: .* got inf", None),
        ("0.78,1.x6\n1,2\n", {}, r":1: .* got '1\.x6' next to '0\.78'; correct the cell", None),
        ("2016-07-0x,1.5\n2016-07-02,2\n", {}, ":1: .* got '2016-07-0x' next to '1.5'", None),
        ("2016-07-01,1.x6\n2016-07-02,2\n", {}, ":1: expected a finite number .* '1.x6'", None),
        ("1.x6\n2\n", {}, r":1: .* got '1\.x6', a name or a damaged number", None),
        (",2\n3,4\n", {}, ":1: .* got only numbers; set whether it is a header", None),
        ("date\n2024-01-01\n", {}, ":2: .* numbers in addition to times .* 1 rows of date",
         "separator"),
        ("a,a\n1,2\n", {}, ":1: .* got 'a' twice", None),
        ("date,a,n,n\n2024-01-01,1,2,3\n", {"channels": ["n"]}, ":1: .* got 'n' twice", None),
        (",a\n0,1\n", {}, ":1: expected a name for each column, got none for column 1", None),
        ("a,b\n1,2\n", {"channels": ["c"]}, "unknown channel 'c'; .*toy.csv has a, b", "channels"),
        ("a,b\n1,2\n", {"channels": ["a", "a"]}, "expected each channel once, got 'a' twice",
         "channels"),
        ("2016-07-01;5,8;3,5\n2016-07-02;5,9;3,6\n", {},
         ":1: .* got ',' and ';' as possible separators; choose one .* separator=", "separator"),
        ("date;a\n2016-07-01;5,8\n", {},
         r":2: expected a number with decimals after '\.' .* got '5,8'; .* decimal=", "decimal"),
        ("date;a\n2016-07-01;1.234,5\n", {"dialect": COMMAS}, ":2: .* separators of thousands",
         "channels"),
        ("date;a\n2016-07-01;1.234\n", {"dialect": COMMAS},
         r":2: expected a number with decimals after ',' .* got '1\.234'; .* thousands", "decimal"),
        ("date,a\n2024-01-01,1\nsoon,2\n", {}, ":3: expected a time .* got 'soon'", "time_column"),
        ("date,a\n2024-02-29,1\n2024-02-30,2\n", {}, ":3: expected a time .* '2024-02-30'", None),
        ("date,a\n2024-01-01,1\n,2\n", {}, ":3: expected a time .*date.*, got ''", None),
        ("date,a\n1/7/2016,1\n", {},
         ":2: expected a time .* got '1/7/2016'; .* day_first=True or month_first", "day_first"),
        ("date,a\n13.13.2016,1\n", {"dialect": Dialect(day_first=True)}, ":2: expected a time",
         "time_column"),
        ("date,a\n1 Jul 2016,1\n", {"dialect": Dialect(date_format="%d.%m.%Y")},
         ":2: expected a time of the format '%d.%m.%Y' .* got '1 Jul 2016'", "date_format"),
        ("date,a\n2016-07-01,1\n", {"dialect": Dialect(time_unit="s")},
         r":2: expected seconds since 1970 in column 1 \(date\), got '2016-07-01'", "time_unit"),
        ("date,a\n1e30,1\n", {"dialect": Dialect(time_unit="s")}, ":2: expected seconds", None),
        ("date,a\n2016-07-01T00:00Z,1\n2016-07-01T01:00,2\n", {},
         ":3: expected a time with its offset from UTC .* with no offset.* timezone=", "timezone"),
        ("date,a\n2016-07-01T00:00,1\n2016-07-01T01:00+01:00,2\n", {},
         ":3: expected a time with no offset from UTC .* with its offset", "timezone"),
        ("date,a\n2016-03-27 01:30,1\n2016-03-27 02:30,2\n", {"dialect": ZURICH},
         ":3: .* Europe/Zurich show once, got '2016-03-27 02:30:00', which they skip", "timezone"),
        ("date,a\n2016-10-30 01:30,1\n2016-10-30 02:30,2\n2016-10-30 03:30,3\n",
         {"dialect": ZURICH}, ":3: .*Zurich show once, got .* which they show twice", "timezone"),
        ("date,a\n2016-10-30 02:50,1\n2016-10-30 02:00,2\n", {},
         ":3: expected a time after 2016-10-30 02:50:00.* with their offset", "timezone"),
        ("date,a\n2024-01-03,1\n2024-01-02,2\n2024-01-01,3\n", {},
         ":3: .*; sort the rows by time; the newest row comes first$", None),
        ("date,a\n2023-02-28,1\n2023-02-30,2\n", {},
         r":3: .* column 1 \(date\), got '2023-02-30', but there is no 30 February 2023; ", None),
        ("date,a,b\n2024-01-01,1,x\n2024-01-02,2,y\n2024-01-03,3,z\n", {},
         ":2: .* further cells of the column are not numbers; read other columns only", "channels"),
        ("a,when\n1,2016-07-01\n", {}, ":2: .* with time_column=", "time_column"),
        ("Date;Time;a\n16/12/2006;17:24:00;1\n", {"dialect": Dialect(day_first=True)},
         r":2: .*\(Time\), got '17:24:00'.* time_column=\('Date', 'Time'\)", "time_column"),
        ("Date;Time;a\n1/2/2006;17:24:00;1\n1/2/2006;17:25:00;2\n",
         {"dialect": Dialect(day_first=True), "channels": ["a"]},
         r":3: .* got 1 of 1 .* time_column=\('Date', 'Time'\)", "time_column"),
        ("when,a,when\n2016-07-01,1,2\n", {"dialect": Dialect(time_column="when")},
         ":1: expected distinct column names, got 'when' twice", None),
        ("date,a\n1,2\n", {"dialect": Dialect(time_column="when")},
         r"unknown column 'when'; .*toy\.csv has date, a", "time_column"),
        ("2016-07-01,1\n", {"header": False, "dialect": Dialect(time_column="when")},
         "expected a header that names the column 'when'", "header"),
        ("date,shop,a\n2024-01-01,x,1\n2024-01-02,,1\n", {"id_column": "shop"},
         r":3: expected the name of a series in column 2 \(shop\)", "id_column"),
        ("date,shop,a\n2024-01-02,x,1\n2024-01-01,x,1\n", {"id_column": "shop"},
         ":3: expected a time after 2024-01-02", "id_column"),
        ("date,store,a\n2024-01-02,x,1\n", {"id_column": "shop"},
         "unknown column 'shop'; .* has date, store, a", "id_column"),
        ("date,shop\n2024-01-01,x\n", {"id_column": "shop"},
         ":2: .* a column of numbers in addition to times", None),
        ("date,a\n2024-01-01,1\n2024-01-02,2\n2024-01-01,3\n", {}, ":4: .* id_column=",
         "id_column"),
        ("unique_id,ds,y\n1,2024-01-01,1\n2,2024-01-01,2\n", {},
         "expected one series, got 2 in column 'unique_id'; .* load_long", "id_column"),
    ],
)  # fmt: skip
def test_what_is_refused_names_its_line_and_its_option(tmp_path, text, options, message, option):
    with pytest.raises(OptionError, match=r"(?s)" + message) as error:
        load(write(tmp_path, text), **options)
    assert "toy.csv" in str(error.value) or "once" in message
    assert option is None or option in error.value.options


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"separator": " "}, ("separator",)),
        ({"separator": ",", "decimal": ","}, ("separator", "decimal")),
        ({"day_first": True, "month_first": True}, ("day_first", "month_first")),
        ({"day_first": True, "date_format": "%Y"}, ("day_first", "date_format")),
        ({"time_unit": "years"}, ("time_unit",)),
        ({"time_column": ("a", "b", "c")}, ("time_column",)),
        ({"timezone": "Berlin"}, ("timezone",)),
        ({"encoding": "utf-7000"}, ("encoding",)),
        ({"missing_values": "-9999"}, ("missing_values",)),
    ],
)
def test_options_that_do_not_go_together(options, names):
    with pytest.raises(OptionError) as error:
        Dialect(**options)
    assert error.value.options == names


LONG = (
    "date,shop,sales,open\n2024-01-01,Bern,5,1\n2024-01-01,Uri,1,0\n2024-01-02,Bern,6,1\n"
    "2024-01-03,Bern,,1\n2024-01-03,Uri,2,1\n"
)


def test_several_series_in_one_table(tmp_path):
    bern, uri = load(write(tmp_path, LONG), id_column="shop")
    assert (bern.name, uri.name) == ("Bern", "Uri") and bern.channels == ("sales", "open")
    np.testing.assert_array_equal(bern.values, [[5, 1], [6, 1], [NAN, 1]])
    np.testing.assert_array_equal(uri.values, [[1, 0], [2, 1]])
    assert str(uri.index[1]) == "2024-01-03 00:00:00" and uri.place(1) == "line 6"
    (only, _) = load(write(tmp_path, LONG), id_column="shop", channels=["open"])
    assert only.channels == ("open",) and only.num_missing == 0
    untimed = load(write(tmp_path, "shop,a\nx,1\ny,2\nx,3\n"), id_column="shop")
    assert [series.values.ravel().tolist() for series in untimed] == [[1, 3], [2]]
    assert untimed[0].times is None


DAYS = [f"2024-01-{day:02d}" for day in range(1, 11)]


@pytest.mark.parametrize("shops", [("Bern", "Uri"), (7, 3)])
@pytest.mark.parametrize("first", ["blocks", "days"])
def test_the_column_of_ids_is_proposed(tmp_path, shops, first):
    """Of words and of numbers, series one after the other and mixed; beside a constant column."""
    cells = [(shop, day, which + 0.5) for shop in shops for which, day in enumerate(DAYS)]
    if first == "days":
        cells.sort(key=lambda cell: cell[1])
    rows = "".join(f"{day},{sales},{shop},1\n" for shop, day, sales in cells)
    path = write(tmp_path, "date,sales,shop,open\n" + rows)
    with pytest.raises(DataFormatError, match="give id_column='shop'") as error:
        data.load_series(path)
    assert error.value.values["id_column"] == "shop" and error.value.options == ("id_column",)
    assert len(str(error.value)) < 300
    assert [one.num_steps for one in load(path, id_column="shop")] == [10, 10]


@pytest.mark.parametrize(
    "rows",
    [
        [(day, "six", "x") for day in DAYS],  # times rise
        [(day, which % 3, f"n{which}") for which, day in enumerate([*DAYS[:4], *DAYS[:4]])],
        [("noon", "six", "x")] * 4,  # no times
        [(day, "six" if day == DAYS[4] else 1, 1) for day in DAYS],  # a damaged cell
    ],
)
def test_other_tables_have_no_column_of_ids(tmp_path, rows):
    text = "date,sales,note\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)
    with pytest.raises(DataFormatError) as error:
        data.load_series(write(tmp_path, text))
    assert "id_column" not in error.value.values


TWICE = "# c\ndate,a\n2024-01-01,1\n2024-01-02,2\n2024-01-02,3\n\n2024-01-04,4\n2024-01-05,5\n"


def test_repeated_and_missing_times_stay(tmp_path):
    series = data.load_series(write(tmp_path, TWICE))
    assert series.times is not None and series.values.ravel().tolist() == [1, 2, 3, 4, 5]
    assert series.times.day.tolist() == [1, 2, 2, 4, 5] and series.freq == "D"
    assert (series.repeated.tolist(), series.gaps.tolist(), series.num_gaps) == ([2], [3], 1)
    assert [series.place(row) for row in (2, 3)] == ["line 5", "line 7"]
    with pytest.raises(DataFormatError, match=r"toy\.csv:5: expected a time after 2024-01-02") as e:
        data.load_series(write(tmp_path, TWICE), times="strict")
    assert "drop repeated rows" in str(e.value) and e.value.options == ("times",)
    path = write(tmp_path, "date,a\n2024-01-01,1\n2024-01-01,2\n")
    with pytest.raises(DataFormatError, match=r"toy\.csv:3: .* got 1 of 1 .* times='irregular'"):
        data.load_series(path)
    series = data.load_series(path, times="irregular")
    assert series.freq is None and series.num_gaps == 0 and series.repeated.tolist() == [1]


def test_labeled_examples_are_no_table(tmp_path):
    with pytest.raises(ValueError, match=r"labeled examples .*train classify"):
        data.load_series(write(tmp_path, "@data\n", "toy.ts"))


def test_the_columns_of_a_wide_table_are_read_in_time(tmp_path, bounded):
    names = [f"sensor {i}" for i in range(60_000)]
    path = write(tmp_path, ",".join(names) + "\n" + ",".join("1" * len(names)) + "\n")
    with bounded():
        series = data.load_series(path, channels=names[::-1])
        assert series.select(names).values.shape == (1, len(names))
    with bounded(), pytest.raises(ValueError, match=r"has sensor 0, .* and 59,980 more; choose"):
        data.load_series(path, channels=["none"])


@pytest.mark.parametrize("odd", ["", "\n\n", "# restart\n", '2000-01-01, "1"\n'])
def test_long_tables_are_read_as_short_ones(tmp_path, odd):
    """Past the block that is read at a time, with what only the slower reader knows."""
    minutes = pd.date_range("2001-01-01", periods=1000, freq="min")
    lines = [f"{time},{i}.25\n" for i, time in enumerate(minutes)]
    path = write(tmp_path, "date,a\n" + odd + "".join(lines))
    with mock.patch.object(tables, "_BLOCK", 2**12):
        series = data.load_series(path)
        rows = series.values.ravel()[-len(lines) :]
        np.testing.assert_array_equal(rows, np.arange(len(lines)) + 0.25)
        assert series.lines is not None
        assert series.lines[-1] == 1 + odd.count("\n") + len(lines)
        lines[700] = lines[700].replace(".25", ".x")
        path.write_text("date,a\n" + odd + "".join(lines))
        with pytest.raises(DataFormatError, match=rf":{702 + odd.count(chr(10))}: .*'700\.x'"):
            data.load_series(path)


TWO = ("Date", "Time")


@pytest.mark.parametrize(
    ("date", "clock", "options", "time"),
    [
        ("16/12/2006", "17:24:00", {"day_first": True}, "2006-12-16 17:24"),
        ("2006-12-16", "5:24", {}, "2006-12-16 05:24"),
        ("16.12.06", "17:24:00.5", {"date_format": "%d.%m.%y"}, "2006-12-16 17:24:00.5"),
        ("16.12.06", "5:24 PM", {"date_format": "%d.%m.%y %I:%M %p"}, "2006-12-16 17:24"),
        ("2006-12-16", "17:24", {"timezone": "Asia/Tokyo"}, "2006-12-16 17:24+09:00"),
        ("2006-12-16", "17:24+02:00", {"timezone": "UTC"}, "2006-12-16 15:24+00:00"),
    ],
)
def test_dates_and_clock_times_of_two_columns(tmp_path, date, clock, options, time):
    """One by one, as in a stream, and as columns of a file."""
    dialect = Dialect(time_column=TWO, **options)
    joined = join_date_and_clock(date, clock, dialect)
    assert pd.Timestamp(joined) == pd.Timestamp(time)
    path = write(tmp_path, f"Date,Time,v\n{date},{clock},1\n")
    (found,) = data.load_series(path, dialect=dialect).index
    assert found == joined and found.utcoffset() == joined.utcoffset()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "2016-07-02,",
            r"a time of day next to '2016-07-02' .*\(Date\) and .*, got an empty",
        ),
        (",2:00", "a date next to '2:00' in .*, got an empty cell; fill in the cell, or drop"),
        ("2016-07-02,noon", "got '2016-07-02 noon'"),
    ],
)
def test_a_date_without_its_clock_time_is_refused(tmp_path, row, message):
    """It is not midnight."""
    path = write(tmp_path, f"Date,Time,v\n2016-07-01,1:00,1\n{row},2\n")
    with pytest.raises(DataFormatError, match=rf"toy\.csv:3: .*{message}"):
        data.load_series(path, dialect=Dialect(time_column=TWO))
    date, clock = row.split(",")
    with pytest.raises(BadTimeError):
        join_date_and_clock(date, clock, Dialect())


def test_offsets_of_a_zone_are_its_own():
    time = Dialect(timezone="Europe/Zurich").time("2016-07-01 02:00")
    assert time == datetime(2016, 7, 1, 2, tzinfo=ZoneInfo("Europe/Zurich"))
    assert Dialect().time("2016-13-01") is None and Dialect().time("12") is None
    for text in ("2016-07-01T02:00:00Z", "2016-07-01 07:00:00+05:00", "2016/7/1 4:00 +0200"):
        assert Dialect().time(text) == datetime(2016, 7, 1, 2, tzinfo=ZoneInfo("UTC"))


def test_years_of_a_panel_are_times(tmp_path):
    """They rise within each series, not over the file."""
    path = tmp_path / "gdp.csv"
    path.write_text("country,Year,gdp\nA,2000,1\nA,2001,2\nA,2002,3\nB,1990,4\nB,1991,5\n")
    a, b = data.load_long(path, id_column="country")
    assert a.channels == ("gdp",) and a.has_integer_times and a.freq is None
    assert a.index.tolist() == [2000, 2001, 2002] and b.index.tolist() == [1990, 1991]
    path.write_text("country,gdp,Year\nA,1,2000\nA,2,2001\nB,4,1990\nB,5,1991\n")
    a, b = data.load_long(path, id_column="country")
    assert a.channels == ("gdp",) and b.index.tolist() == [1990, 1991]


def test_series_of_a_panel_share_their_times(tmp_path):
    """So that a frequency is inferred, and gaps are found, once for all of them."""
    days = [f"2024-01-{day:02}" for day in (1, 2, 3, 5, 5)]
    rows = [f"{shop},{day},{i}\n" for shop in "abc" for i, day in enumerate(days)]
    path = write(tmp_path, "shop,date,sales\n" + "".join(rows) + "d,2024-02-01,1\nd,2024-02-08,1\n")
    a, b, c, d = data.load_long(path, id_column="shop")
    assert a.index is b.index is c.index and a.gaps is c.gaps and a.name == "a" and b.name == "b"
    assert b.gaps.tolist() == [3] and b.repeated.tolist() == [4] and d.gaps.tolist() == []
    assert c.lines is not None and c.lines.tolist() == [12, 13, 14, 15, 16] and d.freq == "W-THU"


def test_years_from_the_newest_on_are_refused_as_dates_are(tmp_path):
    path = write(tmp_path, "P,Year\n1,1952\n2,1951\n3,1950\n")
    with pytest.raises(data.DataFormatError, match="the newest row comes first"):
        data.load_series(path)
    assert data.load_series(path, channels=["P", "Year"]).channels == ("P", "Year")


def test_a_year_that_repeats_is_a_time_and_reported(tmp_path):
    rows = "".join(f"{year},{year % 7}\n" for year in (1949, 1950, 1950, 1951))
    series = data.load_series(write(tmp_path, "Year,P\n" + rows))
    assert series.channels == ("P",) and series.step == "1"
    assert series.index.tolist() == [1949, 1950, 1950, 1951] and series.repeated.tolist() == [2]


@pytest.mark.parametrize("first", [1, -3, 1900, 12345])
@pytest.mark.parametrize("name", ["ds", "t"])
def test_integers_are_times(tmp_path, first, name):
    """Of a panel of Nixtla, or of a column that an option names."""
    panel = pd.DataFrame({"y": np.arange(6.0), "unique_id": ["A", "B"] * 3})
    panel[name] = first + np.repeat([0, 1, 2], 2)
    path = tmp_path / "panel.csv"
    panel.to_csv(path, index=False)
    panel.to_parquet(tmp_path / "panel.parquet")
    dialect = Dialect(time_column="" if name == "ds" else name)
    for found in (
        data.from_frame(panel, id_column="unique_id", time_column=dialect.time_column),
        data.load_long(path, id_column="unique_id", dialect=dialect),
        data.load_long(tmp_path / "panel.parquet", id_column="unique_id", dialect=dialect),
    ):
        for series in found:
            assert series.channels == ("y",)
            assert series.freq is None and series.step == "1"
            assert series.index.tolist() == [first, first + 1, first + 2]
    one = panel[panel.unique_id == "A"].drop(columns="unique_id")[[name, "y"]]
    assert data.from_frame(one, time_column=name).index.equals(found[0].index)
    with pytest.raises(DataFormatError, match=r"got 3 of 5 steps that differ .* id_column="):
        data.from_frame(panel.drop(columns="unique_id"), time_column=name)


def test_a_year_and_a_month_in_digits_are_no_numbers_of_rows(tmp_path):
    months = pd.date_range("2016-01", periods=30, freq="MS")
    path = write(tmp_path, "date,v\n" + "".join(f"{month:%Y%m},1\n" for month in months))
    with pytest.raises(DataFormatError, match=r"toy\.csv:2: .* got '201601'") as error:
        data.load_series(path)
    assert "date_format" in error.value.options
    series = data.load_series(path, dialect=Dialect(date_format="%Y%m"))
    assert series.freq == "MS" and series.index.equals(months)


def test_a_parquet_file_that_would_abort_pyarrow_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"a": ["x"] * 3, "b": [1, 2, 3]}).to_parquet(path)
    content = path.read_bytes()
    empty, levels = b"\x19\x06", b"\x19\x26\x00\x06"  # histograms of repetitions and definitions
    if empty + levels not in content:
        pytest.skip("this version of PyArrow writes other statistics")
    path.write_bytes(content.replace(empty + levels, levels + empty))
    program = f"from flax_linattn.data.series.load import load_series; load_series({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"DataFormatError: {path}: expected a whole Parquet file, got" in done.stderr


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_texts_that_are_not_utf_8_are_reported_with_the_file(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    frame = pd.DataFrame({"date": ["2024-01-01", "2024-01-02"], "a": [1, 2]})
    options = {"compression": None if suffix == "parquet" else "uncompressed"}
    getattr(frame, f"to_{suffix}")(path, **options)
    path.write_bytes(path.read_bytes().replace(b"2024-01-02", b"2024-01-\xff2"))
    with pytest.raises(DataFormatError, match=r"a whole \w+ file, got .*Invalid UTF8") as caught:
        data.load_series(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_encodings_of_texts_that_pyarrow_reads_without_references(tmp_path, encoding):
    path = tmp_path / "a.parquet"
    texts = ["2024-01-01", "2024-01-02"]
    options = {"use_dictionary": False, "column_encoding": {"date": encoding}}
    parquet.write_table(pa.table({"date": texts, "a": [1.0, 2.0]}), path, **options)
    assert data.load_series(path).values.ravel().tolist() == [1.0, 2.0]
    if encoding == "DELTA_BYTE_ARRAY":  # each text is a difference to the one before
        long = ["x" * 2**20] * 1100
        parquet.write_table(pa.table({"date": long, "a": [1.0] * 1100}), path, **options)
        with pytest.raises(ValueError, match=r"expected at most .* unpacked from"):
            data.load_series(path)


def test_version_1_of_feather_is_refused(tmp_path):
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(DataFormatError, match=r"a\.feather: expected an Arrow file .* version 1; "):
        data.load_series(tmp_path / "a.feather")
