"""Backtests of forecasters: what a fold is, what it may know, and what is done again."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from flax import nnx

from flax_linattn import cli, data, tasks, training
from flax_linattn.tasks.forecast import ForecastStream, Row, evaluate
from flax_linattn.tasks.forecast import backtest as backtests
from flax_linattn.tasks.forecast.backtest import backtest, fold_rows, rows_before
from flax_linattn.tasks.forecast.panel import SeriesPanel
from flax_linattn.tasks.forecast.windows import (
    PanelWindows,
    compile_forecast,
    standardize,
    with_truth,
)
from tests.tasks.commands import fail, no_drawing, succeed

ROWS, INPUT, HORIZON = 150, 10, 3
TRAIN, VALIDATION = 90, 30
NONE = training.Parallel("none")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run of a few steps on two waves, of which one value is missing."""
    path = tmp_path_factory.mktemp("data") / "waves.csv"
    steps = np.arange(ROWS)
    values = np.sin(steps[:, None] / 4 + [0, 1]) + steps[:, None] / 50
    values += 0.2 * np.random.default_rng(0).normal(size=values.shape)
    times = np.datetime64("2024-01-01") + steps * np.timedelta64(1, "D")
    lines = [f"{t},{a:.5f},{b:.5f}" for t, (a, b) in zip(times, values, strict=True)]
    lines[130] = lines[130].rpartition(",")[0] + ","
    path.write_text("date,a,b\n" + "\n".join(lines) + "\n")
    folder = tmp_path_factory.mktemp("runs") / "waves"
    config = tasks.get_task("forecast").Config.of(
        csv=path, split=f"{TRAIN}/{VALIDATION}/{ROWS - TRAIN - VALIDATION}", model="patch",
        context_length=INPUT, horizon=HORIZON, patch_length=5, features=8, num_layers=1,
        num_heads=2, hidden_features=8, calendar=False, steps=4, batch_size=16,
        quantiles="0.1,0.9",
    )  # fmt: skip
    with no_drawing():
        tasks.train("forecast", config, training.Session(folder, progress=False, parallel=NONE))
    return folder


@pytest.fixture
def folder(kept, tmp_path):
    """A copy of it."""
    shutil.copytree(kept, tmp_path / "run")
    return tmp_path / "run"


def by_loop(run, series, forecasts, begin, stop):
    """MSE and MAE of forecasts by their last row, on values scaled by the run."""
    mean, std = run.data_spec.standardizer.mean, run.data_spec.standardizer.std
    errors = [
        (forecasts[row] - (series.values[row + 1 : row + 1 + HORIZON] - mean) / std)
        for row in range(begin - 1, stop - HORIZON)
    ]
    return float(np.nanmean(np.square(errors))), float(np.nanmean(np.abs(errors)))


