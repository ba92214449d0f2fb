"""Tables of trained runs: a quick run of each, what is stored, and what is said of claims."""

import dataclasses
import importlib
import json

import numpy as np
import pytest

from experiments import findings, intervals, report, store, tables
from experiments.tables import baselines, page
from experiments.tables.cells import by_row, pairs
from experiments.tables.claims import outcome
from experiments.verdicts import OPEN, SMALLER
from flax_linattn import training

ROWS = {
    "experiments.classification.aaren": "JapaneseVowels, honest",
    "experiments.classification.elementwise": "JapaneseVowels, honest",
    "experiments.classification.mechanisms": "linformer",
    "experiments.forecasting.aaren": "ETTh1, 96",
    "experiments.forecasting.elementwise": "ETTh1, 6",
}
"""Of each table, one whose data come with the package."""


@pytest.mark.parametrize(
    ("index", "column"),
    [
        pytest.param(0, "aaren", id="classification"),
        pytest.param(3, "aaren, streaming", id="forecasting", marks=pytest.mark.slow),
    ],
)
def test_a_quick_cell_really_trains(index, column, tmp_path, monkeypatch):
    table = report.tables()[index]
    monkeypatch.delenv("FLAX_LINATTN_DATA", raising=False)
    monkeypatch.setattr(training, "learning_curve", lambda run_dir: None)  # draws nothing
    cell = next(c for c in table.cells(None) if (c.row, c.column) == (ROWS[table.module], column))
    table = dataclasses.replace(table, cells=lambda folder: [cell])
    table.collect("quick", tmp_path, runs=tmp_path / "runs")
    text = table.render("quick", tmp_path)
    stored = json.loads(table.stored("quick", tmp_path).read_text())["runs"]
    metric = table.metrics[0]
    value = metric.scale * stored[0]["report"][f"test_{metric.key}"]
    assert f"{value:.{metric.digits}f}" in text
    assert text.startswith("Tiny models, one epoch: no results.")


@pytest.mark.slow
@pytest.mark.parametrize("table", report.tables(), ids=lambda table: table.module)
def test_a_quick_run_of_what_is_embedded(table, tmp_path, monkeypatch):
    monkeypatch.delenv("FLAX_LINATTN_DATA", raising=False)
    row = ROWS[table.module]
    cells = [c for c in table.cells(None) if c.row == row and c.config is not None]
    pages = []
    for _ in range(2):
        table.collect("quick", tmp_path, runs=tmp_path / "runs", rows=row)
        pages.append(table.render("quick", tmp_path))
    stored = json.loads(table.stored("quick", tmp_path).read_text())["runs"]
    assert len(stored) == len(cells)
    assert row in pages[0]
    assert pages[1] == pages[0]  # nothing was trained again


def test_a_command_that_can_run_nothing_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("FLAX_LINATTN_DATA", raising=False)
    with pytest.raises(SystemExit):
        report.tables()[3].main(["--rows", "Weather", "--output", str(tmp_path)])
    assert "set FLAX_LINATTN_DATA to the folder of real data" in capsys.readouterr().err


SHARES = {"p": 0.02, "q": 0.03, "r": 0.01}
METRICS = (tables.Metric("mse", "MSE"),)
CLAIM = tables.Claim("a is comparable", tables.Says.COMPARABLE, "a", "b", "MSE")
BETTER = tables.Claim("a is better", tables.Says.BETTER, "a", "b", "MSE")


def run_of(row, column, seed, mse=None, date="2026-11-21", **parts):
    made = {"commit": "c", "date": date}
    told = {} if mse is None else {"report": {"test_mse": mse}}
    return {"row": row, "column": column, "seed": seed, "made": made} | told | parts


def store_of(tmp_path, runs):
    (tmp_path / "runs.json").write_text(json.dumps({"runs": runs}))
    return store.Store(tmp_path / "runs.json", "classify")


def table_of(cells, **parts):
    """A table of one metric, without claims."""
    parts = {"metrics": METRICS, "claims": ()} | parts
    return dataclasses.replace(report.tables()[2], cells=lambda folder: cells, **parts)


