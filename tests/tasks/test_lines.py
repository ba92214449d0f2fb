"""Lines of streams: comments, unfinished lines, and places in messages, whatever the task."""

import gzip
import io
import lzma
import os
import sys
from datetime import datetime

import numpy as np
import pandas as pd
import pytest

from flax_linattn.checks import OptionError
from flax_linattn.data.tables.dialect import Dialect
from flax_linattn.tasks.forecast.rows import RowLines
from flax_linattn.tasks.lines import Rows, open_lines
from tests.tasks.commands import read_lines


def test_standard_input_and_files_are_read_alike(monkeypatch, tmp_path):
    text = "\ufeff#sensor 7\n1\n#\n#\tx\n\n#N/A\n#2\n12345"
    path = tmp_path / "lines.txt.xz"
    path.write_bytes(lzma.compress(text.encode()))
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    for source in (None, path):
        with open_lines(source) as rows:
            cut = []
            assert list(rows.lines(unfinished=cut.append)) == ["1", "", "#N/A", "#2"]
        assert cut == ["12345"] and rows.place.endswith(":8")
    with open_lines(path) as rows:
        every = ["#sensor 7", "1", "#", "#\tx", "", "#N/A", "#2", "12345"]
        assert list(rows.lines(comments=False)) == every


def test_a_cell_that_begins_with_a_hash_is_no_comment():
    lines = ["flow,level", "1.5,10", "# restart", "#N/A,11"]
    rows = read_lines(RowLines(("flow", "level")).parse, lines)
    np.testing.assert_array_equal([row.values for row in rows], [[1.5, 10], [np.nan, 11]])
    with pytest.raises(ValueError, match=r"standard input:3: .* for flow, got '#N/B'"):
        read_lines(RowLines(("flow", "level")).parse, ["flow,level", "# here", "#N/B,11"])


def test_a_binary_table_is_no_stream(tmp_path):
    for name in ("sales.parquet", "sales.XLSX", "sales.feather"):
        with pytest.raises(OptionError, match=rf"{name}, got a binary table; save the"):
            open_lines(tmp_path / name).__enter__()


@pytest.mark.parametrize(
    ("suffix", "kind"), [("parquet", "Parquet"), ("feather", "Arrow"), ("xlsx", "Excel")]
)
def test_a_binary_table_on_standard_input_is_named(suffix, kind, tmp_path, monkeypatch):
    path = tmp_path / f"sales.{suffix}"
    write = {"parquet": "to_parquet", "feather": "to_feather", "xlsx": "to_excel"}[suffix]
    getattr(pd.DataFrame({"ds": range(5), "y": 1.0}), write)(path)
    text = io.TextIOWrapper(io.BytesIO(path.read_bytes()), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", text)
    message = rf"standard input:1: expected lines of text, got an? {kind} file; .*predict`, which"
    with pytest.raises(OptionError, match=message), open_lines(None) as rows:
        list(rows.parse(RowLines(("y",)).parse))


def test_a_column_year_holds_integer_times():
    lines = ["Year,a", "1961,1.5", "1962,2"]
    rows = read_lines(RowLines(("a",)).parse, lines)
    assert [row.time for row in rows] == [1961, 1962]
    named = RowLines(("a",), dialect=Dialect(time_column="Year"), time_kind="integer")
    assert read_lines(named.parse, ["a,Year", "2,1962"])[0].time == 1962
    assert read_lines(RowLines(("a",)).parse, ["a,year", "2,1962"])[0].time == 1962
    years = RowLines(("a",), dialect=Dialect(date_format="%Y"), time_kind="local")
    assert read_lines(years.parse, ["ds,a", "1850,2"])[0].time == datetime(1850, 1, 1)
    (row,) = read_lines(RowLines(("year",)).parse, ["year", "1961"])
    assert row.time is None and row.values.tolist() == [1961]
    with pytest.raises(ValueError, match=r"standard input:2: .* in the column Year, got '19x'"):
        read_lines(RowLines(("a",)).parse, ["Year,a", "19x,1"])


@pytest.mark.parametrize("text", ["200", "+200", "200.0"])
def test_integer_times_are_read_where_the_run_has_no_other_ones(text):
    for kind in ("integer", None):
        (row,) = read_lines(RowLines(("y",), time_kind=kind).parse, ["ds,y", f"{text},5"])
        assert row.time == 200 and row.values.tolist() == [5]
    for kind in ("local", "zoned"):
        with pytest.raises(ValueError, match=r"such as 2016.* in the column ds, got '.?200"):
            read_lines(RowLines(("y",), time_kind=kind).parse, ["ds,y", f"{text},5"])
    with pytest.raises(ValueError, match=r"an integer time in the column ds, .* got '2024-01-01'"):
        read_lines(RowLines(("y",), time_kind="integer").parse, ["ds,y", "2024-01-01,5"])


def test_a_date_and_a_time_of_day_in_two_cells():
    dialect = Dialect(time_column=("day", "hour"), date_format="%d %b %Y")
    lines = ["day,hour,a", "1 Jul 2016,2:00,5"]
    (row,) = read_lines(RowLines(("a",), dialect=dialect).parse, lines)
    assert row.time == datetime(2016, 7, 1, 2)
    with pytest.raises(ValueError, match=r"standard input:2: .* an empty cell; fill in the cell"):
        read_lines(RowLines(("a",), dialect=dialect).parse, [lines[0], "1 Jul 2016,,5"])


def test_places_are_those_of_all_lines():
    def parse(lines):
        for line in lines:
            if line == "bad":
                raise OptionError("too bad.", "name", other="good")
            yield line

    rows = Rows(["# one\n", "\n", "bad\n"], "input:")
    with pytest.raises(OptionError, match=r"^input:3: too bad") as refused:
        list(rows.parse(parse))
    assert refused.value.options == ("name", "other")


@pytest.mark.parametrize("source", ["file", "gz", "pipe", "text"])
def test_lines_of_text_keep_every_byte(source, tmp_path, monkeypatch):
    """What begins like UTF-16 or with a byte-order mark, carriage returns, and no UTF-8."""
    for content in (b"\xff\xfea\r\n\xe9\n\rb\n", b"\xef\xbb\xbfa\n#\xed\xa0\x80\r\r\n\nc\n"):
        path = tmp_path / "a.txt"
        path.write_bytes(gzip.compress(content) if source == "gz" else content)
        if source == "pipe":
            read_end, write_end = os.pipe()
            os.write(write_end, content)
            os.close(write_end)
            monkeypatch.setattr(sys, "stdin", open(read_end))  # noqa: SIM115
        if source == "text":
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        given = path if source in ("file", "gz") else None
        with open_lines(given, exact=True) as rows:
            lines = list(rows.lines(comments=False))
        assert [f"{line}\n".encode("utf-8", "surrogateescape") for line in lines] == [
            line + b"\n" for line in content.split(b"\n")[:-1]
        ]
        if source == "pipe":
            sys.stdin.close()
