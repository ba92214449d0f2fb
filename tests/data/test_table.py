"""Tables and .tsf files: real ones, and bad ones with their messages."""

import dataclasses
import gzip
import lzma
from datetime import UTC

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import data
from flax_linattn.data import DataFormatError
from flax_linattn.data.cells import parse_time


def write(tmp_path, text, name="toy.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_the_embedded_series():
    series = data.etth1()
    assert series.values.shape == (17420, 7) and series.num_gaps == series.num_missing == 0
    assert series.freq == "h"
    assert series.times is not None and str(series.times[-1]) == "2018-06-26 19:00:00"
    np.testing.assert_allclose(series.values[0, [0, -1]], [5.827, 30.531], atol=1e-6)


@pytest.mark.parametrize(
    ("file", "shape", "freq"),
    [
        ("ett/ETTm2.csv.gz", (69680, 7), "15min"),
        ("exchange_rate/exchange_rate.csv", (7588, 8), "D"),
        ("exchange_rate/exchange_rate.txt.gz", (7588, 8), None),
        ("electricity_subset/electricity_2clients_full_length.csv.gz", (26304, 2),
         "h"),
        ("electricity_subset/electricity_weekly_dataset.tsf.gz", (156, 321),
         "W-SUN"),
    ],
)  # fmt: skip
def test_official_files(file, shape, freq, data_dir):
    series = data.load_series(data_dir / file)
    assert series.values.shape == shape and series.freq == freq


def test_the_file_that_was_cut_short(data_dir):
    path = data_dir / "traffic_subset" / "traffic_862sensors_first25rows_truncated.csv"
    with pytest.raises(DataFormatError, match=r"truncated\.csv:27: expected 863 cells, .* got 242"):
        data.load_series(path)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_compressed_or_not(tmp_path, suffix):
    text = "# a comment\ndate,a\n2024-01-01,1\n\n2024-01-02,2\n"
    path = tmp_path / f"toy.csv{suffix}"
    opened = {"": open, ".gz": gzip.open, ".xz": lzma.open}[suffix]
    with opened(path, "wt") as file:
        file.write(text)
    series = data.load_series(path)
    assert series.values.ravel().tolist() == [1, 2] and series.name == "toy"


@given(
    st.lists(
        st.lists(st.floats(allow_infinity=False, width=64), min_size=2, max_size=2), min_size=1
    )
)
def test_what_is_written_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("table") / "toy.csv"
    lines = [",".join("" if np.isnan(x) else repr(x) for x in row) for row in rows]
    path.write_text("a,b\n" + "\n".join(lines) + "\n")
    np.testing.assert_array_equal(data.load_table(path).values, np.array(rows))


def test_headers(tmp_path):
    numbers = "10,20\n1,2\n"
    assert data.load_table(write(tmp_path, numbers), header=True).channels == ("10", "20")
    assert data.load_table(write(tmp_path, numbers), header=False).num_steps == 2
    assert data.load_table(write(tmp_path, numbers, "toy.txt")).channels == ("0", "1")
    timed = data.load_table(write(tmp_path, "2024-01-01 00:00,1\n2024-01-01 01:00,2\n"))
    assert timed.channels == ("0",) and timed.freq == "h"
    days = data.load_table(write(tmp_path, "Date,a\n20240101,1\n20240102,2\n"))
    assert days.channels == ("a",) and days.freq == "D"
    quoted = data.load_table(write(tmp_path, '"date","b, c"\n"2024-01-01 00:00","1"\n'))
    assert quoted.channels == ("b, c",) and quoted.values.tolist() == [[1.0]]
    missing = data.load_table(write(tmp_path, "a,b\n?,NA\n1,\n"))
    assert missing.num_missing == 3


def test_columns_that_are_not_read_may_hold_anything(tmp_path):
    text = "date,a,store,b,note,note\n2024-01-01,1,Zurich,2,x,y\n2024-01-02,3,Bern,4,,\n"
    series = data.load_series(write(tmp_path, text), channels=("b", "a"))
    assert series.channels == ("b", "a") and series.values.tolist() == [[2, 1], [4, 3]]
    assert series.times is not None
    plain = data.load_table(write(tmp_path, "1,x,3\n"), header=False, channels=["2"])
    assert plain.values.tolist() == [[3.0]]
    with pytest.raises(ValueError, match=r"unknown channel 'c'; .*toy\.csv has a, store, b"):
        data.load_table(write(tmp_path, text), channels=["c"])
    with pytest.raises(ValueError, match="expected each channel once, got 'a' twice"):
        data.load_table(write(tmp_path, text), channels=["a", "a"])
    with pytest.raises(DataFormatError, match=r"toy\.csv:1: .* got 'note' twice"):
        data.load_table(write(tmp_path, text), channels=["note"])
    with pytest.raises(DataFormatError, match=r"column 2 \(b\), got 'x'; .* channels="):
        data.load_table(write(tmp_path, "a,b\n1,x\n"))


def test_channels_of_a_tsf_file(tmp_path):
    text = TSF.format("daily", "true") + "".join(
        f"{name}:2024-01-01 00-00-00:{values}\n" for name, values in (("a", "1,2"), ("b", "3,4"))
    )
    series = data.load_series(write(tmp_path, text, "toy.tsf"), channels=["b"])
    assert series.channels == ("b",) and series.values.tolist() == [[3.0], [4.0]]


def test_labelled_examples_are_no_table(tmp_path):
    with pytest.raises(ValueError, match=r"labelled examples .* train classify"):
        data.load_series(write(tmp_path, "@data\n", "toy.ts"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"toy\.csv:1: expected rows of numbers, got none"),
        ('a,b\n1,"2\n3,4\n', r"toy\.csv:2: expected cells .* got '1,\"2'"),
        ("a\n1\n" + "x" * 200_000 + "\n", r"toy\.csv:3: expected cells"),
        ("a,b\n", r"toy\.csv:1: expected rows of numbers after the header, got none"),
        ("1,2\n3,4\n", r"toy\.csv:1: .* got numbers alone; say whether it is a header"),
        ("a,b\n1,2\n3\n", r"toy\.csv:3: expected 2 cells, as in the first line, got 1"),
        ("a,b\n1,2\n3,4x\n", r"toy\.csv:3: expected a finite number in column 2 \(b\), got '4x'"),
        ("a,b\n1,1_0\n", r"got '1_0'"),
        ("a,b\n1,inf\n", r"got 'inf'"),
        ("date,a\n2024-01-01,1\nsoon,2\n", r"toy\.csv:3: expected a time .* got 'soon'"),
        ("date,a\n2024-01-02,1\n2024-01-01,2\n", r"toy\.csv:3: expected a time after 2024-01-02"),
        ("0.78,1.x6\n1,2\n", r"toy\.csv:1: .* got '1\.x6' beside '0\.78'; correct the cell"),
        ("2016-07-0x,1.5\n2016-07-02,2\n", r"toy\.csv:1: .* got '2016-07-0x' beside '1\.5'"),
        ("2016-07-01,1.x6\n2016-07-02,2\n", r"toy\.csv:1: expected a finite number .* '1\.x6'"),
        ("1.x6\n2\n", r"toy\.csv:1: .* got '1\.x6', a name or a damaged number"),
        (",2\n3,4\n", r"toy\.csv:1: .* got numbers alone; say whether it is a header"),
        ("date\n2024-01-01\n", r"a column of numbers beside the times, got none"),
        ("a,a\n1,2\n", r"toy\.csv:1: .* got 'a' twice"),
        ("a,when\n1,2024-01-01\n", r"expected times in the first column, and numbers in column 2"),
        (",a\n0,1\n", r"toy\.csv:1: expected a name for each column, got none for column 1"),
        ("date,a\n1704067200,1\n", r"toy\.csv:2: expected a time such as .* got '1704067200'"),
    ],
)
def test_bad_tables_are_named(tmp_path, text, message):
    with pytest.raises(DataFormatError, match=message):
        data.load_table(write(tmp_path, text))


