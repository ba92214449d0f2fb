"""Forecasting: its metrics, its streams, its rows; and what bad input says."""

import dataclasses
import gzip
import json
import shutil
import signal
import subprocess
from datetime import datetime
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from flax_linattn import cli, data, tasks
from flax_linattn.tasks.files import read_json, write_json
from flax_linattn.tasks.forecast import ForecastConfig, ForecastSpec, ForecastStream, Row
from flax_linattn.tasks.forecast.baselines import seasonal_naive
from flax_linattn.tasks.forecast.evaluate import evaluate_baselines, evaluate_model
from flax_linattn.tasks.forecast.model import make_loss
from flax_linattn.tasks.forecast.panel import SeriesPanel
from flax_linattn.tasks.forecast.rows import RowLines
from flax_linattn.tasks.forecast.spec import describe
from flax_linattn.tasks.forecast.windows import PanelWindows, compile_forecast, standardize
from tests.tasks.commands import command_line, fail, one_line, read_lines, succeed

FORECAST = tasks.get_task("forecast")
ROWS, INPUT, HORIZON = 200, 12, 4
ANY = [
    *("--features", "8", "--num-layers", "1", "--num-heads", "2", "--hidden-features", "8"),
    *("--context-length", str(INPUT), "--horizon", str(HORIZON)),
    *("--epochs", "2", "--parallel", "none", "--model", "decoder"),
]
SMALL = [*ANY, "--positions", "3"]