def of_columns(values):
    """Runs of a row by column: a value for each seed."""
    how = {"options": {}, "seconds": 1.0, "core_seconds": 1.0}
    return [
        run_of("r", column, seed, report={"test_mse": value, "naive_mse": 9.0}, **how)
        for column, of_column in values.items()
        for seed, value in enumerate(of_column)
    ]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([1.0, 1.1, 0.9], "not distinguishable in 1, comparable in 0"),
        ([1.01, 1.05, 0.95], "not distinguishable in 1, comparable in 1"),
        ([1.02, 1.07, 0.971], "worse in 1, not distinguishable in 0, comparable in 1"),
        ([0.5, 0.52, 0.49], "better in 1"),
        ([2, 2.1, 2.0], "worse in 1"),
    ],
)
def test_claims_are_judged_by_paired_intervals(ours, verdict, tmp_path, monkeypatch):
    naive = {"naive": {0: {"test_mse": 9.0}}}
    monkeypatch.setattr("experiments.tables.baselines.reports", lambda name, row: naive)
    cells = [
        tables.Cell("r", "a", None, {"MSE": (0.7, 0.1)}),
        tables.Cell("r", "b", None),
        tables.Cell("other", "a", None),
    ]
    table = table_of(cells, claims=(BETTER,))
    stored = store_of(tmp_path, of_columns({"a": ours, "b": [1.0, 1.05, 0.95]}))
    text = page.render(table, "cpu", stored)
    assert verdict in text
    assert "(paper 0.70 ± 0.10)" in text and "| 9.000 |" in text
    assert "other" not in text.split("\n\n")[0]
    both = pairs(stored, cells[0], cells[1], table.metrics[0]).values()
    middle, half = intervals.interval([a - b for a, b in both])
    assert middle == pytest.approx(sum(ours) / 3 - 1)
    deviation = np.std(np.subtract(ours, [1.0, 1.05, 0.95]), ddof=1)
    assert half == pytest.approx(4.302653 * deviation / 3**0.5)


def test_rows_are_judged_together_in_shares_of_the_other_column(tmp_path):
    runs = [
        run_of(row, column, seed, scale * value * (1 + 1e-6 * seed) + seed, "2030-01-01")
        for row, scale in {"r": 1.0, "s": 10.0, "t": 100.0}.items()
        for column, value in {"a": 1.02 if row == "r" else 1.04, "b": 1.0}.items()
        for seed in range(3)
    ]
    table = table_of([tables.Cell(r, c, None) for r in "rst" for c in "ab"], claims=(CLAIM,))
    text = page.render(table, "cpu", store_of(tmp_path, runs))
    shares = [100 * 0.02 / 2, 100 * 0.4 / 11, 100 * 4 / 101]
    middle, half = intervals.interval(shares)
    assert (
        f"| mean of 3 data sets, % of b | {middle:+.1f} ± {half:.1f} % | not distinguishable |"
        in text
    )
    assert "worse in 3, not distinguishable in 0, comparable in 3 of 3 rows" in text


def many_rows(tmp_path, differences, date="2030-01-01"):
    """A store of rows whose column a differs from b by a share, three seeds each."""
    runs = [
        run_of(row, column, seed, (1 + share) * (1 + 0.001 * seed) if column == "a" else 1.0, date)
        for row, share in differences.items()
        for column in "ab"
        for seed in range(3)
    ]
    cells = [tables.Cell(row, column, None) for row in differences for column in "ab"]
    return store_of(tmp_path, runs), by_row(cells)


def cells_of(rows):
    return [cell for cells in rows.values() for cell in cells.values()]


