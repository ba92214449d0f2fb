"""Forecasting options that meet in one run: a ridge, known columns, missing values, quantiles.

One series, several, and many runs: each is trained once, small, with all of these options.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from flax_linattn import cli, data, tasks
from flax_linattn.tasks.forecast import ForecastStream
from flax_linattn.tasks.forecast.backtest import backtest
from flax_linattn.tasks.forecast.baselines import fitted_ridge
from flax_linattn.tasks.forecast.panel import own_panel
from flax_linattn.tasks.forecast.rows import series_row
from flax_linattn.tasks.forecast.windows import compile_forecast
from tests.tasks.commands import SMALL, succeed

INPUT, HORIZON, LEVELS = 12, 4, 3
ALL = [
    *("--preset", "patch", "--patch-length", "4", "--schedule", "constant", *SMALL),
    *("--context-length", str(INPUT), "--horizon", str(HORIZON), "--season", "6"),
    *("--batch-size", "32", "--known-future", "price", "--missing-flags"),
    *("--quantiles", "0.1,0.5,0.9"),
]
OWN = {"one": [], "several": ["--id-column", "shop"], "many": ["--runs", "2"]}

pytestmark = pytest.mark.usefixtures("no_figures")


def sales(number: int) -> data.TimeSeries:
    """Sales that follow a season and a price; each tenth is missing, and some prices."""
    rng, rows = np.random.default_rng(number), 150 + 7 * number
    price = rng.normal(size=rows)
    sold = 5 * number + np.sin(np.arange(rows)) - price + 0.2 * rng.normal(size=rows)
    values = np.stack([sold, price], axis=1)
    values[5:][rng.random(rows - 5) < 0.1, 0] = np.nan
    values[5:][rng.random(rows - 5) < 0.05, 1] = np.nan
    times = np.datetime64("2024-01-01", "s") + np.arange(rows) * np.timedelta64(3600, "s")
    return data.TimeSeries(f"s{number}", values, ("sales", "price"), times)


def write(path: Path, several: list[data.TimeSeries], *, ids: bool) -> Path:
    lines = [",".join([*(["shop"] if ids else []), "date", "sales", "price"])]
    for one in several:
        assert one.times is not None
        for time, row in zip(one.times, one.values.tolist(), strict=True):
            cells = ["" if np.isnan(value) else repr(value) for value in row]
            lines.append(",".join([*([one.name] if ids else []), str(time), *cells]))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    one = write(folder / "one.csv", [sales(0)], ids=False)
    return {
        "one": one,
        "many": one,
        "several": write(folder / "shops.csv", [sales(i) for i in range(3)], ids=True),
    }


def train(which: str, file: Path, folder: Path, *args: str) -> None:
    options = ["--csv", str(file), "--run", str(folder), *ALL, *OWN[which], *args]
    with pytest.MonkeyPatch.context() as patched:  # without figures
        patched.setitem(sys.modules, "matplotlib.figure", None)
        assert cli.main(["train", "forecast", *options]) == 0


@pytest.fixture(
    scope="module", params=["one", "several", pytest.param("many", marks=pytest.mark.slow)]
)
def which(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def run_dir(which, files, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / which
    train(which, files[which], folder)
    return folder


@pytest.fixture
def copied(run_dir, tmp_path) -> Path:
    shutil.copytree(run_dir, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_has_all_of_it_and_evaluate_repeats_its_test(run_dir, which):
    run = tasks.load_run(run_dir)
    assert run.data_spec.missing_flags and run.data_spec.known_future == (1,)
    kernel = fitted_ridge(run).kernel
    np.testing.assert_allclose(run.model.linear_map.kernel[...], kernel, atol=1e-6)
    assert 0 <= float(run.model.share[...]) <= 1
    assert np.abs(run.model.quantile_head.correction[...]).max() > 0
    report = json.loads((run_dir / "test.json").read_text())
    assert {"ridge_mse", "ridge_validation_mse", "validation_mse"} <= report.keys()
    assert {"test_crps", "test_coverage_80", "test_original_crps"} <= report.keys()
    again = tasks.evaluate_run(run_dir)
    assert {name: again[name] for name in report if name.startswith(("test_", "ridge"))} == {
        name: value for name, value in report.items() if name.startswith(("test_", "ridge"))
    }
    assert again["stream_max_error"] < 1e-5


def test_a_stream_that_began_anew_ends_at_the_prediction(run_dir, which, tmp_path, capsys):
    """The last rows of a file have the price alone; they are forecast from the window before."""
    run, one = tasks.load_run(run_dir), sales(1 if which == "several" else 0)
    values = one.values.copy()
    values[-HORIZON:, 0] = np.nan
    values[-HORIZON - 1, 0] = 3.5
    one = data.TimeSeries(one.name, values, one.channels, one.times)
    file = write(tmp_path / "ahead.csv", [one], ids=which == "several")
    table = tasks.predict_run(run_dir, file)
    want = table[["sales", "sales@0.1", "sales@0.5", "sales@0.9"]].to_numpy(np.float64)
    end = one.num_steps - HORIZON
    rows = [series_row(one, at, (1,), HORIZON) for at in range(end - INPUT, end)]
    series = {"series": one.name} if which == "several" else {}
    stream = ForecastStream(run, context=0, **series)
    for row in rows:
        found = stream.step(row)
    np.testing.assert_allclose(found[:, 0], want, rtol=1e-4, atol=1e-4)
    # The command says so, in two parts, the second of which goes on from a file.
    names = ["time", "sales", "price", *(f"price+{step + 1}" for step in range(HORIZON))]
    state, printed = tmp_path / "state.npz", ""
    for number, part in enumerate((rows[:7], rows[7:])):
        lines = [",".join([str(r.time), *map(repr, r.values.tolist())]) for r in part]
        told = tmp_path / f"{number}.csv"
        told.write_text("\n".join([",".join(names), *lines]).replace("nan", "") + "\n")
        args = ["stream", str(run_dir), "--input", str(told), "--context", "0"]
        chosen = ["--series", one.name] if series else []
        printed = succeed(capsys, *args, "--state", str(state), *chosen)
    last = [float(cell) for cell in printed.splitlines()[-1].split(",")[2:]]
    np.testing.assert_allclose(np.reshape(last, want.shape), want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_run_that_goes_on_is_one_that_never_stopped(run_dir, which, files, tmp_path):
    folder = tmp_path / "resumed"
    train(which, files[which], folder, "--epochs", "1")
    train(which, files[which], folder, "--resume")
    reports = [json.loads((one / "test.json").read_text()) for one in (run_dir, folder)]
    for report in reports:
        del report["train_seconds"]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("how", [{}, {"carry": True}], ids=["plain", "carry"])
@pytest.mark.parametrize("which", ["one"], indirect=True, scope="module")
def test_backtests(copied, how):
    """Of a run with known columns a stream has them, as windows do."""
    report = backtest(copied, folds=2, progress=False, **how).values
    assert report["folds_ahead_of_ridge"] >= 0
    run = tasks.load_run(copied)
    (series,), scale = own_panel(run).series, run.data_spec.standardizer
    stream, errors = ForecastStream(run), []
    (first, second) = report["by_fold"]
    for at in range(second["end"] - HORIZON):
        forecast = stream.step(series_row(series, at, (1,), HORIZON))
        if at >= second["begin"] - 1:
            came = series.values[at + 1 : at + 1 + HORIZON, 0]
            errors.append((forecast[:, 0, 0] - came) / scale.std[0])
    if how:
        found = np.nanmean(np.square(errors))
        np.testing.assert_allclose(second["test_mse"], found, rtol=1e-4)
    assert first["end"] == second["begin"]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["one"], indirect=True, scope="module")
def test_a_backtest_that_trains_anew_fits_a_ridge_for_each_fold(copied):
    backtest(copied, folds=2, refit=True, epochs=1, progress=False)
    kernels = []
    for folder in sorted((copied / "backtest").glob("refit-*/[12]")):
        run = tasks.load_run(folder)
        np.testing.assert_allclose(
            run.model.linear_map.kernel[...], fitted_ridge(run).kernel, atol=1e-6
        )
        kernels.append(run.model.linear_map.kernel[...])
    assert len(kernels) == 2 and np.abs(kernels[0] - kernels[1]).max() > 1e-3


@pytest.mark.parametrize("which", ["one"], indirect=True, scope="module")
def test_known_values_that_are_missing_are_those_before_in_streams_too(run_dir):
    run, one = tasks.load_run(run_dir), sales(0)
    values = one.values[20 : 20 + INPUT + HORIZON].copy()
    values[:, 1] = np.arange(INPUT + HORIZON)
    values[[INPUT + 1, INPUT + 2], 1] = np.nan
    values[:INPUT, 0] = 1.0
    stream = ForecastStream(run, context=0)
    series = data.TimeSeries("s", values, one.channels)
    for at in range(INPUT):
        found = stream.step(series_row(series, at, (1,), HORIZON))
    filled = series.fill_forward().values
    scale = run.data_spec.standardizer
    seen = ((filled - scale.mean) / scale.std).astype(np.float32)[None]
    batch = {"values": seen, "missing": np.zeros_like(seen)}
    expected = np.asarray(compile_forecast(run)(batch))[0]
    np.testing.assert_allclose(found[..., 0], expected * scale.std[:1] + scale.mean[:1], rtol=1e-4)