TWICE = "# c\ndate,a\n2024-01-01,1\n2024-01-02,2\n2024-01-02,3\n\n2024-01-04,4\n2024-01-05,5\n"


def test_repeated_and_missing_times_are_kept_and_told(tmp_path):
    series = data.load_series(write(tmp_path, TWICE))
    assert series.times is not None and series.values.ravel().tolist() == [1, 2, 3, 4, 5]
    assert series.times.astype(str).tolist() == [f"2024-01-0{day}" for day in (1, 2, 2, 4, 5)]
    assert series.freq == "D"
    assert (series.repeated.tolist(), series.gaps.tolist(), series.num_gaps) == ([2], [3], 1)
    assert [series.place(row) for row in (2, 3)] == ["line 5", "line 7"]
    with pytest.raises(DataFormatError, match=r"toy\.csv:5: expected a time after 2024-01-02") as e:
        data.load_series(write(tmp_path, TWICE), times="strict")
    assert "drop repeated ones" in str(e.value) and e.value.options == ("times",)
    fewer = dataclasses.replace(series, values=series.values[1:], index=None)
    assert fewer.lines is None and fewer.place(0) == "row 0, from 0"


def test_times_that_all_repeat_have_no_step(tmp_path):
    path = write(tmp_path, "date,a\n2024-01-01,1\n2024-01-01,2\n")
    with pytest.raises(DataFormatError, match=r"toy\.csv:3: .* got 1 of 1 .* times='irregular'"):
        data.load_table(path)
    series = data.load_table(path, times="irregular")
    assert series.freq is None and series.num_gaps == 0 and series.repeated.tolist() == [1]
    with pytest.raises(ValueError, match="times that never fall"):
        dataclasses.replace(series, index=pd.DatetimeIndex(["2024-01-02", "2024-01-01"]))


