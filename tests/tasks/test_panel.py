"""Global models of a panel of series: scales, windows, errors by series, streams."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flax_linattn import cli, data, tasks
from flax_linattn.checks import OptionError
from flax_linattn.tasks.forecast import ForecastConfig, ForecastSpec, ForecastStream, Row
from flax_linattn.tasks.forecast.evaluate import Errors
from flax_linattn.tasks.forecast.panel import SeriesPanel, load_panel
from flax_linattn.tasks.forecast.rows import RowLines
from flax_linattn.tasks.forecast.spec import describe, seasonal_scale
from flax_linattn.tasks.forecast.windows import compile_forecast, part_windows, stack
from tests.tasks.commands import fail, no_drawing, succeed

INPUT, HORIZON, SEASON = 12, 4, 6
SMALL = [
    *("--features", "8", "--num-layers", "1", "--num-heads", "2", "--hidden-features", "8"),
    *("--context-length", str(INPUT), "--horizon", str(HORIZON), "--season", str(SEASON)),
    *("--epochs", "2", "--steps", "4", "--parallel", "none", "--model", "patch"),
    *("--no-ridge", "--schedule", "halving", "--patience", "3"),
    *("--patch-length", "4", "--no-calendar"),
]
GLOBAL = ForecastConfig.of(global_model=True)


def series_of(count: int) -> list[data.TimeSeries]:
    """Pieces of ETTh1's channels, of 90 rows and more."""
    table = data.etth1()
    assert table.times is not None
    found = []
    for which in range(count):
        channel, piece = which % 7, which // 7
        rows = slice(700 * piece, 700 * piece + 90 + which % 11)
        values = table.values[rows, channel : channel + 1]
        found.append(data.TimeSeries(f"s{which}", values, ("load",), table.times[rows]))
    return found


