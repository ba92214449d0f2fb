"""Tables in every dialect: what is written is read, and what is not understood names its option."""

import csv
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import data
from flax_linattn.checks import OptionError
from flax_linattn.data import DataFormatError, Dialect

SEPARATORS = {",": ",", ";": ";", "tab": "\t", "|": "|"}
FIRST = datetime(2016, 7, 1)


def write(tmp_path, text, name="toy.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def table(path, rows, dialect, place, hours):
    """Writes rows of two numbers in a dialect, with the times in some column."""

    def number(x):
        text = "-9999" if np.isnan(x) and dialect.missing_values else "" if np.isnan(x) else repr(x)
        return text.replace(".", dialect.decimal)

    def time(hour):
        when = FIRST + timedelta(hours=hour)
        if dialect.time_unit != "none":
            seconds = int((when - datetime(1970, 1, 1)).total_seconds())
            return str(seconds * {"s": 1, "ms": 1000}[dialect.time_unit])
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
    written = draw(st.sampled_from(["day_first", "month_first", "s", "ms", ""]))
    return Dialect(
        separator=draw(st.sampled_from([s for s in SEPARATORS if s != decimal])),
        decimal=decimal,
        time_column="when",
        day_first=written == "day_first",
        month_first=written == "month_first",
        time_unit=written if written in ("s", "ms") else "none",
        missing_values=draw(st.sampled_from([(), ("-9999",)])),
    )


@given(
    dialects(),
    st.lists(
        st.lists(st.floats(-9998, allow_infinity=False) | st.just(np.nan), min_size=2, max_size=2),
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
    series = data.load_table(path, header=True, dialect=dialect)
    np.testing.assert_array_equal(series.values, np.array(rows))
    assert series.channels == ("a, b", "c;d")
    assert series.times is not None and (series.time_zone == "UTC") == (dialect.time_unit != "none")
    assert series.times.tolist() == [
        FIRST.replace(tzinfo=series.times.tz) + timedelta(hours=hour) for hour in hours
    ]


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
def test_separators_that_leave_no_doubt_need_not_be_told(tmp_path, separator):
    text = "date,load,OT\n2016-07-01 00:00,5.5,\n2016-07-01 01:00,6,7\n".replace(",", separator)
    series = data.load_series(write(tmp_path, text))
    np.testing.assert_array_equal(series.values, [[5.5, np.nan], [6, 7]])
    empty = data.load_table(write(tmp_path, f"a{separator}b\n1{separator}2\n{separator}\n"))
    assert empty.num_steps == 2 and empty.num_missing == 2


def test_a_name_may_hold_other_separators(tmp_path):
    series = data.load_table(write(tmp_path, "date,load|MW,x|y\n2024-01-01,1,2\n2024-01-02,3,4\n"))
    assert series.channels == ("load|MW", "x|y")


def test_the_column_of_times_may_stand_anywhere(tmp_path):
    text = "a,when,b\n1,2024-01-01,2\n3,2024-01-02,4\n"
    series = data.load_table(write(tmp_path, text), dialect=Dialect(time_column="when"))
    assert series.channels == ("a", "b") and series.freq == "D"
    found = data.load_table(write(tmp_path, text.replace("when", "timestamp")))
    assert found.channels == ("a", "b") and found.freq == "D"
    numbers = data.load_table(write(tmp_path, "a,time\n1,35\n2,40\n"))
    assert numbers.channels == ("a", "time") and numbers.times is None


def test_times_with_offsets_are_utc_and_clocks_may_go_back(tmp_path):
    text = (
        "date,a\n2016-10-30T01:00:00+02:00,1\n2016-10-30T02:00:00+02:00,2\n"
        "2016-10-30T02:00:00+01:00,3\n2016-10-30T03:00:00+01:00,4\n"
    )
    series = data.load_table(write(tmp_path, text))
    assert series.time_zone == "UTC" and series.num_gaps == 0 and series.freq == "h"
    assert series.times is not None and str(series.times[0]) == "2016-10-29 23:00:00+00:00"
    local = text.replace("+02:00", "").replace("+01:00", "")
    assert data.load_table(write(tmp_path, local)).time_zone is None
    with pytest.raises(DataFormatError, match=r"toy\.csv:3: .* with their offset"):
        data.load_table(write(tmp_path, "date,a\n2016-10-30 02:50,1\n2016-10-30 02:00,2\n"))


COMMAS = Dialect(separator=";", decimal=",")


@pytest.mark.parametrize(
    ("text", "dialect", "message", "option"),
    [
        ("2016-07-01;5,8;3,5\n2016-07-02;5,9;3,6\n", Dialect(),
         r":1: .* got ',' and ';', each of which would do; say .* separator=", "separator"),
        ("date;a\n2016-07-01;5,8\n", Dialect(),
         r":2: expected a number with decimals after '\.' .* got '5,8'; .* decimal=", "decimal"),
        ("date;a\n2016-07-01;1.234,5\n", COMMAS, r":2: expected a finite number", "missing_values"),
        ("date;a\n2016-07-01;1.234\n", COMMAS,
         r":2: expected a number with decimals after ',' .* got '1\.234'; .* thousands", "decimal"),
        ("date,a\n1/7/2016,1\n", Dialect(),
         r":2: expected a time .* got '1/7/2016'; .* day_first=True or month_first", "day_first"),
        ("date,a\n13.13.2016,1\n", Dialect(day_first=True), r":2: expected a time", "time_column"),
        ("date,a\n1467331200,1\n", Dialect(),
         r":2: expected a time .* got '1467331200'; .* time_unit='s'", "time_unit"),
        ("date,a\n1467331200000,1\n", Dialect(), r":2: .* time_unit='ms'", "time_unit"),
        ("date,a\n2016-07-01,1\n", Dialect(time_unit="s"),
         r":2: expected seconds since 1970 in the first column, got '2016-07-01'", "time_unit"),
        ("date,a\n2016-07-01T00:00Z,1\n2016-07-01T01:00,2\n", Dialect(),
         r":3: expected a time with an offset from UTC, .* with none; write all", None),
        ("date,a\n2016-07-01T00:00,1\n2016-07-01T01:00+01:00,2\n", Dialect(),
         r":3: expected a time with none, .* with an offset", None),
        ("a,when\n1,2016-07-01\n", Dialect(), r":2: .* with time_column=", "time_column"),
        ("when,a,when\n2016-07-01,1,2\n", Dialect(time_column="when"),
         r":1: expected different names of columns, got 'when' twice", None),
        ("date,a\n2016-07-01,n/a\n", Dialect(), r":2: .* missing_values=", "missing_values"),
    ],
)  # fmt: skip
def test_what_is_not_understood_names_its_line_and_its_option(
    tmp_path, text, dialect, message, option
):
    with pytest.raises(DataFormatError, match=r"toy\.csv" + message) as error:
        data.load_table(write(tmp_path, text), dialect=dialect)
    assert option is None or option in error.value.options


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"separator": " "}, ("separator",)),
        ({"separator": ",", "decimal": ","}, ("separator", "decimal")),
        ({"day_first": True, "month_first": True}, ("day_first", "month_first")),
        ({"time_unit": "years"}, ("time_unit",)),
        ({"missing_values": "-9999"}, ("missing_values",)),
    ],
)
def test_options_that_do_not_go_together(options, names):
    with pytest.raises(OptionError) as error:
        Dialect(**options)
    assert error.value.options == names


