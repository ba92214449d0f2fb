"""The calendar of the horizon: learned from, computed from times everywhere, refused without."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flax_linattn import cli, data, tasks
from flax_linattn.estimators import Forecaster
from flax_linattn.tasks.forecast import ForecastConfig, ForecastStream, Row
from flax_linattn.tasks.forecast.panel import SeriesPanel
from flax_linattn.tasks.forecast.spec import describe
from flax_linattn.tasks.forecast.windows import compile_forecast, forecast_after, standardize
from tests.tasks.commands import fail, no_drawing, succeed

ROWS, INPUT, HORIZON = 600, 12, 4
BEGIN = datetime(2024, 1, 31)
SIZES = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8}
OPTIONS = [
    *(word for name, size in SIZES.items() for word in (f"--{name.replace('_', '-')}", str(size))),
    *("--context-length", str(INPUT), "--horizon", str(HORIZON), "--patch-length", "4"),
    *("--epochs", "12", "--learning-rate", "0.01", "--parallel", "none", "--model", "patch"),
    *("--no-ridge", "--schedule", "halving", "--patience", "3"),
    *("--no-calendar", "--schedule", "cosine", "--known-calendar", "day,month"),
]
DAYS = [BEGIN + timedelta(days=i) for i in range(ROWS)]


def sales() -> np.ndarray:
    """More in the first half of each month, whose end the days before do not tell."""
    noise = np.random.default_rng(0).normal(size=ROWS)
    return 10 + 3 * np.sign([16.5 - day.day for day in DAYS]) + noise


@pytest.fixture(scope="module")
def csv(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "sales.csv"
    rows = [f"{day},{value!r}" for day, value in zip(DAYS, sales().tolist(), strict=True)]
    path.write_text("date,sales\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def run_dir(csv, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "calendar"
    with no_drawing():
        args = ["train", "forecast", "--csv", str(csv), "--run", str(folder), *OPTIONS]
        assert cli.main(args) == 0
    return folder


def circles(days: list[datetime]) -> np.ndarray:
    """Of day and month, by Python's calendar: sine, cosine, sine, cosine."""
    turns = np.array([[(day.day - 1) / 31, (day.month - 1) / 12] for day in days])
    parts = np.stack([np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)], axis=-1)
    return parts.reshape(len(days), 4)


def by_hand(run, values: np.ndarray, days: list[datetime]) -> np.ndarray:
    """The forecast [H] from the last of these rows, whose window is made up here."""
    scale = run.data_spec.standardizer
    scaled = (values[-INPUT:] - scale.mean[0]) / scale.std[0]
    ahead = [days[-1] + timedelta(days=h) for h in range(1, HORIZON + 1)]
    known = circles([*days[-INPUT:], *ahead])
    padded = np.concatenate([scaled, np.full(HORIZON, 1e3)])  # what comes is not looked at
    window = np.concatenate([padded[:, None], known], axis=1).astype(np.float32)
    (found,) = np.asarray(compile_forecast(run)({"values": window[None]}))
    return found[:, 0] * scale.std[0] + scale.mean[0]


@pytest.mark.slow
def test_a_run_learns_the_month(run_dir):
    """Of whose middle a window tells a ridge nothing."""
    report = json.loads((run_dir / "test.json").read_text())
    assert report["test_mse"] < 0.75 * report["ridge_mse"]
    run = tasks.load_run(run_dir)
    assert run.data_spec.calendar == ("day", "month") and run.data_spec.channels == ("sales",)
    assert tasks.evaluate_run(run_dir)["stream_max_error"] < 1e-4


def test_all_ways_to_forecast_are_the_one_by_hand(run_dir, csv, tmp_path, capsys):
    """Streams in Python and of lines, predictions; none is told the calendar."""
    run, values = tasks.load_run(run_dir), sales()
    want = by_hand(run, values, DAYS)
    np.testing.assert_allclose(tasks.predict_run(run_dir)["sales"], want, rtol=1e-4)
    stream = ForecastStream(run, context=0)
    lines = ["sales,time"]
    for day, value in zip(DAYS[:INPUT], values[:INPUT].tolist(), strict=True):
        found = stream.step(Row(day, np.array([value])))
        lines.append(f"{value!r},{day}")
    want = by_hand(run, values[:INPUT], DAYS[:INPUT])
    np.testing.assert_allclose(found[:, 0], want, rtol=1e-4)
    rows = tmp_path / "rows.csv"
    rows.write_text("\n".join(lines) + "\n")
    printed = succeed(capsys, "stream", str(run_dir), "--input", str(rows), "--context", "0")
    last = [float(cell) for cell in printed.splitlines()[-1].split(",")[2:]]
    np.testing.assert_allclose(last, want, rtol=1e-4)
    with pytest.raises(
        ValueError, match=r"from which the run computes day, month, got none; begin each"
    ):
        stream.step(Row(None, np.array([1.0])))