@pytest.fixture(scope="module")
def csv(tmp_path_factory) -> Path:
    """Two hourly waves with a missing value and a gap."""
    path = tmp_path_factory.mktemp("data") / "waves.csv"
    hours = np.delete(np.arange(ROWS + 1), 50)
    times = np.datetime64("2024-01-01T00:00:00") + hours * np.timedelta64(1, "h")
    noise = np.random.default_rng(0).normal(size=(ROWS, 2))
    values = 20 + 5 * np.sin(hours[:, None] * 2 * np.pi / 24 + [0, 1]) + 0.1 * noise
    lines = [
        f"{str(time).replace('T', ' ')},{a:.4f},{b:.4f}"
        for time, (a, b) in zip(times, values, strict=True)
    ]
    lines[7] = lines[7].rpartition(",")[0] + ","
    path.write_text("date,load,OT\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def run_dir(csv, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    assert cli.main(["train", "forecast", "--csv", str(csv), "--run", str(folder), *SMALL]) == 0
    return folder


def test_what_a_run_folder_says(run_dir, csv):
    report = json.loads((run_dir / "test.json").read_text())
    assert report["num_test_windows"] == 40 - HORIZON + 1
    assert report["targets"] == "load, OT"
    data_spec = tasks.load_run(run_dir).data_spec
    assert isinstance(data_spec, ForecastSpec)
    assert data_spec.season == 24
    assert data_spec.time_features == ("hour", "weekday", "day", "day of year")
    fitted = data.load_series(csv).fill_forward().values[:140]
    np.testing.assert_allclose(data_spec.standardizer.mean, fitted.mean(axis=0))


def test_metrics_are_those_of_the_definition(run_dir, csv):
    """Worked out again, window by window, from the file."""
    report = json.loads((run_dir / "test.json").read_text())
    run = tasks.load_run(run_dir)
    values = data.load_series(csv).fill_forward().values
    mean, std = run.data_spec.standardizer.mean, run.data_spec.standardizer.std
    stream = [ForecastStream(run, context=0) for _ in range(160, 200 - HORIZON + 1)]
    squares, naives, seasonal = [], [], []
    times = data.load_series(csv).times
    assert times is not None
    for i, start in enumerate(range(160, 200 - HORIZON + 1)):
        for t in range(start - INPUT, start):
            found = stream[i].step(Row(times[t], values[t]))
        truth = values[start : start + HORIZON]
        squares.append(np.square((found - truth) / std))
        naives.append(np.square((values[start - 1] - truth) / std))
        seasonal.append(np.abs(values[start - 24 : start - 24 + HORIZON] - truth))
        if i == 3:
            break
    arrays = standardize(data.load_series(csv), run.data_spec)
    windows = PanelWindows([run.data_spec], arrays, [range(160, 163 + HORIZON)], run.config)
    few = evaluate_model(run, windows).values | evaluate_baselines(run, windows)
    assert few["num_test_windows"] == 4
    np.testing.assert_allclose(few["test_mse"], np.mean(squares), rtol=1e-4)
    np.testing.assert_allclose(few["naive_mse"], np.mean(naives), rtol=1e-4)
    np.testing.assert_allclose(few["seasonal_naive_original_mae"], np.mean(seasonal), rtol=1e-4)
    assert mean.shape == (2,) and report["test_rmse"] == pytest.approx(report["test_mse"] ** 0.5)


def test_errors_by_step_and_by_channel_are_those_of_a_plain_loop(run_dir, csv):
    """Of model and baselines; a missing value counts nowhere."""
    report = json.loads((run_dir / "test.json").read_text())
    run = tasks.load_run(run_dir)
    series = data.load_series(csv)
    values = series.values.copy()
    values[190, 1] = np.nan
    series = dataclasses.replace(series, values=values)
    arrays = standardize(series, run.data_spec)
    windows = PanelWindows([run.data_spec], arrays, [range(160, 200)], run.config)
    found = evaluate_model(run, windows).values
    simple = evaluate_baselines(run, windows)
    forecast = compile_forecast(run)
    scaled = (values - run.data_spec.standardizer.mean) / run.data_spec.standardizer.std
    errors = []
    for window in range(windows.num_examples):
        start = windows.starts[window] + INPUT
        batch = windows.take(np.array([window]))
        ours = np.asarray(forecast(batch))[0]
        naive = arrays["values"][start - 1]
        errors.append([ours - scaled[start : start + HORIZON], naive - scaled[start:][:HORIZON]])
    for reported, name, error in zip(
        (found, simple), ("test", "naive"), np.moveaxis(np.array(errors), 1, 0), strict=True
    ):
        for step, row in enumerate(reported["by_step"]):
            assert row["step"] == step + 1
            want = np.nanmean(np.square(error[:, step])), np.nanmean(np.abs(error[:, step]))
            assert (row[f"{name}_mse"], row[f"{name}_mae"]) == pytest.approx(want, rel=1e-5)
        for channel, row in enumerate(reported["by_channel"]):
            want = (
                np.nanmean(np.square(error[..., channel])),
                np.nanmean(np.abs(error[..., channel])),
            )
            assert (row[f"{name}_mse"], row[f"{name}_mae"]) == pytest.approx(want, rel=1e-5)
    columns = [f"{name}_{m}" for name in ("test", "naive", "seasonal_naive", "ridge")
               for m in ("mse", "mae")]  # fmt: skip
    assert list(report["by_step"][0]) == ["step", *columns]
    assert [list(row) for row in report["by_channel"]] == [["channel", *columns]] * 2
    assert [row["channel"] for row in report["by_channel"]] == ["load", "OT"]


def test_validation_rows_are_those_that_selected_the_parameters(run_dir, csv, capsys):
    report = json.loads((run_dir / "test.json").read_text())
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    best = min(line["validation_mse"] for line in lines)
    assert report["validation_mse"] == pytest.approx(best, rel=1e-5)
    run = tasks.load_run(run_dir)
    values = standardize(data.load_series(csv), run.data_spec)["values"]
    errors = [
        values[start - 1] - values[start : start + HORIZON]
        for start in range(140, 160 - HORIZON + 1)
    ]
    assert report["naive_validation_mse"] == pytest.approx(np.mean(np.square(errors)), rel=1e-5)
    assert report["naive_validation_mae"] == pytest.approx(np.mean(np.abs(errors)), rel=1e-5)
    assert {"seasonal_naive_validation_mse", "ridge_validation_mae"} <= report.keys()
    other = tasks.evaluate_run(run_dir, csv)
    assert not any("validation" in name for name in other)
    assert (run_dir / "errors.png").read_bytes().startswith(b"\x89PNG")


def test_a_season_longer_than_what_is_seen_and_one_too_early_to_know():
    values = np.arange(10.0)[:, None]
    found = seasonal_naive(values, np.array([9, 2]), horizon=5, season=4)
    assert found[..., 0].tolist() == [[6, 7, 8, 9, 6], [2, 0, 1, 2, 2]]


@pytest.fixture(scope="module")
def patch_run(csv, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "patch"
    args = ["train", "forecast", "--preset", "patch", "--csv", str(csv), "--run", str(folder)]
    options = ["--model", "patch", "--patch-length", "5", "--calendar", "--dropout-rate", "0"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("flax_linattn.tasks.forecast.evaluate.plot_forecasts", lambda *_: None)
        assert cli.main([*args, *ANY, *options]) == 0
    return folder


@pytest.mark.slow
def test_patches_stream_as_they_are_trained(patch_run, csv):
    """With the calendar, as one stream without end and as two that begin anew."""
    report = tasks.evaluate_run(patch_run)
    assert report["model"] == "patch" and report["stream_max_error"] < 1e-5
    run, series = tasks.load_run(patch_run), data.load_series(csv)
    assert series.times is not None
    arrays = standardize(series, run.data_spec)
    x = np.concatenate([arrays["values"], arrays["time_features"]], axis=1)[None]
    call = nnx.jit(lambda model, x: model(x, every_step=True))
    every, std = np.asarray(call(run.model, x))[0], run.data_spec.standardizer.std
    endless, anew = (ForecastStream(run, context=context) for context in (0, INPUT))
    for t in range(20):
        row = Row(series.times[t], series.values[t])
        found = (endless.step(row) - run.data_spec.standardizer.mean) / std
        np.testing.assert_allclose(found, every[t], rtol=1e-4, atol=1e-5)
        again = (anew.step(row) - run.data_spec.standardizer.mean) / std
        if t < INPUT:
            np.testing.assert_allclose(again, every[t], rtol=1e-4, atol=1e-5)
    seen = x[:, 20 - anew.context : 20]
    last = np.asarray(call(run.model, np.pad(seen, ((0, 0), (0, 180), (0, 0)))))
    np.testing.assert_allclose(again, last[0, anew.context - 1], rtol=1e-4, atol=1e-5)


def test_patches_learn_from_their_ends(patch_run, csv):
    """In training from the last row and those whole patches before, in validation from the last."""
    run = tasks.load_run(patch_run)
    arrays = standardize(data.load_series(csv), run.data_spec)
    batch = PanelWindows([run.data_spec], arrays, [range(60, 76)], run.config).batch(0)
    loss = nnx.jit(make_loss(run.config, run.data_spec))
    x = np.concatenate([batch["values"], batch["time_features"]], axis=-1)
    every = np.asarray(nnx.jit(lambda model, x: model(x, every_step=True))(run.model, x))
    real = batch["weight"] > 0

    def error(last):
        truth = batch["values"][:, last + 1 : last + 1 + HORIZON]
        return np.mean(np.square(every[:, last] - truth)[real])

    found, _ = loss(run.model, batch, None)
    np.testing.assert_allclose(found, error(11), rtol=1e-5)
    found, _ = loss(run.model, batch, jax.random.key(0))
    np.testing.assert_allclose(found, np.mean([error(11), error(6)]), rtol=1e-5)


@pytest.mark.parametrize("context", [0, 12, pytest.param(8, marks=pytest.mark.slow)])
def test_a_stream_is_the_model_on_what_it_looks_back_on(run_dir, csv, context):
    run = tasks.load_run(run_dir)
    series = data.load_series(csv)
    assert series.times is not None
    (scaled,) = run.data_spec.standardizer.apply([series.fill_forward().values])
    marks, _ = data.calendar_features(series.times, "h")
    x = np.concatenate([scaled, marks], axis=1).astype(np.float32)
    stream = ForecastStream(run, context=context)
    for t in range(30):
        found = stream.step(Row(series.times[t], series.values[t]))
        assert stream.context == t + 1 if not context else context / 2 < stream.context <= context \
            or stream.context == t + 1  # fmt: skip
        if t in (3, 29):
            seen = x[None, t + 1 - stream.context : t + 1]
            want = np.asarray(nnx.jit(lambda model, x: model(x))(run.model, seen)[0])
            want = want * run.data_spec.standardizer.std + run.data_spec.standardizer.mean
            np.testing.assert_allclose(found, want, rtol=1e-4)


def test_the_state_of_a_stream_with_another_context(run_dir, csv, tmp_path, capsys):
    state = tmp_path / "state.npz"
    args = ["stream", str(run_dir), "--input", str(csv), "--state", str(state)]
    assert cli.main(args) == 0
    assert capsys.readouterr().out.startswith("step,date,load+1,OT+1,load+2")
    message = fail(capsys, "stream", str(run_dir), "--state", str(state), "--context", "6")
    assert (
        "is the state of another stream" in message
        and "context" in message
        and "(--state, --context)" in message
    )


def test_a_stream_tells_of_a_gap(run_dir, csv, tmp_path, capsys):
    source = tmp_path / "gaps.csv"
    lines = csv.read_text().splitlines(keepends=True)[:12]
    source.write_text("".join(lines[:5] + lines[6:8] + lines[10:] + lines[-1:]))
    assert cli.main(["stream", str(run_dir), "--input", str(source)]) == 0
    printed, told = capsys.readouterr()
    assert len(printed.splitlines()) == 10  # the row whose time stands twice is taken, too
    late = lines[6].split(",")[0]
    assert f"note: the time {late} breaks the frequency h of the run" in told
    assert "note: 3 observations broke the step of the run" in told


def test_a_signal_saves_the_stream(run_dir, csv, tmp_path):
    state = tmp_path / "state.npz"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with command_line("stream", str(run_dir), "--state", str(state), **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("".join(csv.read_text().splitlines(keepends=True)[:4]))
        process.stdin.flush()
        for _ in range(4):  # a header and three forecasts
            process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert process.stderr is not None
        assert "saved after 3 observations" in process.stderr.read()
    assert state.is_file()


def test_rows_by_name_by_place_and_as_json():
    channels = ("a", "b")
    lines = ["time,b,x,a", "2024-01-01,1,9,2", "", "2024-01-02,?,9,3"]
    rows = list(RowLines(channels).parse(lines))
    assert [str(row.time)[:10] for row in rows] == ["2024-01-01", "2024-01-02"]
    np.testing.assert_array_equal([row.values for row in rows], [[2, 1], [3, np.nan]])
    (row,) = RowLines(channels).parse(["b,a,Timestamp", "1,2,2024-01-01"])
    assert row.time is not None and row.values.tolist() == [2, 1]
    (row,) = RowLines(channels).parse(['{"timestamp": "2024-01-01", "b": 1, "a": 2}'])
    assert row.time is not None
    (row,) = RowLines(channels).parse(['{"date": "2024-01-01 03:00", "b": 1.5, "a": null}'])
    assert row.time is not None and row.time.hour == 3
    np.testing.assert_array_equal(row.values, [np.nan, 1.5])


def test_only_a_first_line_that_is_no_row_names_the_columns():
    def values(lines, channels, **options):
        return [
            row.values.tolist() for row in read_lines(RowLines(channels, **options).parse, lines)
        ]

    assert values(["5,6", "1,0", "7,8"], ("0", "1")) == [[5, 6], [1, 0], [7, 8]]
    assert values(["1,0", "7,8"], ("0", "1")) == [[1, 0], [7, 8]]
    assert values(["2024-01-01,5", "2024-01-02,0"], ("0",)) == [[5], [0]]
    assert values(["date,1,0", "2024-01-01,5,6"], ("0", "1")) == [[6, 5]]
    assert values(["773,41", "5,6"], ("41",), numeric_names=True) == [[6]]
    assert values(["a,b", "1,2"], ("b", "a")) == [[2, 1]]
    assert values(["\ufeff\ufeffa,b", "1,2"], ("b", "a")) == [[2, 1]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1", r"standard input:1: expected 2 cells \(a, b\) or 3 cells \(time, a, b\), got 1"),
        ("1,x", r"standard input:1: expected a finite number for b, got 'x'; leave the cell empty"),
        ("1,inf", "got 'inf'"),
        ("noon,1,2", "expected a time such as .* got 'noon'"),
        ("date,a,b\nnoon,1,2", "expected a time such as .* got 'noon'"),
        ("1,1_0", "got '1_0'"),
        ('{"a": 1', "got invalid JSON"),
        ('{"a":' + "[" * 100_000, "got invalid JSON \\(too deeply nested\\)"),
        (
            "date,a,a,b\n2024-01-01,1,2,3",
            "standard input:1: expected the columns .*: 'a' appears twice",
        ),
        ('{"a": 1, "b": 2, "a": 3}', "standard input:1: expected each name once, got 'a' twice"),
        ('{"a": 1, "b": %s}' % ("9" * 5000), "standard input:1: expected a finite number for b"),
        ('{"a": 1, "b": -%s}' % ("9" * 5000), "standard input:1: expected a finite number for b"),
        ('1,"2', "standard input:1: expected cells separated by ',' with closed quotes"),
        ('{"a": 1, "B": 2}', "expected the columns a, b, got a, B: 'b' is missing; write null"),
        ('{"a": true, "b": 2}', "expected a finite number for a, got 'True'; write null"),
        ("a,b,c\n1,2", "standard input:2: expected 3 cells, as in the first line, got 2"),
        ("2024-01-01,1", r"expected 3 cells \(time, a, b\), got 2"),
        ("date,date,a,b\n1,2,3,4", "one column of times, got date, date"),
        ("date,time,a,b\n1,2,3,4", "one column of times, got date, time"),
        ('{"a": 1, "b": 2, "date": 3, "time": 4}', "input:1: expected one column of times"),
        ("time,A,B", "expected the columns a, b, got time, A, B: 'a' is missing"),
    ],
)
def test_bad_rows_are_named(line, message):
    with pytest.raises(ValueError, match=message):
        read_lines(RowLines(("a", "b")).parse, line.split("\n"))


def test_a_stream_refuses_what_it_cannot_go_on_with(run_dir, tmp_path):
    run = tasks.load_run(run_dir)
    stream = ForecastStream(run)
    noon = datetime(2024, 1, 1, 12)
    for values in ([1.0], [1.0, np.inf]):
        with pytest.raises(ValueError, match="expected 2 finite or missing values"):
            stream.step(Row(noon, np.array(values)))
    with pytest.raises(ValueError, match=r"within 1e\+18 standard deviations .* for channel OT"):
        stream.step(Row(noon, np.array([1.0, 1e60])))
    stream.step(Row(noon, np.array([1.0, 2.0])))
    stream.save(tmp_path / "state.npz")
    again = ForecastStream(run)
    again.load(tmp_path / "state.npz")
    with pytest.raises(ValueError, match="expected a time after 2024-01-01 12:00:00"):
        again.step(Row(noon, np.array([1.0, 2.0])))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["2024-01-01 01:00,1,2", "2024-01-01 00:00,1,2"], "2: expected a time after 2024"),
        (["1,2"], "1: expected a row with a time, from which"),
        (["", "2024-01-01 00:00,1,1e60"], "2: expected values within"),
    ],
)
def test_lines_that_do_not_go_on_are_named(run_dir, lines, message, tmp_path, capsys):
    source, state = tmp_path / "lines.csv", tmp_path / "state.npz"
    source.write_text("\n".join(lines) + "\n")
    args = ["stream", str(run_dir), "--input", str(source), "--state", str(state)]
    assert f"{source}:{message}" in fail(capsys, *args)
    assert state.is_file() == (len(lines) == 2 and lines[0] != "")  # what came before it is saved