def test_the_columns_of_a_wide_table_are_read_in_time(tmp_path, bounded):
    names = [f"sensor {i}" for i in range(60_000)]
    path = write(tmp_path, ",".join(names) + "\n" + ",".join("1" * len(names)) + "\n")
    with bounded():
        series = data.load_series(path, channels=names[::-1])
        assert series.select(names).values.shape == (1, len(names))
        with pytest.raises(ValueError, match=r"has sensor 0, .* and 59,980 more; choose"):
            data.load_table(path, channels=["none"])


def test_times_as_files_write_them():
    hour = parse_time("2016-07-01 02:00:00")
    assert hour is not None and parse_time("2016/7/1 2:00") == hour
    for text in ("2016-07-01T02:00:00Z", "2016-07-01 07:00:00+05:00", "2016/7/1 4:00 +0200"):
        assert parse_time(text) == hour.replace(tzinfo=UTC)
    assert parse_time("2016/13/1") is None and parse_time("12") is None


TSF = (
    "# made for a test\n@relation toy\n@attribute series_name string\n"
    "@attribute start_timestamp date\n@frequency {}\n@horizon 2\n@missing true\n"
    "@equallength {}\n@data\n"
)


def test_tsf_times_follow_the_frequency(tmp_path):
    for frequency, last in (
        ("half_hourly", "2024-01-31 10:00:00"),
        ("10_minutes", "2024-01-31 09:20:00"),
        ("monthly", "2024-03-31 09:00:00"),
        ("yearly", "2026-01-31 09:00:00"),
    ):
        text = TSF.format(frequency, "false") + "T1:2024-01-31 09-00-00:1,2,?\n"
        (series,) = data.load_tsf(write(tmp_path, text, "toy.tsf"))
        assert series.times is not None and str(series.times[-1]) == last
        assert series.num_missing == 1
        if frequency == "monthly":
            assert str(series.times[1]) == "2024-02-29 09:00:00"  # the last day


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", r"toy\.tsf:9: expected series after @data, got none"),
        ("T1:2024-01-01 00-00-00\n", r"toy\.tsf:10: expected 2 attributes and the values"),
        ("T1:yesterday:1\n", r"expected a date such as .* got 'yesterday'"),
        ("T1:2024-01-01 00-00-00:NA,b\n", r"toy\.tsf:10: expected finite numbers .* got 'b'"),
        ("T1:2024-01-01 00-00-00:1e999\n", r"got '1e999'"),
        ("T1:2024-01-01 00-00-00:1,23", r"toy\.tsf:10: expected a newline at the end"),
        (
            "T1:2024-01-01 00-00-00:1\n\nT1:2024-01-02 00-00-00:2\n",
            r"toy\.tsf:12: expected series of different names, got 'T1' again \(first on line 10\)",
        ),
        ("T1:2024-01-01 00-00-00:1\nT2:2024-01-01 00-00-00:1,2\n", r"of one length, as @equal"),
    ],
)
def test_bad_tsf_files_are_named(tmp_path, body, message):
    with pytest.raises(DataFormatError, match=message):
        data.load_tsf(write(tmp_path, TSF.format("daily", "true") + body, "toy.tsf"))
    for frequency in ("often", "10 minutes", "0_minutes", "", "9" * 5000 + "_daily"):
        with pytest.raises(DataFormatError, match=r"toy\.tsf:5: .* such as 10_minutes"):
            data.load_tsf(write(tmp_path, TSF.format(frequency, "true"), "toy.tsf"))
    text = TSF.format("daily", "true").replace("@missing true", "@missing false")
    with pytest.raises(DataFormatError, match="no missing values, as the header has"):
        data.load_tsf(write(tmp_path, text + "T1:2024-01-01 00-00-00:1,?\n", "toy.tsf"))


