"""Tables of trained runs: a quick run of each, what is stored, and what is said of claims."""

import dataclasses
import json

import pytest

pytest.importorskip("experiments", reason="the experiments are not part of the installed package")

from experiments import report, tables

ROWS = {"classification": "JapaneseVowels, honest", "forecasting": "ETTh1, 96"}


def row_of(table):
    """A row whose data come with the package."""
    return ROWS[table.module.split(".")[1]]


def test_a_quick_cell_really_trains(tmp_path, monkeypatch):
    table = report.tables()[0]
    monkeypatch.delenv("FLAX_LINATTN_DATA", raising=False)
    cell = next(c for c in table.cells(None) if (c.row, c.column) == (row_of(table), "aaren"))
    page = dataclasses.replace(table, cells=lambda folder: [cell]).run(
        "quick", 1, tmp_path / "runs", tmp_path
    )
    stored = json.loads((tmp_path / f"{table.path.name}-quick.json").read_text())["runs"]
    metric = table.metrics[0]
    value = metric.scale * stored[0]["report"][f"test_{metric.key}"]
    assert f"{value:.{metric.digits}f}" in page
    assert page.startswith("Tiny models, one epoch: no results.")


@pytest.mark.slow
@pytest.mark.parametrize("table", report.tables(), ids=lambda table: table.module)
def test_a_quick_run_of_what_is_embedded(table, tmp_path, monkeypatch):
    monkeypatch.delenv("FLAX_LINATTN_DATA", raising=False)
    row = row_of(table)
    page = table.run("quick", 1, tmp_path / "runs", tmp_path, rows=row)
    found = [c for c in table.cells(None) if c.row == row and c.config is not None]
    stored = json.loads((tmp_path / f"{table.path.name}-quick.json").read_text())["runs"]
    assert len(stored) == len(found)
    assert (row in page) == bool(found)
    again = table.run("quick", 1, tmp_path / "runs", tmp_path, rows=row)
    assert again == page  # nothing was run again


def store_of(tmp_path, values):
    path = tmp_path / "runs.json"
    runs = [
        {"row": "r", "column": column, "seed": seed, "commit": "c", "seconds": 1.0,
         "core_seconds": 1.0, "report": {"test_mse": value, "naive_mse": 9.0}}
        for column, of_column in values.items()
        for seed, value in enumerate(of_column)
    ]  # fmt: skip
    path.write_text(json.dumps({"runs": runs}))
    return tables.Store(path)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [([1.0, 1.1, 0.9], "no difference"), ([0.5, 0.52, 0.49], "better"), ([2, 2.1, 2.0], "worse")],
)
def test_claims_are_judged_by_paired_intervals(ours, verdict, tmp_path):
    cells = [
        tables.Cell("r", "a", None, {"MSE": (0.7, 0.1)}),
        tables.Cell("r", "b", None),
        tables.Cell("other", "a", None),
    ]
    table = dataclasses.replace(
        report.tables()[2],
        cells=lambda folder: cells,
        metrics=(tables.Metric("mse", "MSE"),),
        claims=(tables.Claim("a is better", "a", "b", "MSE"),),
        baselines={"naive": "naive"},
    )
    store = store_of(tmp_path, {"a": ours, "b": [1.0, 1.05, 0.95]})
    page = table.write(store, "cpu", tmp_path / "page.md")
    assert f"*a is better*: {verdict} in 1" in page or f"{verdict} in 1" in page
    assert "(paper 0.700 ± 0.100)" in page and "| 9.000 |" in page
    assert "other" not in page.split("\n\n")[0]
    middle, half = tables.difference(store, cells[0], cells[1], table.metrics[0])
    assert middle == pytest.approx(sum(ours) / 3 - 1)
    assert half > 0
