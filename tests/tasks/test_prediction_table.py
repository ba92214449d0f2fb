"""Tables of predictions, and the files that hold them."""

import csv
import json
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from flax_linattn.tasks.prediction_table import check_out, make_table, write_table
from tests.tasks import states

TABLE = make_table(
    ("time", "load, MW", "class", "count", "p", "month", "day"),
    (
        pd.to_datetime(["2024-01-01T00:30", None]).tz_localize("Europe/Berlin"),
        np.array([1 / 3, np.nan]),
        np.array(["a", 'b"'], object),
        np.array([1, 2]),
        np.float32([1 / 3, 0.1]),
        pd.PeriodIndex(["2024-01", "2024-02"], freq="M"),
        pd.to_datetime(["2024-01-01", "2024-01-02"]),
    ),
)
LATER = {"count": 2, "p": 0.1, "month": "2024-02", "day": "2024-01-02 00:00:00"}
RECORDS = [
    {"time": "2024-01-01 00:30:00+01:00", "load, MW": 1 / 3, "class": "a", "count": 1}
    | {"p": 0.33333334, "month": "2024-01", "day": "2024-01-01 00:00:00"},
    {"time": None, "load, MW": None, "class": 'b"'} | LATER,
]
"""Each float with as many digits as its dtype needs."""


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


@pytest.mark.slow
def test_rows_are_written_part_by_part(tmp_path):
    """Thousands of series are not held as text."""
    columns = np.full(100_000, "a series", object), np.arange(100_000.0)
    table = make_table(("unique_id", "y"), columns)
    write_table(tmp_path / "first.csv", table.head())
    tracemalloc.start()
    write_table(tmp_path / "a.csv", table)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0] == "unique_id,y" and lines[-1] == "a series,99999.0" and len(lines) == 100_001
    assert peak < (tmp_path / "a.csv").stat().st_size


def test_parquet_keeps_types(tmp_path):
    write_table(tmp_path / "a.parquet", TABLE)
    table = parquet.read_table(tmp_path / "a.parquet")
    assert str(table.schema.field("time").type).endswith("tz=Europe/Berlin]")
    assert table.column("load, MW").to_pylist() == [1 / 3, None]
    assert str(table.schema.field("p").type) == "float"
    assert table.column("count").to_pylist() == [1, 2]
    assert table.column("month").to_pylist() == ["2024-01", "2024-02"]


def test_what_cannot_be_written(tmp_path):
    for name, message in ((".", "must end in .csv"), ("a.txt", "must end in .csv")):
        with pytest.raises(ValueError, match=message):
            check_out(tmp_path / name)
    (tmp_path / "b.csv").mkdir()
    with pytest.raises(ValueError, match="must be a file, got the folder"):
        check_out(tmp_path / "b.csv")
    twice = make_table(("x", "x"), (np.arange(2), np.arange(2)))
    write_table(tmp_path / "c.csv", twice)
    with pytest.raises(ValueError, match=r"unique column names for \.json, got x, x"):
        write_table(tmp_path / "c.json", twice)


def test_predictions_continue_a_column_of_integers(tmp_path):
    path = tmp_path / "counted.csv"
    path.write_text("ds,y\n" + "".join(f"{i},{i * 7 % 13}\n" for i in range(1, 600)))
    run = states.untrained_run("forecast", csv=path, stride=1)
    found = run.task.predict(run, path)
    assert list(found) == ["ds", "y"] and found["ds"].tolist() == [600, 601]