def test_rows_of_one_data_set_are_one_cluster(tmp_path):
    """Four horizons of a series say little more than one."""
    differences = {f"{name}, {h}": share for name, share in SHARES.items() for h in (1, 2, 3, 4)}
    runs, rows = many_rows(tmp_path, differences)
    found = outcome(CLAIM, METRICS, rows, runs)
    assert (len(found.rows), found.data_sets) == (12, 3)
    expected = [100 * ((1 + share) * 1.001 - 1) for share in SHARES.values()]
    assert found.over_data_sets == pytest.approx(intervals.interval(expected))
    assert found.over_rows.half < 0.5 * found.over_data_sets.half
    assert found.over_rows.middle == pytest.approx(found.over_data_sets.middle)


def test_two_rates_of_one_transformer_are_one_cluster(tmp_path):
    runs, rows = many_rows(tmp_path, {"ETTh1": 0.02, "ETTh2": 0.03, "ETTm2": 0.05, "p": 0.04})
    found = outcome(CLAIM, METRICS, rows, runs)
    expected = [100 * ((1 + share) * 1.001 - 1) for share in (0.02, 0.04, 0.04)]
    assert found.data_sets == 3
    assert found.over_data_sets == pytest.approx(intervals.interval(expected))


def test_an_improvement_smaller_than_the_papers_is_called_so(tmp_path):
    """The smallest that the paper prints, here 10 %, next to an interval around none."""
    runs, _ = many_rows(tmp_path, dict(zip("pqr", (-0.01, 0.01, 0.0), strict=True)))
    printed = {"a": 0.9, "b": 1.0}
    cells = [tables.Cell(r, c, None, {"MSE": (printed[c], None)}) for r in "pqr" for c in "ab"]
    found = outcome(BETTER, METRICS, by_row(cells), runs)
    assert found.holds is None and found.word == SMALLER
    assert found.claimed == pytest.approx(10.0)
    cells[0] = dataclasses.replace(cells[0], paper={"MSE": (1.1, None)})  # worse there
    assert outcome(BETTER, METRICS, by_row(cells), runs).word == OPEN
    of_q = dataclasses.replace(BETTER, rows="q")
    assert outcome(of_q, METRICS, by_row(cells), runs).claimed == pytest.approx(10.0)


def test_the_interval_that_decides_is_shown(tmp_path):
    """Of the runs that test a margin; that of all is in brackets."""
    runs, rows = many_rows(tmp_path, {"p": 0.02, "q": 0.0201, "s": 0.0199, "r": 0.3})
    stored = json.loads(runs.path.read_text())["runs"]
    for run in stored:
        run["made"] |= {"known_by": "2026-11-20"} if run["row"] == "r" else {}
    runs = store_of(tmp_path, stored)
    found = outcome(CLAIM, METRICS, rows, runs)
    line = findings.claim_line(findings.StoredTable(report.tables()[2], "", runs, rows), found)
    assert line[4].startswith("+2.1 ± 0.0 (all runs +9.") and line[-1].startswith("**holds**")


@pytest.mark.parametrize(
    ("says", "shares", "holds"),
    [
        ("COMPARABLE", (0.01, 0.02, 0.0), True),
        ("COMPARABLE", (0.01, 0.2, 0.0), None),
        ("COMPARABLE", (0.31, 0.32, 0.30), False),
        ("BETTER", (-0.31, -0.32, -0.30), True),
        ("BETTER", (-0.31, 0.32, -0.30), None),
        ("BETTER", (0.31, 0.32, 0.30), False),
        ("NOT_WORSE", (-0.31, -0.32, -0.2), True),
        ("NOT_WORSE", (0.01, 0.02, 0.0), True),
        ("NOT_WORSE", (0.1, -0.1, 0.0), None),
        ("NOT_WORSE", (0.31, 0.32, 0.30), False),
    ],
)
def test_a_verdict_is_an_interval_beside_a_margin(says, shares, holds, tmp_path):
    runs, rows = many_rows(tmp_path, dict(zip("pqr", shares, strict=True)))
    claim = dataclasses.replace(CLAIM, says=tables.Says[says])
    assert outcome(claim, METRICS, rows, runs).holds is holds