def test_a_column_that_there_is_not(tmp_path):
    path = write(tmp_path, "date,a\n2016-07-01,1\n")
    with pytest.raises(OptionError, match=r"unknown column 'when'; .*toy\.csv has date, a"):
        data.load_table(path, dialect=Dialect(time_column="when"))
    with pytest.raises(OptionError, match="expected a header that names the column 'when'"):
        data.load_table(path, header=False, dialect=Dialect(time_column="when"))


LONG = (
    "date,shop,sales,open\n2024-01-01,Bern,5,1\n2024-01-01,Uri,1,0\n2024-01-02,Bern,6,1\n"
    "2024-01-03,Bern,,1\n2024-01-03,Uri,2,1\n"
)


def test_several_series_in_one_table(tmp_path):
    bern, uri = data.load_long(write(tmp_path, LONG), id_column="shop")
    assert (bern.name, uri.name) == ("Bern", "Uri") and bern.channels == ("sales", "open")
    np.testing.assert_array_equal(bern.values, [[5, 1], [6, 1], [np.nan, 1]])
    np.testing.assert_array_equal(uri.values, [[1, 0], [2, 1]])
    assert uri.times is not None and str(uri.times[1].date()) == "2024-01-03"
    assert uri.place(1) == "line 6"
    (only, _) = data.load_long(write(tmp_path, LONG), id_column="shop", channels=["open"])
    assert only.channels == ("open",) and only.num_missing == 0
    first = "shop,a\nx,1\ny,2\nx,3\n"
    untimed = data.load_long(write(tmp_path, first), id_column="shop")
    assert [series.values.ravel().tolist() for series in untimed] == [[1, 3], [2]]
    assert untimed[0].times is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LONG.replace("Uri,2", ",2"), r"toy\.csv:6: expected the name of a series in column 2"),
        (LONG.replace("2024-01-02", "2023-01-02"), r"toy\.csv:4: expected a time after 2024-01-01"),
        (LONG.replace("shop", "store"), r"unknown column 'shop'; .* has date, store, sales, open"),
        ("date,shop\n2024-01-01,x\n", r"toy\.csv:2: expected a column of numbers beside"),
    ],
)
def test_bad_tables_of_several_series(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        data.load_long(write(tmp_path, text), id_column="shop")


def test_several_series_without_an_id_are_told_of_it(tmp_path):
    text = "date,a\n2024-01-01,1\n2024-01-02,2\n2024-01-01,3\n"
    with pytest.raises(DataFormatError, match=r"toy\.csv:4: .* id_column=") as error:
        data.load_table(write(tmp_path, text))
    assert error.value.options == ("id_column",)