def write_long(path: Path, panel: list[data.TimeSeries]) -> Path:
    lines = ["shop,date,load"]
    for one in panel:
        assert one.times is not None
        lines += [
            f"{one.name},{str(time).replace('T', ' ')},{'' if np.isnan(value) else value}"
            for time, value in zip(one.times, one.values[:, 0], strict=True)
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def shops(tmp_path_factory) -> Path:
    """A hundred series, one of which is too short for any window."""
    panel = series_of(100)
    short = panel[3]
    assert short.times is not None
    panel[3] = dataclasses.replace(short, values=short.values[:9], index=short.index[:9])
    return write_long(tmp_path_factory.mktemp("data") / "shops.csv", panel)


@pytest.fixture(scope="module")
def run_dir(shops, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "panel"
    args = ["--csv", str(shops), "--id-column", "shop", "--run", str(folder), *SMALL]
    with no_drawing():
        assert cli.main(["train", "forecast", *args]) == 0
    return folder


def test_predictions_have_the_columns_of_nixtla_where_the_data_have(run_dir, shops, tmp_path):
    run, file = tasks.load_run(run_dir), tmp_path / "nixtla.csv"
    file.write_text(shops.read_text().replace("shop,date,load", "unique_id,ds,load", 1))
    own = run.task.predict(run, shops)
    config = run.config.replace(id_column="unique_id", time_column="ds")
    found = run.task.predict(run._replace(config=config), file)
    assert list(own) == ["series", "date", "load"] and list(found) == ["unique_id", "ds", "load"]
    np.testing.assert_array_equal(found.to_numpy(), own.to_numpy())
    assert len(found) == 99 * HORIZON and found["ds"].dtype.kind == "M"


@pytest.mark.parametrize(("id_column", "targets"), [("unique_id", (0,)), ("shop", (0, 1))])
def test_y_is_the_target_of_a_frame_of_nixtla(id_column, targets, tmp_path):
    file = tmp_path / "panel.csv"
    rows = [f"{name},2024-01-{day},{day}.5,{day % 3}\n" for name in "ab" for day in range(10, 30)]
    file.write_text(f"{id_column},ds,y,price\n" + "".join(rows))
    config = ForecastConfig.of(csv=file, id_column=id_column, horizon=1, context_length=2).resolve()
    assert describe(load_panel(config), config).targets == targets


def test_errors_are_those_of_the_definition(run_dir, shops):
    """Worked out from the file in float64, series by series and window by window."""
    report = json.loads((run_dir / "test.json").read_text())
    run = tasks.load_run(run_dir)
    forecast = compile_forecast(run)
    scaled, naives, squares = {}, [], []
    for one in data.load_long(shops, id_column="shop"):
        if one.name == "s3":
            continue
        values = one.values[:, 0]
        split = data.chronological_split(len(values))
        train = values[: split.train.stop]
        mean, std = train.mean(), train.std()
        starts = np.arange(split.test.start - INPUT, split.test.stop - INPUT - HORIZON + 1)
        seen = np.stack([values[s : s + INPUT] for s in starts])
        came = np.stack([values[s + INPUT : s + INPUT + HORIZON] for s in starts])
        batch = {"values": ((seen - mean) / std)[..., None].astype(np.float32)}
        found = np.asarray(forecast(batch), np.float64)[..., 0] * std + mean
        divisor = np.abs(train[SEASON:] - train[:-SEASON]).mean()
        scaled[one.name] = np.abs(found - came).mean() / divisor
        squares.append(np.square((found - came) / std).ravel())
        last = seen[:, INPUT - SEASON : INPUT - SEASON + HORIZON]
        naives.append(np.square((last - came) / std).ravel())
    by_series = {row["series"]: row["mase"] for row in report["by_series"]}
    assert by_series.keys() == scaled.keys() and report["num_test_series"] == 99
    for name, value in scaled.items():
        np.testing.assert_allclose(by_series[name], value, rtol=1e-4)
    np.testing.assert_allclose(report["test_mse"], np.concatenate(squares).mean(), rtol=1e-4)
    np.testing.assert_allclose(
        report["seasonal_naive_mse"], np.concatenate(naives).mean(), rtol=1e-4
    )
    np.testing.assert_allclose(report["test_mase"], np.mean([*scaled.values()]), rtol=1e-4)
    assert report["worst_series"] == max(scaled, key=lambda name: scaled[name])
    assert report["best_series"] == min(scaled, key=lambda name: scaled[name])
    assert [row["series"] for row in report["series"]][:1] == [report["best_series"]]


def test_what_a_run_remembers_of_each_series(run_dir, shops):
    data_spec = tasks.load_run(run_dir).data_spec
    assert isinstance(data_spec, ForecastSpec) and len(data_spec.members) == 100
    assert ForecastSpec.from_json(json.loads(json.dumps(data_spec.to_json()))).members == (
        data_spec.members
    )
    one = next(s for s in data.load_long(shops, id_column="shop") if s.name == "s40")
    own = data_spec.select_series("s40")
    train = one.values[: own.split[0][1]]
    np.testing.assert_allclose(own.standardizer.mean, train.mean(axis=0))
    np.testing.assert_allclose(own.standardizer.std, train.std(axis=0))
    assert own.members == () and own.dataset == "s40"
    damaged = data_spec.to_json()
    damaged["members"] = [{**data_spec.to_json()["members"][0], "std": [0.0]}]
    with pytest.raises(ValueError, match="positive"):
        ForecastSpec.from_json(damaged).check()


@pytest.mark.slow
def test_no_unit_changes_what_the_model_sees():
    panel = series_of(3)
    other = [dataclasses.replace(panel[0], values=1000 * panel[0].values - 7), *panel[1:]]
    seen = []
    for series in (panel, other):
        splits = tuple(data.chronological_split(one.num_steps) for one in series)
        data_spec = describe(SeriesPanel("toy", tuple(series), splits), GLOBAL)
        arrays, begins = stack(series, [data_spec.select_series(one.name) for one in series])
        seen.append(arrays["values"])
        assert begins == [0, 90, 181]
    np.testing.assert_allclose(seen[0], seen[1], atol=1e-5)


def test_windows_are_a_function_of_the_step_and_see_one_series(shops):
    config = ForecastConfig.of(csv=shops, id_column="shop", context_length=INPUT, horizon=HORIZON)
    panel = load_panel(config.resolve())
    data_spec = describe(panel, config.resolve())
    train, validation, test = part_windows(panel, config.resolve(), data_spec)
    again, *_ = part_windows(panel, config.resolve(), data_spec)
    np.testing.assert_array_equal(train.batch(7)["values"], again.batch(7)["values"])
    assert train.seed == config.seed and validation.seed is None
    ends = np.append(train.begins[1:], len(train.arrays["values"]))
    for windows in (train, validation, test):
        assert (windows.starts + INPUT + HORIZON <= ends[windows.owners]).all()
        assert 3 not in windows.owners
    assert "1 series (s3) too short for a training window of 16 rows" in panel.warnings


def test_a_stream_of_a_series_is_the_parallel_forecast(run_dir, shops):
    run = tasks.load_run(run_dir)
    one = next(s for s in data.load_long(shops, id_column="shop") if s.name == "s40")
    own = run.data_spec.select_series("s40").standardizer
    stream = ForecastStream(run, context=0, series="s40")
    for value in one.values[:INPUT]:
        found = stream.step(Row(None, value))
    values = ((one.values[:INPUT] - own.mean) / own.std).astype(np.float32)
    expected = np.asarray(compile_forecast(run)({"values": values[None]}))[0]
    np.testing.assert_allclose(found, expected * own.std + own.mean, rtol=1e-4)


def test_a_stream_refuses_rows_of_another_series():
    """They would enter the state of the series that the stream is of."""
    rows = RowLines(("y",), series=("shop", "s1"))
    lines = ["shop,y", "s1,1", "s2,2"]
    with pytest.raises(ValueError, match="of the series 's1', got 's2' in the column shop"):
        list(rows.parse(lines))
    assert [row.values.tolist() for row in rows.parse(lines[:2])] == [[1.0]]
    assert [row.values.tolist() for row in rows.parse(["y", "3"])] == [[3.0]]


def test_streams_of_new_series_and_states_of_others(run_dir, tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    rows.write_text("5\n6\n")
    state = tmp_path / "state.npz"
    stream = ["stream", str(run_dir), "--input", str(rows)]
    assert "since the run was trained on 100 series" in fail(capsys, *stream)
    succeed(capsys, *stream, "--series", "s1", "--state", str(state))
    other = fail(capsys, *stream, "--series", "new", "--state", str(state))
    assert "its series is 's1', expected 'new'" in other
    assert cli.main([*stream, "--series", "s10O"]) == 0
    told = capsys.readouterr().err
    assert "'s10O' is streamed as a new series" in told
    assert "did you mean 's10'?" in told and "the median of the 100 series (s0, s1" in told
    lines = succeed(capsys, *stream, "--series", "new").splitlines()
    assert lines[0].startswith("step,date,load+1,") and len(lines) == 3


def test_a_new_series_has_the_scale_of_its_first_rows(run_dir):
    """What comes later changes nothing."""
    data_spec = tasks.load_run(run_dir).data_spec
    new = dataclasses.replace(series_of(20)[19], name="new")
    later = dataclasses.replace(new, values=np.where(np.arange(len(new.values))[:, None] < INPUT,
                                                     new.values, 1e6))  # fmt: skip
    scale = data_spec.for_series(new, INPUT).standardizer
    np.testing.assert_allclose(scale.mean, new.values[:INPUT].mean(axis=0))
    np.testing.assert_allclose(scale.std, new.values[:INPUT].std(axis=0))
    assert data_spec.for_series(later, INPUT).standardizer.mean == scale.mean
    empty = dataclasses.replace(new, values=np.full_like(new.values, np.nan))
    assert data_spec.for_series(empty).standardizer.mean == data_spec.standardizer.mean
    known = dataclasses.replace(new, name="s40")
    assert (
        data_spec.for_series(known).standardizer.mean
        == data_spec.select_series("s40").standardizer.mean
    )


def test_evaluate_repeats_the_test_and_takes_other_files(run_dir, shops, tmp_path, capsys):
    report = json.loads((run_dir / "test.json").read_text())
    found = tasks.evaluate_run(run_dir)
    assert found["test_mase"] == report["test_mase"] and found["stream_max_error"] < 1e-4
    other = write_long(tmp_path / "other.csv", [dataclasses.replace(series_of(9)[8], name="new")])
    values = tasks.evaluate_run(run_dir, other)
    assert values["num_test_series"] == 1 and "test_mase" not in values
    assert values["ridge_mse"] > 0 and "validation_mse" not in values
    short = write_long(tmp_path / "short.csv", [series_of(1)[0]])
    short.write_text("\n".join(short.read_text().splitlines()[:9]) + "\n")
    assert "needs 16, and rows 0 to 7 are 8" in fail(
        capsys, "evaluate", str(run_dir), "--test-file", str(short)
    )


def test_tsf_series_of_different_lengths(tmp_path):
    path = tmp_path / "monash.tsf"
    path.write_text(
        "@attribute series_name string\n@attribute start date\n@frequency daily\n@data\n"
        f"A:2024-01-01 00-00-00:{','.join(map(str, range(40)))}\n"
        f"B:2024-03-01 00-00-00:{','.join(map(str, range(30)))}\n"
    )
    options = {"csv": path, "context_length": 6, "horizon": 2, "split": "0.6/0.2/0.2"}
    with pytest.raises(OptionError, match="series with the same times") as caught:
        tasks.get_task("forecast").load(ForecastConfig.of(**options))
    assert "global_model" in caught.value.options
    panel = load_panel(ForecastConfig.of(**options, global_model=True))
    assert [(one.name, one.num_steps, one.channels) for one in panel.series] == [
        ("A", 40, ("value",)),
        ("B", 30, ("value",)),
    ]


def test_a_table_of_channels_becomes_one_of_series():
    panel = load_panel(
        ForecastConfig.of(global_model=True, channels="OT,HUFL", split="0.7/0.1/0.2")
    )
    assert [one.name for one in panel.series] == ["OT", "HUFL"]
    assert panel.series[0].values.shape == (17420, 1)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            "a,2024-01-01,1\na,2024-01-02,2\na,2024-01-03,2\nb,2024-01-01,2\nb,2024-01-02,2\n",
            {"horizon": 7, "context_length": 5},
            r"the longest series of .*long\.csv, a: expected at least 12 training rows for "
            r"context_length=5 and horizon=7 \(57 rows in all\), got 2 by split='0\.7/0\.1/0\.2'",
        ),
        ("a,2024-01-01,big\n", {}, "Only estimators.Forecaster reads strings as static covariates"),
        ("a,2024-01-01,\na,2024-01-02,2\n", {}, "expected at least one series to train on"),
        ("a,2024-01-01,1\n", {"split": "60/20/20"}, "fewer rows than split"),
        ("a,2024-01-01,1\n", {"split": "60/20"}, "three sizes such as"),
    ],
)
def test_what_bad_series_are_told(tmp_path, rows, options, message):
    path = tmp_path / "long.csv"
    path.write_text("id,date,load\n" + rows)
    config = ForecastConfig.of(**{"csv": path, "id_column": "id", "split": "0.7/0.1/0.2"} | options)
    with pytest.raises(ValueError, match=message):
        panel = load_panel(config)
        list(part_windows(panel, config, describe(panel, config)))