@pytest.mark.parametrize(("date", "early"), [("2026-11-21", 18), ("2026-11-23", 0)])
def test_runs_older_than_a_margin_are_told(date, early, tmp_path):
    runs, rows = many_rows(tmp_path, SHARES, date)
    found = outcome(CLAIM, METRICS, rows, runs)
    assert (found.early, found.runs, found.holds) == (early, 18, None if early else True)
    line = findings.claim_line(findings.StoredTable(report.tables()[2], "", runs, rows), found)
    assert ("18 of 18 runs predate the margin and are excluded" in line[-1]) == bool(early)


def test_runs_that_were_known_before_a_margin_do_not_test_it(tmp_path):
    """Though they were made again since."""
    runs, rows = many_rows(tmp_path, {"p": 0.02, "q": 0.0201, "s": 0.0199, "r": 0.3})
    assert outcome(CLAIM, METRICS, rows, runs).holds is None
    stored = json.loads(runs.path.read_text())["runs"]
    for run in stored:
        if run["row"] == "r" and run["seed"] != 2:  # one seed is left of the row
            run["made"]["known_by"] = "2026-11-20"
    found = outcome(CLAIM, METRICS, rows, store_of(tmp_path, stored))
    assert (found.early, found.data_sets, found.holds) == (4, 3, True)
    assert [row.tested is None for row in found.rows] == [False, False, False, True]


@pytest.mark.parametrize("second", ["p", "q"])
def test_one_or_two_data_sets_decide_nothing(second, tmp_path):
    """An interval over two would be as wide as chance has it: "-", and the reason."""
    runs, rows = many_rows(tmp_path, {"p, 1": 0.02, f"{second}, 2": 0.0201})
    found = outcome(CLAIM, METRICS, rows, runs)
    assert (found.holds, found.over_data_sets, found.over_rows) == (None, None, None)
    *_, difference, alone, verdict = findings.claim_line(
        findings.StoredTable(report.tables()[2], "", runs, rows), found
    )
    assert (difference, alone, verdict) == ("-", "-", "not decided, too few data sets")
    table = table_of(cells_of(rows), claims=(CLAIM,))
    summary_row = "| mean of 2 data sets, % of b | - | not decided, too few data sets |"
    assert (summary_row in page.render(table, "cpu", runs)) == (second == "q")


def test_a_summary_says_of_each_measure_what_decides_it(tmp_path):
    runs, rows = many_rows(tmp_path, SHARES | {"z, one": 0.02})
    claims = [dataclasses.replace(CLAIM, rows=of) for of in ("", "z", "one")]
    found = [outcome(claim, METRICS, rows, runs) for claim in claims]
    line = findings.summary_line(findings.StoredTable(report.tables()[2], "", runs, rows), found)
    assert line[2] == "MSE: **holds**; MSE, z and MSE, one: not decided, too few data sets"


def test_equal_differences_decide_nothing(tmp_path):
    """0.27027 thrice, as of accuracies on 370 sequences, has a deviation of rounding alone."""
    third = intervals.interval([100 * (349 + i) / 370 - 100 * (348 + i) / 370 for i in range(3)])
    assert not third.decides and intervals.Interval(0.0, 1.0).decides
    runs, rows = many_rows(tmp_path, dict.fromkeys("pqr", 0.02))
    assert outcome(CLAIM, METRICS, rows, runs).holds is None


def test_a_model_that_loses_to_a_baseline_is_said_to_lose(tmp_path, monkeypatch):
    runs, rows = many_rows(tmp_path, {"p, 1": 0.2, "p, 2": 0.0, "q, 1": 0.1, "r, 1": 0.1})
    found = {"p, 1": 1.0, "p, 2": 2.0, "q, 1": 1.0, "r, 1": 1.0}
    monkeypatch.setattr(
        "experiments.tables.baselines.reports",
        lambda name, row: {"ridge": {0: {"test_mse": found[row]}}},
    )
    numbers = {row: baselines.row_baselines("t", row, METRICS[0]) for row in rows}
    assert numbers == {row: {"ridge": [number]} for row, number in found.items()}
    _, shown = baselines.comparison(rows, METRICS[0], runs, numbers)
    p, q = 50 * (1.2 * 1.001 - 1 + 0.5 * 1.001 - 1), 100 * (1.1 * 1.001 - 1)
    middle, half = intervals.interval([p, q, q])
    assert f"| a | loses 3 of 4; {middle:+.1f} ± {half:.1f} |" in shown
    del rows["r, 1"]  # too few data sets for an interval
    _, shown = baselines.comparison(rows, METRICS[0], runs, numbers)
    assert f"| a | loses 2 of 3; {(p + q) / 2:+.1f} |" in shown