@pytest.mark.usefixtures("no_figures")
def test_backtests_carry_it(run_dir):
    plain, carried = (
        tasks.get_task("forecast").backtest(run_dir, folds=2, carry=carry, context=context)
        for carry, context in ((False, None), (True, 0))
    )
    for report in (plain, carried):
        assert report.values["test_mse"] < 0.75 * report.values["ridge_mse"]


def test_what_is_refused(csv, run_dir, tmp_path, capsys):
    command = ["train", "forecast", "--csv", str(csv), "--run", str(tmp_path / "run")]
    command += ["--horizon", "4"]
    known = [*command, "--known-calendar", "day"]
    assert "known_calendar is an option of the model 'patch'" in fail(
        capsys, *known, "--model", "decoder"
    )
    message = fail(capsys, *command, "--model", "patch", "--known-calendar", "weekdy")
    assert "did you mean 'weekday'? (--known-calendar)" in message
    untimed = tmp_path / "untimed.csv"
    untimed.write_text("sales\n" + "\n".join(map(repr, sales().tolist())) + "\n")
    message = fail(capsys, *known, "--csv", str(untimed), "--model", "patch")
    assert "untimed: expected times for --known-calendar " in message
    assert "with --time-column, or remove known_calendar" in message
    message = fail(capsys, "evaluate", str(run_dir), "--test-file", str(untimed))
    assert "expected rows with times, from which the run computes day, month" in message


def test_missing_values_and_own_columns_beside_it():
    """Inputs are the channels, then the calendar; what is missing there is nothing."""
    values = np.stack([sales(), np.arange(ROWS) % 5.0], axis=1)
    values[3, 0] = np.nan
    series = data.TimeSeries("toy", values, ("sales", "price"), pd.DatetimeIndex(DAYS))
    config = ForecastConfig.of(model="patch", known_future="price", known_calendar="day")
    split = data.chronological_split(ROWS)
    data_spec = describe(SeriesPanel.from_series(series, split), config)
    assert data_spec.known_inputs == (1, 2, 3) and data_spec.num_inputs == 4
    again = type(data_spec).from_json(json.loads(json.dumps(data_spec.to_json())))
    assert again.calendar == ("day",) and again.known_inputs == (1, 2, 3)
    again.check()
    told = standardize(series, data_spec.__class__(**{**vars(data_spec), "missing_flags": True}))
    np.testing.assert_allclose(told["values"][:, 2:], circles(DAYS)[:, :2], atol=1e-6)
    assert told["known"].shape == told["missing"].shape == (ROWS, 4)
    assert np.argwhere(told["missing"]).tolist() == [[3, 0]] == np.argwhere(~told["known"]).tolist()


@pytest.mark.slow
def test_several_series_have_it(csv, tmp_path):
    path = tmp_path / "shops.csv"
    rows = [f"{shop},{line}" for shop in "ab" for line in csv.read_text().splitlines()[1:]]
    path.write_text("shop,date,sales\n" + "\n".join(rows) + "\n")
    folder = tmp_path / "run"
    args = ["--csv", str(path), "--id-column", "shop", "--run", str(folder), *OPTIONS]
    assert cli.main(["train", "forecast", *args]) == 0
    report = json.loads((folder / "test.json").read_text())
    assert report["test_mse"] < 0.75 * report["ridge_mse"]
    run = tasks.load_run(folder)
    own = run._replace(data_spec=run.data_spec.select_series("a"))
    table = tasks.predict_run(folder)
    np.testing.assert_allclose(table["sales"][:HORIZON], by_hand(own, sales(), DAYS), rtol=1e-4)
    stream = ForecastStream(run, context=0, series="a")
    for day, value in zip(DAYS[:INPUT], sales()[:INPUT], strict=True):
        found = stream.step(Row(day, np.array([value])))
    np.testing.assert_allclose(found[:, 0], by_hand(own, sales()[:INPUT], DAYS[:INPUT]), rtol=1e-4)