def test_what_was_seen_is_told_by_time(run_dir, csv, tmp_path, capsys):
    """Lines that the state has not seen may be fewer or more than before."""
    lines, source = csv.read_text().splitlines(keepends=True), tmp_path / "lines.csv"
    args = ["stream", str(run_dir), "--input", str(source), "--state", str(tmp_path / "state.npz")]
    source.write_text("".join(lines[:11]))
    succeed(capsys, *args)
    source.write_text("".join([lines[0], *lines[6:21]]))  # its first rows are gone since
    found = succeed(capsys, *args, "--skip-processed").splitlines()[1:]
    source.write_text("".join(lines[:21]))
    whole = succeed(capsys, *args[:4]).splitlines()[1:]
    assert found == whole[10:]


@pytest.mark.slow
@pytest.mark.parametrize("taken", [1, 2, 3])
def test_rows_of_one_time_are_taken_once_each(run_dir, csv, tmp_path, capsys, taken):
    """Wherever among them the stream stood when its state was saved."""
    lines, source = csv.read_text().splitlines(keepends=True), tmp_path / "lines.csv"
    args = ["stream", str(run_dir), "--input", str(source), "--state", str(tmp_path / "state.npz")]
    time = lines[10].partition(",")[0]
    lines = [*lines[:11], f"{time},7,8\n", f"{time},9,8\n", *lines[11:16]]
    source.write_text("".join(lines[: 10 + taken]))
    succeed(capsys, *args)
    source.write_text("".join(lines[10 + taken :]))
    if taken < 3:
        message = fail(capsys, *args)
        assert f"lines.csv:1: expected a time after {time}" in message
        assert "may have processed this row already" in message and "--skip-processed" in message
    source.write_text("".join(lines))
    found = succeed(capsys, *args, "--skip-processed").splitlines()[1:]
    whole = succeed(capsys, *args[:4]).splitlines()[1:]
    assert len(whole) == 17 and found == whole[9 + taken :]