@pytest.mark.parametrize("shared", [True, False])
def test_a_baseline_that_rows_share_is_printed_once(shared, tmp_path, monkeypatch):
    runs, rows = many_rows(tmp_path, {"p, 1": 0.2, "p, 2": 0.0, "q, 1": 0.1})
    monkeypatch.setattr(
        "experiments.tables.baselines.reports",
        lambda name, row: {"ridge": {0: {"test_mse": 7.0 if shared or row == "p, 1" else 8.0}}},
    )
    table = table_of(cells_of(rows), baselines_row="")
    text = page.render(table, "cpu", runs)
    assert text.splitlines()[0] == (
        "|  | a | b | seeds |" if shared else "|  | a | b | ridge | seeds |"
    )
    assert text.count("7.000") == (2 if shared else 1)
    assert ("| *p* | 7.000 |\n| *q* | 7.000 |\n| a | loses" in text) == shared


def test_only_seeds_that_both_have_are_compared(tmp_path):
    runs = [
        run_of("r", column, seed, seed)
        for column, seeds in {"a": (0, 1, 2), "b": (2, 1, 3)}.items()
        for seed in seeds
    ]
    cells = [tables.Cell("r", column, None) for column in "ab"]
    assert pairs(store_of(tmp_path, runs), *cells, METRICS[0]) == {1: (1, 1), 2: (2, 2)}
    # Without any width an interval decides nothing.
    assert intervals.judge(intervals.Interval(1.0, 0.0), 2.0, larger_is_better=True) == [
        "not distinguishable"
    ]


def test_a_row_whose_runs_all_diverged_is_shown(tmp_path):
    stored = store_of(tmp_path, [run_of("r", "a", 0, failure="the loss was nan")])
    cells = [tables.Cell(row, "a", None, {"MSE": (0.7, None)}) for row in "rs"]
    text = page.render(table_of(cells), "cpu", stored)
    assert "| r: MSE | 1 diverged (paper 0.70) | 0 |" in text
    assert "| rows without a run | s |" in text


def test_a_seed_that_diverged_is_told_with_the_verdict(tmp_path):
    runs = of_columns({"a": [1.0, 1.1, 0.9], "b": [1.0, 1.2, 1.1, 1.0]})
    stored = store_of(tmp_path, [*runs, run_of("r", "a", 3, failure="nan", options={})])
    table = table_of([tables.Cell("r", column, None) for column in "ab"], claims=(BETTER,))
    assert "1 that diverged left out" in page.render(table, "cpu", stored)


def test_series_are_found_as_the_library_lays_its_files_out(tmp_path):
    """Weather, Traffic and ETTm1 are twelve of Aaren's rows."""
    table = importlib.import_module("experiments.forecasting.aaren")

    def rows():
        return {cell.row for cell in table.cells(tmp_path) if cell.config is not None}

    before = rows()
    for file in ("weather/weather.csv", "traffic/traffic.csv.gz", "ETT-small/ETTm1.csv"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    found = rows() - before
    assert found == {
        f"{name}, {horizon}"
        for name in ("Weather", "Traffic", "ETTm1")
        for horizon in (96, 192, 336, 720)
    }
    splits = {
        cell.row.partition(",")[0]: cell.config.resolve().data.split
        for cell in table.cells(tmp_path)
        if cell.row in found
    }
    assert splits == {
        "Weather": "0.7/0.1/0.2", "Traffic": "0.7/0.1/0.2", "ETTm1": "34560/11520/11520"
    }  # fmt: skip