def test_series_of_other_steps_are_refused():
    one, other = series_of(2)
    assert other.times is not None
    slow = pd.date_range(other.times[0], periods=len(other.times), freq="D")
    both = (one, dataclasses.replace(other, index=slow, freq=None))
    splits = tuple(data.chronological_split(series.num_steps) for series in both)
    with pytest.raises(ValueError, match="expected the frequency h of the first series, got D"):
        describe(SeriesPanel("toy", both, splits), GLOBAL)


def test_what_is_known_ahead_has_one_scale_for_all_series():
    """So that a number of each series, which never changes in it, tells them apart."""
    panel = []
    for size, one in zip((30.0, 50.0, 100.0), series_of(3), strict=True):
        values = np.concatenate([one.values, np.full_like(one.values, size)], axis=1)
        panel.append(dataclasses.replace(one, values=values, channels=("load", "size")))
    splits = tuple(data.chronological_split(one.num_steps) for one in panel)
    options = {"model": "patch", "known_future": "size"}
    data_spec = describe(SeriesPanel("toy", tuple(panel), splits), GLOBAL.replace(**options))
    told = [stack([one], [data_spec.select_series(one.name)])[0]["values"][:, 1] for one in panel]
    sizes = np.repeat([30.0, 50.0, 100.0], [len(split.train) for split in splits])
    for own, size in zip(told, (30.0, 50.0, 100.0), strict=True):
        np.testing.assert_allclose(own, (size - sizes.mean()) / sizes.std(), rtol=1e-6)
    new = dataclasses.replace(panel[0], name="new")
    scale = data_spec.for_series(new).standardizer
    assert (scale.mean[1], scale.std[1]) == pytest.approx((sizes.mean(), sizes.std()))
    assert len({data_spec.select_series(one.name).standardizer.mean[0] for one in panel}) == 3
    assert data_spec.static == (1,)
    again = ForecastSpec.from_json(json.loads(json.dumps(data_spec.to_json())))
    assert again.static == again.known_future == (1,)
    panel[2].values[10, 1] = 90.0
    again = describe(SeriesPanel("toy", tuple(panel), splits), GLOBAL.replace(**options))
    assert not again.static