def test_a_forecast_that_is_nan_is_not_printed(run_dir, tmp_path, capsys):
    """The state before stays."""
    run = tasks.load_run(run_dir)
    head = run.model.head
    head.bias[...] = np.nan * head.bias[...]
    with pytest.raises(ValueError, match="the forecast after observation 1 is NaN"):
        ForecastStream(run).step(Row(datetime(2024, 1, 1), np.array([1.0, 2.0])))


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    "mechanism", ["softmax", pytest.param("taylorshift", marks=[pytest.mark.slow])]
)
def test_encoder_decoder_runs_do_not_stream(mechanism, csv, tmp_path, capsys, request):
    """The slow one is trained; ``tests/models/test_forecaster.py`` looks at gradients."""
    if mechanism == "softmax":
        request.getfixturevalue("no_steps")
    folder = tmp_path / "run"
    args = ["train", "forecast", "--csv", str(csv), "--run", str(folder), *ANY]
    options = ["--model", "encoder-decoder", "--mechanism", mechanism, "--targets", "OT"]
    options += ["--label-length", "4", "--epochs", "1"]
    assert cli.main([*args, *options]) == 0
    assert "stream_max_error" not in tasks.evaluate_run(folder)
    message = fail(capsys, "stream", str(folder))
    assert "train a decoder" in message and message.endswith("(--mechanism, --model decoder)\n")