@pytest.mark.parametrize("folds", [1, 2, 3, 7, 60])
def test_folds_cover_each_row_once(folds):
    parts = fold_rows(range(90, 150), folds)
    assert [row for part in parts for row in part] == list(range(90, 150))
    assert {len(part) for part in parts} <= {60 // folds, -(-60 // folds)}


def test_rows_before_a_fold_are_split_as_those_of_the_run():
    split = ((0, TRAIN), (TRAIN, TRAIN + VALIDATION), (TRAIN + VALIDATION, ROWS))
    for begin in (90, 101, 149):
        train, validation = rows_before(split, begin)
        assert (train.start, train.stop, validation.stop) == (0, validation.start, begin)
        assert len(train) == begin * 3 // 4
    assert rows_before(split, 120) == (range(90), range(90, 120))


@pytest.mark.slow
def test_folds_from_windows_are_those_of_a_plain_loop(folder, capsys):
    out = succeed(capsys, "backtest", str(folder), "--folds", "3")
    report = json.loads((folder / "backtest/plain-3/backtest.json").read_text())
    run = tasks.load_run(folder)
    series = data.load_series(run.config.data.csv)
    arrays = standardize(series, run.data_spec)
    forecast = compile_forecast(run)
    windows = PanelWindows([run.data_spec], arrays, [range(TRAIN, ROWS)], run.config)
    found = np.asarray(forecast(windows.take(np.arange(windows.num_examples))))
    forecasts = dict(zip((windows.starts + INPUT - 1).tolist(), found, strict=True))
    naive = dict(enumerate(arrays["values"][:, None]))
    table = report["by_fold"]
    assert [(row["fold"], row["begin"], row["end"]) for row in table] == [
        (1, 90, 110), (2, 110, 130), (3, 130, 150)
    ]  # fmt: skip
    assert table[0]["from"].startswith("2024-03-31")
    for row in table:
        assert row["num_windows"] == 20 - HORIZON + 1
        for name, of in (("test", forecasts), ("naive", naive)):
            want = by_loop(run, series, of, row["begin"], row["end"])
            assert (row[f"{name}_mse"], row[f"{name}_mae"]) == pytest.approx(want, rel=1e-5)
    column = [row["ridge_mse"] for row in table]
    assert report["ridge_mse"] == pytest.approx(np.mean(column))
    assert report["ridge_mse_sd"] == pytest.approx(np.std(column, ddof=1))
    ahead = sum(row["test_mse"] < row["naive_mse"] for row in table)
    assert report["folds_ahead_of_naive"] == ahead
    assert "not independent" in report["note"]
    assert "each of folds 1, 2 contains validation rows" in report["note"]
    assert report["note"] in out and "begin" in out
    assert (folder / "backtest/plain-3/backtest.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("no_figures")
def test_what_is_finished_is_not_done_again(folder, monkeypatch):
    first = backtest(folder, folds=3)
    with monkeypatch.context() as patched:
        patched.setattr(backtests, "sum_errors", None)
        assert backtest(folder, folds=3).values == first.values
    (folder / "backtest/plain-3/fold-2.json").unlink()
    done = []

    def counted(*args):
        done.append(args[-1].starts[0] + INPUT)
        return evaluate.sum_errors(*args)

    monkeypatch.setattr(backtests, "sum_errors", counted)
    assert backtest(folder, folds=3).values == first.values and done == [110]
    run = tasks.load_run(folder)
    nnx.update(run.model, nnx.map_state(lambda path, leaf: leaf * 1.5, nnx.state(run.model)))
    monkeypatch.setattr(backtests, "load_run", lambda _: run)
    assert backtest(folder, folds=3).values != first.values and done == [110, 90, 110, 130]


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("carry", [False, True])
def test_a_fold_without_known_values_counts_in_no_mean(folder, monkeypatch, carry):
    run = tasks.load_run(folder)
    series = data.load_series(run.config.data.csv)
    values = series.values.copy()
    values[110:130] = np.nan
    blanked = dataclasses.replace(series, values=values)
    read = SeriesPanel.from_series(blanked, run.data_spec.parts)
    monkeypatch.setattr(backtests, "own_panel", lambda _: read)
    report = backtest(folder, folds=3, carry=carry)
    first, empty, last = report.values["by_fold"]
    assert empty["num_windows"] == 0 and empty["test_mse"] is None and [*empty] == [*first]
    assert report.values["test_mse"] == pytest.approx((first["test_mse"] + last["test_mse"]) / 2)
    assert "fold 2 has no known value to test on" in report.values["note"]
    mode = "carry" if carry else "plain"
    (folder / f"backtest/{mode}-3/fold-3.json").unlink()
    assert backtest(folder, folds=3, carry=carry).values == report.values
    values[90:] = np.nan
    with pytest.raises(ValueError, match="got missing values only"):
        backtest(folder, folds=3, carry=carry)


@pytest.mark.usefixtures("no_figures")
def test_a_carried_stream_goes_on_over_all_rows(folder):
    found = backtest(folder, folds=2, carry=True, context=0).values["by_fold"]
    run = tasks.load_run(folder)
    series = data.load_series(run.config.data.csv)
    stream = ForecastStream(run, context=0)
    mean, std = run.data_spec.standardizer.mean, run.data_spec.standardizer.std
    forecasts = [
        (stream.step(Row(time, row))[..., 0] - mean) / std
        for time, row in zip(series.times, series.values, strict=True)
    ]
    for row in found:
        want = by_loop(run, series, forecasts, row["begin"], row["end"])
        assert (row["test_mse"], row["test_mae"]) == pytest.approx(want, rel=1e-6)
    (folder / "backtest/carry-2-context-0/fold-2.json").unlink()
    assert backtest(folder, folds=2, carry=True, context=0).values["by_fold"] == found


def recorded(monkeypatch, series):
    """What a backtest forecasts of a series, by name and window."""
    forecasts = {}

    def record(of, run, windows):
        for batch in with_truth(run, windows):
            count = len(batch.truth)
            for name, forecast in of.items():
                made = forecast(batch)[:count]
                rows = batch.last[:count].tolist()
                forecasts.update({(name, row): one for row, one in zip(rows, made, strict=True)})
        return evaluate.sum_errors({"naive": of["naive"]}, run, windows)

    def read(run):
        return SeriesPanel.from_series(series, run.data_spec.parts)

    monkeypatch.setattr(backtests, "own_panel", read)
    monkeypatch.setattr(backtests, "sum_errors", record)
    return forecasts


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("carry", [False, True])
def test_what_comes_after_an_origin_changes_no_forecast(carry, folder, monkeypatch):
    """Of the model and of the ridges: those that know the changed row differ."""
    series, made = data.load_series(tasks.load_run(folder).config.data.csv), []
    monkeypatch.setattr(backtests, "_summary", lambda *args: tasks.Report({}))
    for change in (0.0, 3.0):
        values = series.values.copy()
        values[125:] += change
        changed = dataclasses.replace(series, values=values)
        forecasts = recorded(monkeypatch, changed)
        shutil.rmtree(folder / "backtest", ignore_errors=True)
        backtest(folder, folds=3, carry=carry)
        made.append(forecasts)
    assert made[0].keys() == made[1].keys()
    names = {name for name, _ in made[0]}
    assert names == {"test", "naive", "seasonal_naive", "ridge", "refitted_ridge"}
    for name, row in made[0]:
        same = np.array_equal(made[0][name, row], made[1][name, row])
        assert same if row < 125 else not same or name == "seasonal_naive"


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_model_trained_anew_knows_no_row_of_its_fold(folder, monkeypatch):
    """Its parameters are those of the rows before; errors are on the scale of the run."""
    run = tasks.load_run(folder)
    original, found = run.config.data.csv.read_text(), []
    try:
        for change in ("", "after", "before"):
            lines = original.splitlines()
            where = {"": range(0), "after": range(1 + TRAIN, 1 + ROWS), "before": range(50, 60)}
            for row in where[change]:
                lines[row] = lines[row].partition(",")[0] + ",9,9"
            run.config.data.csv.write_text("\n".join(lines) + "\n")
            series = data.load_series(run.config.data.csv)
            panel = SeriesPanel.from_series(series, run.data_spec.parts)
            monkeypatch.setattr(backtests, "own_panel", lambda _, panel=panel: panel)
            shutil.rmtree(folder / "backtest", ignore_errors=True)
            report = backtest(folder, folds=1, refit=True, progress=False, parallel=NONE)
            refitted = tasks.load_run(folder / "backtest/refit-1/1")
            found.append((report.values, nnx.to_flat_state(nnx.state(refitted.model))))
            if not change:
                arrays = standardize(series, refitted.data_spec)
                rows = [range(TRAIN, ROWS)]
                windows = PanelWindows([refitted.data_spec], arrays, rows, run.config)
                seen = windows.take(np.arange(windows.num_examples))
                made = np.asarray(compile_forecast(refitted)(seen), np.float64)
                own, of_run = refitted.data_spec.standardizer, run.data_spec.standardizer
                made = (made * own.std + own.mean - of_run.mean) / of_run.std
                forecasts = dict(zip((windows.starts + INPUT - 1).tolist(), made, strict=True))
                want = by_loop(run, series, forecasts, TRAIN, ROWS)
                values = report.values
                assert (values["test_mse"], values["test_mae"]) == pytest.approx(want, rel=1e-5)
                again = backtest(folder, folds=1, refit=True, progress=False, parallel=NONE)
                assert again.values == values
    finally:
        run.config.data.csv.write_text(original)
    assert refitted.config.data.split == f"67/23/{ROWS - TRAIN}"
    assert refitted.config.fit == run.config.fit

    def same(ours, others):
        pairs = zip(ours[1], others[1], strict=True)
        return all(np.array_equal(a[1][...], b[1][...]) for a, b in pairs)

    assert same(found[0], found[1]) and found[0][0]["test_mse"] != found[1][0]["test_mse"]
    assert not same(found[0], found[2])


def test_options_that_do_not_go_together_are_named(folder, tmp_path, capsys):
    command = ["backtest", str(folder)]
    for options, flags in (
        (["--refit", "--carry"], "(--refit, --carry)"),
        (["--context", "0"], "(--context)"),
        (["--epochs", "1"], "(--epochs)"),
        (["--folds", "0"], "(--folds)"),
        (["--folds", "30"], "use at most 20."),
    ):
        assert fail(capsys, *command, *options).rstrip().endswith(flags)
    assert "got --folds 30 of the 60 rows after the training part; use at most 20" in fail(
        capsys, *command, "--folds", "30"
    )
    assert "is not a run folder" in fail(capsys, "backtest", str(folder / "none"))
    (tmp_path / "config.json").write_text('{"format": 2, "task": "classify"}')
    message = fail(capsys, "backtest", str(tmp_path))
    assert "is a run of classify." in message
    assert cli.main(["backtest", "--help"]) == 0
