"""Tables of predictions, and the files that hold them."""

import csv
import json
import sys

import numpy as np
import pandas as pd
import pytest

from flax_linattn.tasks.prediction_table import Table, check_out, write_table

TABLE = Table(
    ("time", "load, MW", "class", "count"),
    (
        pd.DatetimeIndex(["2024-01-01T00:30", "2024-01-01T01:00"]),
        np.array([1 / 3, np.nan]),
        np.array(["a", 'b"'], object),
        np.array([1, 2]),
    ),
)
RECORDS = [
    {"time": "2024-01-01 00:30:00", "load, MW": 0.333333333, "class": "a", "count": 1},
    {"time": "2024-01-01 01:00:00", "load, MW": None, "class": 'b"', "count": 2},
]


def test_csv_has_quotes_where_they_are_needed(tmp_path):
    write_table(tmp_path / "new" / "a.csv", TABLE)
    with open(tmp_path / "new" / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [{name: "" if x is None else str(x) for name, x in r.items()} for r in RECORDS]
    assert rows == expected


def test_json_and_lines_of_it(tmp_path):
    write_table(tmp_path / "a.json", TABLE)
    assert json.loads((tmp_path / "a.json").read_text()) == RECORDS
    write_table(tmp_path / "a.JSONL", TABLE)
    lines = (tmp_path / "a.JSONL").read_text().splitlines()
    assert list(map(json.loads, lines)) == RECORDS


def test_parquet_keeps_types(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_table(tmp_path / "a.parquet", TABLE)
    table = parquet.read_table(tmp_path / "a.parquet")
    assert str(table.schema.field("time").type).startswith("timestamp")
    assert table.column("load, MW").to_pylist() == [1 / 3, None]
    assert table.column("count").to_pylist() == [1, 2]


def test_what_cannot_be_written(tmp_path, monkeypatch):
    for name, message in ((".", "ends in .csv"), ("a.txt", "ends in .csv")):
        with pytest.raises(ValueError, match=message):
            check_out(tmp_path / name)
    (tmp_path / "b.csv").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        check_out(tmp_path / "b.csv")
    twice = Table(("x", "x"), (np.arange(2), np.arange(2)))
    write_table(tmp_path / "c.csv", twice)
    with pytest.raises(ValueError, match="different names of columns, got x, x"):
        write_table(tmp_path / "c.json", twice)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="takes pyarrow"):
        check_out(tmp_path / "d.parquet")