@pytest.mark.usefixtures("no_figures", "no_steps")
def test_a_command_that_names_no_model_trains_the_patch_preset(csv, tmp_path, capsys):
    """Others, and runs that go on, have their own options."""
    small = ANY[: ANY.index("--model")]

    def options(folder, *args):
        command = ["train", "forecast", "--csv", str(csv), "--run", str(tmp_path / folder), *small]
        succeed(capsys, *command, *args)
        return tasks.load_run(tmp_path / folder).config

    usual = options("usual")
    given = {name: value for name, value in usual.flat().items() if name in ("csv", "split")}
    sizes = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8}
    shape = {"context_length": INPUT, "horizon": HORIZON, "epochs": 2}
    kind = type(usual)
    chosen = {name: usual.flat()[name] for name in kind.auto_values}
    assert not usual.auto_options and chosen["context_length"] == INPUT
    assert (chosen["season"], chosen["stride"], chosen["patch_length"]) == (24, 1, 16)
    assert usual == FORECAST.presets["patch"](kind.of()).replace(**given, **sizes, **shape | chosen)
    assert usual.model.ridge and not usual.data.calendar
    decoder = options("decoder", "--model=decoder")
    assert decoder == kind.of(**given, **sizes, **shape, season=24)
    assert options("decoder", "--resume", "--epochs", "3") == decoder.replace(epochs=3)
    assert options("same", "--model=patch") == usual
    assert "minutes (the default, unless --model names another model)" in one_line(
        succeed(capsys, "train", "forecast", "--help")
    )


def test_bad_options_are_named(csv, tmp_path, capsys, run_dir):
    args = ["train", "forecast", "--csv", str(csv), "--run", str(tmp_path / "run"), *SMALL]
    for option in ("--channels", "--targets", "--known-future"):
        message = fail(capsys, *args, "--model", "patch", option, "x")
        assert "unknown channel 'x'; " in message and message.endswith(f"({option})\n")
    for option in (["--label-length", "4"], ["--no-causal"]):
        message = fail(capsys, *args, *option)
        name = "--causal" if option == ["--no-causal"] else "--label-length"
        assert "is an option of the model 'encoder-decoder'" in message
        assert f"({name}, --model)" in message
    message = fail(capsys, *args, "--model", "encoder-decoder", "--label-length", "4")
    assert message.startswith("error: positions is an option of the models 'decoder' and 'patch'")
    message = fail(capsys, *args, "--model", "patch", "--no-normalize")
    assert "an option of the models 'decoder' and 'encoder-decoder'" in message
    message = fail(capsys, *args, "--no-linear-path")
    assert message.endswith(
        "is an option of the model 'patch', not of 'decoder'; remove the option, or choose another "
        "model. (--linear-path, --model)\n"
    )
    assert "patch_length must be at least 0" in fail(capsys, *args, "--patch-length", "-1")
    for option in ([], ["--model", "encoder-decoder", "--no-causal"]):
        message = fail(capsys, *args[:6], "--horizon", "4", *option, "--mechanism", "linformer")
        assert "'linformer' has no causal form, which this model needs" in message
    assert cli.main(["train", "forecast", "--help"]) == 0
    shown = one_line(capsys.readouterr().out)
    assert "expressive_quadratic" in shown and "linformer" not in shown
    message = one_line(fail(capsys, "stream", str(run_dir), "--sequence", "0"))
    assert "Unrecognized options: --sequence" in message
    assert "expected context as 0, or 2 or more" in fail(
        capsys, "stream", str(run_dir), "--context", "1"
    )
    no_times = tmp_path / "bare.csv"
    no_times.write_text("load,OT\n" + "1,2\n" * 30)
    message = fail(capsys, "evaluate", str(run_dir), "--test-file", str(no_times))
    assert "expected rows with times, from which the run computes hour" in message
    days = tmp_path / "days.csv"
    days.write_text("date,load,OT\n" + "".join(f"2024-01-{d:02},1,2\n" for d in range(1, 30)))
    message = fail(capsys, "evaluate", str(run_dir), "--test-file", str(days))
    assert "expected rows at the frequency h" in message and "got D" in message


@pytest.fixture
def copied(run_dir, csv, tmp_path):
    """A run of a file that may change."""
    folder, own = tmp_path / "copy", tmp_path / csv.name
    shutil.copytree(run_dir, folder)
    shutil.copy(csv, own)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "csv": str(own)}))
    return folder, own


def test_rows_that_came_later_change_no_test(copied, run_dir):
    folder, own = copied
    last = own.read_text().splitlines()[-1].split(",")[0]
    later = np.datetime64(last.replace(" ", "T")) + np.timedelta64(1, "h")
    own.write_text(own.read_text() + f"{str(later).replace('T', ' ')},1,2\n")
    want = json.loads((run_dir / "test.json").read_text())
    assert tasks.evaluate_run(folder)["test_mse"] == pytest.approx(want["test_mse"])


def test_data_that_are_gone_are_told(copied, capsys):
    folder, own = copied
    own.unlink()
    message = fail(capsys, "evaluate", str(folder))
    assert "a data file of the run is missing; restore it, or pass another test file" in message