@pytest.mark.parametrize(
    ("frequency", "start", "length"),
    [
        ("999999999_weekly", "2024-01-01", 2),
        ("999999999_yearly", "2024-01-01", 2),
        ("100_yearly", "2024-01-01", 81),
        ("monthly", "9999-11-30", 3),
        ("daily", "9999-12-31", 2),
    ],
)
def test_tsf_times_that_would_wrap_are_refused(tmp_path, frequency, start, length):
    def text(length):
        return TSF.format(frequency, "true") + f"T1:{start} 00-00-00:{'1,' * (length - 1)}2\n"

    with pytest.raises(DataFormatError, match=r"toy\.tsf:10: expected times up to the year 9999"):
        data.load_tsf(write(tmp_path, text(length), "toy.tsf"))
    (series,) = data.load_tsf(write(tmp_path, text(length - 1), "toy.tsf"))
    assert series.times is not None and "2024" <= str(series.times[-1]) <= "9999-12-31 23:59:59"


def test_a_tag_of_a_tsf_file_stands_once(tmp_path):
    text = "@frequency daily\n@frequency hourly\n@data\n1\n"
    with pytest.raises(
        DataFormatError, match=r"toy\.tsf:2: expected @frequency once, got it again"
    ):
        data.load_tsf(write(tmp_path, text, "toy.tsf"))


def test_series_of_other_times_are_no_table(tmp_path):
    text = TSF.format("daily", "false")
    text += "T1:2024-01-01 00-00-00:1,2\nT2:2024-01-02 00-00-00:1,2\n"
    path = write(tmp_path, text, "toy.tsf")
    with pytest.raises(ValueError, match=r"toy\.tsf: .* T2 \(line 11\) has 2 .*channels="):
        data.load_series(path)
    assert data.load_series(path, channels=["T2"]).channels == ("T2",)
    with pytest.raises(ValueError, match=r"unknown channel 'T3'; .*toy\.tsf has T1, T2"):
        data.load_series(path, channels=["T3"])