def test_scaled_errors_without_a_season_or_a_difference():
    assert seasonal_scale(np.array([[1.0, 2.0], [1.0, np.nan], [1.0, 5.0]]), 2) == (None, 3.0)
    assert seasonal_scale(np.array([[1.0], [np.nan]]), 1) == (None,)
    errors = Errors(1, num_series=2)
    errors.add(np.zeros((2, 1, 1)), np.array([[[1.0]], [[3.0]]]), np.array([0, 1]))
    scaled = errors.mase(np.ones((2, 1)), np.array([[np.nan], [2.0]]))
    np.testing.assert_array_equal(scaled, [np.nan, 1.5])
    assert errors.metrics()["mae"] == 2.0
    with pytest.raises(ValueError, match="missing values only"):
        Errors(1, num_series=1).metrics()


@pytest.mark.slow
def test_series_with_missing_values_tell_the_model(tmp_path):
    """The stream of each, from NaN on, is the parallel forecast."""
    panel = []
    for number, one in enumerate(series_of(4)):
        values = one.values.copy()
        values[np.random.default_rng(number).random(len(values)) < 0.2] = np.nan
        panel.append(dataclasses.replace(one, values=values))
    csv = write_long(tmp_path / "holes.csv", panel)
    run_dir = tmp_path / "run"
    options = ["--csv", str(csv), "--id-column", "shop", "--run", str(run_dir), *SMALL]
    assert cli.main(["train", "forecast", "--missing-flags", *options]) == 0
    run = tasks.load_run(run_dir)
    assert run.data_spec.missing_flags and run.model.missing
    one = panel[2]
    stream = ForecastStream(run, context=0, series=one.name)
    for value in one.values[:INPUT]:
        found = stream.step(Row(None, value))
    own = run.data_spec.select_series(one.name)
    arrays, _ = stack([one], [own])
    batch = {name: arrays[name][None, :INPUT] for name in ("values", "missing")}
    expected = np.asarray(compile_forecast(run)(batch))[0]
    expected = expected * own.standardizer.std + own.standardizer.mean
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    untold = ForecastConfig.of(csv=csv, id_column="shop").resolve()
    task = tasks.get_task("forecast")
    assert not task.describe(task.load(untold), untold).missing_flags