@pytest.mark.usefixtures("no_figures", "no_steps")
def test_what_deserves_a_second_look_is_told_anyway(tmp_path, capsys):
    path = tmp_path / "still.csv"
    path.write_text("load,still\n" + "".join(f"{i % 7},5\n" for i in range(100)) + "?,5\n")
    args = ["train", "forecast", "--csv", str(path), "--run", str(tmp_path / "run"), *SMALL]
    assert cli.main([*args, "--no-progress", "--epochs", "1"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note")]
    assert notes[:2] == [
        "note: missing values: 1; each is replaced by the last known value of its channel, and "
        "excluded from test errors",
        "note: constant channels (still): 1; choose other targets",
    ]
    assert tasks.evaluate_run(tmp_path / "run")["stream_max_error"] < 1e-4


@pytest.fixture
def weather(tmp_path) -> Path:
    """As Time-Series-Library's file: 21 channels every ten minutes, one stamp twice, and a gap."""
    path = tmp_path / "weather.csv"
    steps = np.arange(410)
    times = np.datetime64("2020-01-01T00:10:00") + steps * np.timedelta64(10, "m")
    times[300] = times[299]
    times[350:] += np.timedelta64(90, "m")
    names = ["p (mbar)", "SWDR (W/m\xb2)", "wd (deg)", *(f"c{i}" for i in range(17)), "OT"]
    lines = [
        f"{str(time).replace('T', ' ')},"
        + ",".join(f"{np.sin(step / 9 + i):.3f}" for i in range(21))
        for step, time in zip(steps, times, strict=True)
    ]
    path.write_text("\n".join(["date," + ",".join(names), *lines, ""]), encoding="latin-1")
    return path


@pytest.mark.usefixtures("no_figures", "no_steps")
def test_real_files_with_a_repeated_and_missing_times_train(weather, tmp_path, capsys):
    args = ["train", "forecast", "--csv", str(weather), "--run", str(tmp_path / "run"), *SMALL]
    assert "weather.csv:1: expected text in UTF-8" in fail(capsys, *args)
    args += ["--encoding", "latin-1"]
    message = fail(capsys, *args, "--times", "strict")
    assert "weather.csv:302: expected a time after 2020-01-03 02:00:00" in message
    assert cli.main([*args, "--no-progress", "--epochs", "1"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert "weather: 410 rows, channels p (mbar), SWDR (W/m²)," in told[2]
    assert [line[:9] for line in told if line.startswith("epoch")] == ["epoch 1/1"]
    assert [line for line in told if line.startswith("note")][:2] == [
        "note: rows with the same time as the row before: 1 (line 302, 2020-01-03 02:00:00 after "
        "2020-01-03 02:00:00); the rows are used in their order",
        "note: rows that break the frequency 10min: 2 (line 303, 2020-01-03 02:20:00 after "
        "2020-01-03 02:00:00; line 352, 2020-01-03 12:00:00 after 2020-01-03 10:20:00); the rows "
        "are used in their order",
    ]
    assert np.isfinite(json.loads((tmp_path / "run" / "test.json").read_text())["test_mse"])
    run = tasks.load_run(tmp_path / "run")
    assert run.config.data.split == "0.7/0.1/0.2"
    assert isinstance(run.data_spec, ForecastSpec) and len(run.data_spec.channels) == 21
    series = data.load_series(weather, dialect=run.config.data.dialect)
    arrays = standardize(series, run.data_spec)
    # A row has the calendar of its own stamp.
    np.testing.assert_array_equal(arrays["time_features"][299], arrays["time_features"][300])
    hours = arrays["time_features"][:, run.data_spec.time_features.index("hour")]
    assert [round(23 * (hour + 0.5)) for hour in hours[[349, 350]]] == [10, 12]


def test_splits_of_known_files(tmp_path):
    """By name, whatever the folder, the case and the compression; a run keeps its own."""
    for name, split in (
        ("ETTm1.csv", "34560/11520/11520"),
        ("etth2.csv.gz", "8640/2880/2880"),
        ("traffic.csv", "0.7/0.1/0.2"),
        ("sales.csv", "0.7/0.1/0.2"),
    ):
        assert ForecastConfig.of(csv=tmp_path / name).resolve().data.split == split
        given = ForecastConfig.of(csv=tmp_path / name, split="0.5/0.2/0.3")
        assert given.resolve().data.split == "0.5/0.2/0.3"
    assert ForecastConfig.of().resolve().data.split == "8640/2880/2880"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--split", "190/3/7"], "expected at least 4 validation rows for --context-length 12 "),
        (["--split", "150/48/2"], "expected at least 4 test rows for --context-length 12 "),
        (["--horizon", "200"], "expected at least 212 training rows for --context-length 12 and "
         "--horizon 200 (1987 rows in all), got 140 by --split "),
        (["--horizon", "200", "--context-length", "0"],
         "expected at least 201 training rows for --horizon 200 "),
    ],
)  # fmt: skip
def test_data_without_a_window_are_refused_when_loaded(csv, tmp_path, capsys, args, message):
    run = ["--run", str(tmp_path / "run"), *SMALL]
    told = fail(capsys, "train", "forecast", "--csv", str(csv), *run, *args)
    assert told.startswith(f"error: {csv}: expected at least") and message in told
    assert "--horizon " in told and ("--context-length " in told) != ("0" in args)
    assert not (tmp_path / "run").exists()


def test_new_rows_that_are_too_few_to_continue_say_so(run_dir, csv, tmp_path, capsys):
    few = tmp_path / "few.csv"
    few.write_text("\n".join(csv.read_text().splitlines()[:9]))
    args = ["--csv", str(few), "--from", str(run_dir), "--run", str(tmp_path / "run")]
    message = fail(capsys, "train", "forecast", *args)
    assert "few.csv: expected at least" in message and "of 8 rows; add rows" in message
    assert f"A run that continues {run_dir} is trained, validated and tested on these" in message


def test_predictions_note_what_is_odd_in_the_rows_that_they_are_made_from(
    run_dir, csv, tmp_path, capsys
):
    """Of the last rows of a new file, once; what is odd before them, the model does not receive."""
    new = tmp_path / "new.csv"
    header, *rows = csv.read_text().splitlines()
    rows = [rows[i] for i in (0, 2, *range(60, 70), 70, 70, 73)]
    rows[-1] = rows[-1].rpartition(",")[0] + ","
    new.write_text("\n".join([header, *rows]) + "\n")
    succeed(capsys, "predict", str(run_dir), "--out", str(tmp_path / "own.csv"))
    cli.main(["predict", str(run_dir), "--input", str(new), "--out", str(tmp_path / "x.csv")])
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note")]
    assert [line.split(";")[0] for line in notes] == [
        "note: rows with the same time as the row before: 1 (line 15, 2024-01-03 23:00:00 after "
        "2024-01-03 23:00:00)",
        "note: rows that break the frequency h: 1 (line 16, 2024-01-04 02:00:00 after "
        "2024-01-03 23:00:00)",
        "note: missing values: 1",
    ]


def test_a_split_that_a_file_is_too_short_for_names_its_option(tmp_path, capsys):
    path = tmp_path / "ETTh1.csv"
    path.write_text("a\n" + "1\n" * 100)
    args = ["train", "forecast", "--csv", str(path), "--run", str(tmp_path / "run"), *SMALL]
    message = fail(capsys, *args)
    assert "has 100 rows, but 8640/2880/2880 needs 14400" in message and "(--split)" in message
    for split in ("0.7/0.1", "0.7/0.1/0.3", "-1/1/1", "60.5/20/10"):
        assert fail(capsys, *args, "--split", split).endswith("(--split)\n")


def test_a_first_line_that_may_be_damaged_asks_for_its_flag(tmp_path, capsys):
    path = tmp_path / "sensor.csv"
    path.write_text("1.5,2x\n" + "1,2\n" * 200)
    args = ["train", "forecast", "--csv", str(path), "--run", str(tmp_path / "run"), *SMALL]
    message = fail(capsys, *args)
    assert "set whether it is a header with --header" in message
    assert message.endswith("(--header yes|no)\n")


def test_the_scale_is_that_of_the_published_protocol(csv):
    """scikit-learn's: the deviation of the population."""
    series = data.load_series(csv)
    data_spec = describe(
        SeriesPanel.from_series(series, data.chronological_split(ROWS)), ForecastConfig.of(csv=csv)
    )
    fitted = series.fill_forward().values[:140]
    np.testing.assert_allclose(data_spec.standardizer.std, fitted.std(axis=0), rtol=1e-12)


def test_a_run_goes_on_with_the_scales_that_it_began_with(copied, monkeypatch, capsys):
    folder, _ = copied
    stored = json.loads((folder / "data_spec.json").read_text())
    stored["standardizer"]["std"] = [2.0, 3.0]
    (folder / "data_spec.json").write_text(json.dumps(stored))

    def batches(self, data, config, data_spec, sequence_shards):
        raise ValueError(f"scaled by {data_spec.standardizer.std.tolist()}")

    monkeypatch.setattr(type(FORECAST), "batches", batches)
    args = ["train", "forecast", "--run", str(folder), "--epochs", "3", "--parallel", "none"]
    assert "scaled by [2.0, 3.0]" in fail(capsys, *args, "--resume")


def test_a_value_that_flattens_its_channel_is_told(tmp_path, capsys):
    path = tmp_path / "far.csv"
    args = ["train", "forecast", "--csv", str(path), "--run", str(tmp_path / "run"), *SMALL]

    def write(**cells):
        lines = [cells.get(f"row{i}", f"{i % 7},{i % 5}") for i in range(100)]
        path.write_text("# c\nload,OT\n" + "\n".join(lines) + "\n")

    write(row20="1e30,1")
    assert FORECAST.load(
        ForecastConfig.of(csv=path, horizon=4, context_length=12).resolve()
    ).notes == [
        "values so large that scaling flattens all other values of their channel: 1 (1e+30 in "
        "'load', line 23); leave the cell empty if one is a missing value"
    ]
    write(row20="1e39,1", row90="1,-1e39")
    message = fail(capsys, *args)
    assert "far.csv, line 23: expected values up to 3.4e+38 (the maximum of float32)" in message
    assert "got 1e+39 in channel 'load'" in message and "(--channels)" in message
    write(row90="1,1e30")  # of the test rows
    message = fail(capsys, *args)
    assert "far, line 93: expected values within 1e+18 standard deviations" in message


def test_rain_is_no_outlier_and_a_few_events_are_told_as_what_they_are(tmp_path):
    path = tmp_path / "rain.csv"
    rain, events = {3: 0.2, 50: 40.0, 70: 1.5}, {20: 1}
    rows = [f"{i % 7},{rain.get(i, 0)},{events.get(i, 0)}" for i in range(200)]
    path.write_text("load,rain,event\n" + "\n".join(rows) + "\n")
    assert FORECAST.load(
        ForecastConfig.of(csv=path, horizon=4, context_length=12).resolve()
    ).notes == [
        "channels with the same value in all but a few rows ('event' is 0 in all but 1 row, first "
        "1 in line 22): 1"
    ]


def test_a_channel_that_begins_late_sees_nothing_of_what_comes(csv):
    """Before its first value it is at the mean of the training rows; those decide the scale."""
    series = data.load_series(csv)
    values = series.values.copy()
    values[:30, 1] = np.nan
    split = data.chronological_split(ROWS, "0.7/0.1/0.2")
    config = ForecastConfig.of(csv=csv)
    late = dataclasses.replace(series, values=values)
    arrays = standardize(late, describe(SeriesPanel.from_series(late, split), config))
    assert (arrays["values"][:30, 1] == 0).all() and arrays["values"][30, 1] != 0
    values[: split.train.stop, 1] = np.nan
    with pytest.raises(ValueError, match="expected values of channel 'OT' in the training rows"):
        empty = dataclasses.replace(series, values=values)
        describe(SeriesPanel.from_series(empty, split), config)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.slow
def test_evaluates_a_model_of_as_many_positions_as_a_window(csv, tmp_path):
    args = ["train", "forecast", "--csv", str(csv), "--run", str(tmp_path / "run"), *SMALL]
    assert cli.main([*args, "--mechanism", "aft"]) == 0
    report = tasks.evaluate_run(tmp_path / "run")
    assert report["stream_steps"] == INPUT and report["stream_max_error"] < 1e-4


def test_streams_are_read_as_files_are(run_dir, csv, tmp_path, capsys):
    packed = tmp_path / "waves.csv.gz"
    packed.write_bytes(gzip.compress(csv.read_bytes()))
    assert cli.main(["stream", str(run_dir), "--input", str(packed)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == ROWS + 1
    latin = tmp_path / "latin.csv"
    latin.write_bytes("date,load,OT\n2024-01-01,1,2°\n".encode("latin-1"))
    assert "latin.csv:2: expected a finite number for OT" in fail(
        capsys, "stream", str(run_dir), "--input", str(latin)
    )


@pytest.mark.usefixtures("no_figures", "no_steps")
def test_names_with_commas(tmp_path, capsys):
    path = tmp_path / "quoted.csv"
    path.write_text('"load, MW",OT\n' + "".join(f"{i % 7},{i % 5}\n" for i in range(200)))
    args = ["train", "forecast", "--csv", str(path), "--run", str(tmp_path / "run"), *ANY]
    options = ["--channels", 'OT,"load, MW"', "--targets", '"load, MW"', "--epochs", "1"]
    assert cli.main([*args, *options]) == 0
    capsys.readouterr()
    assert cli.main(["stream", str(tmp_path / "run"), "--input", str(path)]) == 0
    assert capsys.readouterr().out.startswith('step,time,"load, MW+1"')
    # Times are no harm to a run that knew none.
    timed = tmp_path / "timed.csv"
    rows = (f"2024-01-{1 + i // 24:02} {i % 24:02}:00,{i % 7},{i % 5}\n" for i in range(200))
    timed.write_text('date,"load, MW",OT\n' + "".join(rows))
    report = tasks.evaluate_run(tmp_path / "run", timed)
    assert report["num_test_windows"] == 200 - INPUT - HORIZON + 1


def test_numbers_that_are_not_finite_are_null(tmp_path):
    write_json(tmp_path / "x.json", {"a": [float("nan"), 1.5], "b": float("inf")})
    assert read_json(tmp_path / "x.json") == {"a": [None, 1.5], "b": None}


def test_forecast_stream_draws(run_dir, csv, tmp_path):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "forecast.png"
    assert cli.main(["stream", str(run_dir), "--input", str(csv), "--figure", str(figure)]) == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert (run_dir / "forecasts.png").is_file()


def test_what_is_missing_is_neither_learned_nor_tested(tmp_path):
    rows = np.arange(60.0)
    values = np.stack([np.sin(rows), np.cos(rows)], axis=1)
    holes = values.copy()
    holes[50:, 1] = holes[55, 0] = np.nan
    config = ForecastConfig.of(
        csv=tmp_path / "x.csv", model="decoder", horizon=4, context_length=8, features=8,
        num_heads=2, hidden_features=8, num_layers=1, split="40/6/14", calendar=False,
    )  # fmt: skip
    series = data.TimeSeries("holes", holes, ("a", "b"))
    split = data.chronological_split(60, config.data.split)
    data_spec = describe(SeriesPanel.from_series(series, split), config)
    arrays = standardize(series, data_spec)
    model = FORECAST.model(config, data_spec)
    run = tasks.Run(FORECAST, config, data_spec, model)
    loss = nnx.jit(make_loss(config, data_spec))
    forecast_of = compile_forecast(run)

    windows = PanelWindows([data_spec], arrays, [range(50, 60)], config)
    first = windows.batch(0)
    report = evaluate_model(run, windows).values
    found, metrics = loss(model, first, None)
    forecasts = np.asarray(forecast_of(first))
    real = first["weight"] > 0
    index = windows.starts[:, None] + 8 + np.arange(4)
    scaled = (holes - data_spec.standardizer.mean) / data_spec.standardizer.std
    error = forecasts[real] - scaled[index]
    # The last channel has no known truth.
    mean = np.nanmean(np.square(error[..., 0]))
    np.testing.assert_allclose(report["test_mse"], mean, rtol=1e-5)
    np.testing.assert_allclose(found, np.nanmean(np.square(error)), rtol=1e-5)
    assert float(metrics["mse"][1]) < real.sum()
    # By it parts of a batch are weighted: they add up to the whole.
    np.testing.assert_array_equal(metrics["loss"], metrics["mse"])
    early = PanelWindows([data_spec], arrays, [range(46, 60)], config)
    index = early.starts[:, None] + 8 + np.arange(4)
    (whole,) = early
    forecasts = np.asarray(forecast_of(whole))
    error = forecasts[whole["weight"] > 0] - scaled[index]
    pooled = evaluate_model(run, early).values["test_mse"]
    np.testing.assert_allclose(pooled, np.nanmean(np.square(error)), rtol=1e-5)
    other = {**first, "values": first["values"].copy()}
    other["values"][:, 8:][~first["known"][:, 8:]] = 99.0
    np.testing.assert_array_equal(loss(model, first, None)[0], loss(model, other, None)[0])
    unknown = {**first, "known": np.zeros_like(first["known"])}
    assert loss(model, unknown, None)[0] == 0.0


def test_parts_without_any_value_are_refused_before_training(tmp_path, capsys):
    path = tmp_path / "ends.csv"
    path.write_text("load,other\n" + "".join(f"{i % 7},5\n" for i in range(80)) + "?,5\n" * 20)
    args = ["train", "forecast", "--csv", str(path), "--run", str(tmp_path / "run"), *SMALL]
    message = one_line(fail(capsys, *args, "--targets", "load", "--split", "60/20/20"))
    assert "expected values of load in the test rows (80 to 99)" in message
    assert not (tmp_path / "run").exists()