def test_a_stream_of_months_counts_months(csv, monkeypatch):
    """From its first row on, and after a gap; the circles are those of the months to come."""
    months = pd.date_range("2020-01", "2027-12", freq="MS")
    values = np.sin(np.arange(len(months)) * np.pi / 6)[:, None]
    frame = data.TimeSeries("toy", values, ("load",), months)
    options = {**SIZES, "known_calendar": "month", "patch_length": 4}
    config = ForecastConfig.of(
        model="patch", calendar=False, context_length=12, horizon=6, **options
    )
    data_spec = describe(
        SeriesPanel.from_series(frame, data.chronological_split(len(months))), config
    )
    task = tasks.get_task("forecast")
    run = tasks.Run(task, config, data_spec, task.model(config, data_spec))
    stream = ForecastStream(run, context=0)
    turns = 2 * np.pi * np.arange(1, 7) / 12
    _, first = stream._circles(months[0])
    np.testing.assert_allclose(first, np.stack([np.sin(turns), np.cos(turns)], 1), atol=1e-6)
    for time, row in zip(months[:12], values[:12], strict=True):
        found = stream.step(Row(time, row))
    part = data.TimeSeries("toy", values[:12], ("load",), months[:12])
    np.testing.assert_allclose(
        found, forecast_after(run, part).values[..., 0], rtol=1e-4, atol=1e-5
    )
    _, later = stream._circles(months[12])
    np.testing.assert_allclose(later, first, atol=1e-6)
    _, after_a_gap = stream._circles(months[36])
    np.testing.assert_allclose(after_a_gap, first, atol=1e-6)


def test_a_stream_keeps_the_clock_of_its_zone(tmp_path):
    """Local midnights are days, also where clocks change; lines may have another offset."""
    days = pd.date_range("2024-03-20", periods=20, freq="D", tz="Europe/Berlin")
    values = np.sin(np.arange(20.0))[:, None]
    series = data.TimeSeries("toy", values, ("load",), days)
    sizes = {**SIZES, "known_calendar": "weekday", "patch_length": 4}
    config = ForecastConfig.of(model="patch", calendar=True, context_length=8, horizon=2, **sizes)
    data_spec = describe(SeriesPanel.from_series(series, data.chronological_split(20)), config)
    assert (data_spec.freq, data_spec.time_zone, data_spec.season) == ("D", "Europe/Berlin", 7)
    task = tasks.get_task("forecast")
    run = tasks.Run(task, config, data_spec, task.model(config, data_spec))
    stream, other = ForecastStream(run, context=0), ForecastStream(run, context=0)
    weekdays = (days.day_of_week.to_numpy()[:, None] + [0, 1, 2]) % 7
    for at, (time, row) in enumerate(zip(days, values, strict=True)):
        now, ahead = stream._circles(time)
        turns = 2 * np.pi * weekdays[at] / 7
        expected = np.stack([np.sin(turns), np.cos(turns)], 1)
        np.testing.assert_allclose(np.concatenate([now[None], ahead]), expected, atol=1e-6)
        forecast = stream.step(Row(time, row))
        np.testing.assert_array_equal(other.step(Row(time.tz_convert("UTC"), row)), forecast)
    assert stream.num_gaps == 0 and other.last_time == days[-1]
    assert str(other.last_time) == "2024-04-08 00:00:00+02:00"
    again = ForecastStream(run, context=0)
    other.save(tmp_path / "state.npz")
    again.load(tmp_path / "state.npz")
    assert str(again.last_time) == "2024-04-08 00:00:00+02:00"
    assert again.is_processed(1, Row(days[3].tz_convert("UTC"), values[3]))
    with pytest.raises(ValueError, match="expected a time with its offset from UTC"):
        stream.step(Row(pd.Timestamp("2024-04-09"), values[0]))


@pytest.mark.slow
def test_an_estimator_takes_it_from_the_index():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"sales": sales()}, pd.DatetimeIndex(DAYS))
    options = {**SIZES, "known_calendar": "day", "patch_length": 4}
    forecaster = Forecaster(
        HORIZON,
        context_length=INPUT,
        epochs=12,
        learning_rate=0.01,
        random_state=0,
        options=options,
    )
    ahead = forecaster.fit(frame[:-HORIZON]).predict()
    assert list(ahead.index) == DAYS[-HORIZON:]
    stream = forecaster.stream()
    np.testing.assert_allclose(stream.forecast, ahead.to_numpy(), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="expected a row with a time"):
        stream.step([1.0])
