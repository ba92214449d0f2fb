"""Quantiles of forecasting runs: scores, corrections, streams; and what bad options say."""

import json
import math
import shutil
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from flax import nnx

from flax_linattn import cli, data, models, tasks
from flax_linattn.tasks.forecast import ForecastConfig, ForecastStream, Row
from flax_linattn.tasks.forecast.quantiles import (
    MAX_ERRORS,
    QuantileScores,
    central_intervals,
    corrections,
    offsets,
)
from flax_linattn.tasks.forecast.windows import (
    PanelWindows,
    compile_forecast,
    compile_outputs,
    standardize,
)
from tests.tasks.commands import fail, no_drawing, one_line, succeed

NORMAL = NormalDist()
ROWS, INPUT, HORIZON, LEVELS = 200, 12, 4, (0.1, 0.5, 0.6, 0.9)
SMALL = [
    *("--features", "8", "--num-layers", "1", "--num-heads", "2", "--hidden-features", "8"),
    *("--context-length", str(INPUT), "--horizon", str(HORIZON), "--patch-length", "5"),
    *("--epochs", "2", "--parallel", "none", "--split", "0.6/0.2/0.2"),
    *("--quantiles", ",".join(map(str, LEVELS))),
]


# ---- scores


def scored(levels, quantiles, truth, std=1.0, mean=0.0):
    scores = QuantileScores(levels)
    for part in np.array_split(np.arange(len(truth)), 3):
        scores.add(quantiles[part], truth[part], std, mean)
    return scores.metrics()


def test_scores_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    levels, std, mean = (0.1, 0.3, 0.9), np.array([2.0, 0.5]), np.array([1.0, -4.0])
    truth, quantiles = rng.normal(size=(6, 4, 2)), np.sort(rng.normal(size=(6, 4, 2, 3)))
    truth[1, 2, 0] = np.nan
    losses, inside, width, absolute = [], [], [], 0.0
    for place in np.ndindex(truth.shape):
        if np.isnan(truth[place]):
            continue
        for q, level in enumerate(levels):
            above = truth[place] - quantiles[place][q]
            loss = level * above if above > 0 else (level - 1) * above
            losses.append((loss, loss * std[place[2]]))
        absolute += abs(truth[place] * std[place[2]] + mean[place[2]])
        inside.append(quantiles[place][0] <= truth[place] <= quantiles[place][2])
        width.append(quantiles[place][2] - quantiles[place][0])
    crps, original = 2 * np.mean(losses, axis=0)
    want = {
        "crps": crps,
        "original_crps": original,
        "wql": original * len(inside) / absolute,
        "coverage_80": np.mean(inside),
        "width_80": np.mean(width),
    }
    assert scored(levels, quantiles, truth, std, mean) == pytest.approx(want, rel=1e-12)


def test_many_levels_give_the_crps_of_a_normal():
    """In closed form (Gneiting and Raftery, 2007, equation 21)."""
    count, truth = 2000, np.array([-2.5, 0.3, 1.0])
    levels = (np.arange(count) + 0.5) / count
    center, spread = 0.5, 2.0
    told = center + spread * np.array([NORMAL.inv_cdf(level) for level in levels])
    z = (truth - center) / spread
    closed = spread * np.array(
        [x * (2 * NORMAL.cdf(x) - 1) + 2 * NORMAL.pdf(x) - 1 / math.sqrt(math.pi) for x in z]
    )
    shape = (3, 1, 1)
    found = scored(levels, np.broadcast_to(told, (*shape, count)), truth.reshape(shape))
    assert found["crps"] == pytest.approx(closed.mean(), rel=1e-3)


def test_the_true_quantiles_cover_what_they_say():
    """Of a process whose deviation differs from step to step."""
    rng, levels = np.random.default_rng(0), (0.025, 0.1, 0.5, 0.9, 0.975)
    spread = np.exp(rng.normal(size=(20_000, 3, 1)))
    told = spread[..., None] * [NORMAL.inv_cdf(level) for level in levels]
    found = scored(levels, told, spread * rng.normal(size=spread.shape))
    for share in (0.8, 0.95):
        deviation = math.sqrt(share * (1 - share) / spread.size)
        assert found[f"coverage_{100 * share:g}"] == pytest.approx(share, abs=4 * deviation)
        wide = 2 * NORMAL.inv_cdf((1 + share) / 2) * spread.mean()
        assert found[f"width_{100 * share:g}"] == pytest.approx(wide)
    worse = scored(levels, 1.3 * told, spread * rng.normal(size=spread.shape))
    assert worse["crps"] > found["crps"]


def test_intervals_are_those_of_levels_that_belong_together():
    assert central_intervals((0.05, 0.1, 0.5, 0.6, 0.9)) == {"80": (1, 4)}
    assert central_intervals((0.005, 0.5, 0.995)) == {"99": (0, 2)}
    assert central_intervals((0.5,)) == central_intervals(()) == {}


# ---- corrections


@pytest.mark.parametrize("level", [0.05, 0.1, 0.5, 0.77, 0.95])
def test_a_corrected_level_holds_in_the_mean(level):
    """Over calibration sets, whatever the distribution: between p and p + 1 / (n + 1)."""
    rng, n, sets = np.random.default_rng(0), 39, 20_000
    errors = rng.exponential(size=(n, sets)) ** 2
    # of uniform order statistics the share below is known exactly
    below = -np.expm1(-np.sqrt(offsets(errors, level)))
    share, noise = below.mean(), 4 * below.std() / math.sqrt(sets)
    outward = share - level if level >= 0.5 else level - share
    assert -noise < outward < 1 / (n + 1) + noise


def test_unknown_errors_are_left_out_and_few_give_the_outermost():
    errors = np.array([[3.0, np.nan], [1.0, np.nan], [np.nan, np.nan], [2.0, np.nan]])
    assert [offsets(errors, level).tolist() for level in (0.05, 0.25, 0.5, 0.75, 0.99)] == [
        [1, 0], [1, 0], [2, 0], [3, 0], [3, 0],
    ]  # fmt: skip


# ---- runs


@pytest.fixture(scope="module")
def csv(tmp_path_factory) -> Path:
    """Two hourly waves whose noise comes and goes, with a missing value."""
    path = tmp_path_factory.mktemp("data") / "waves.csv"
    hours = np.arange(ROWS)
    times = np.datetime64("2024-01-01T00:00:00") + hours * np.timedelta64(1, "h")
    angles = hours[:, None] * 2 * np.pi / 24 + [0, 1]
    noise = np.random.default_rng(0).normal(size=(ROWS, 2)) * (1 + np.cos(angles))
    lines = [
        f"{str(time).replace('T', ' ')},{a:.4f},{b:.4f}"
        for time, (a, b) in zip(times, 20 + 5 * np.sin(angles) + noise, strict=True)
    ]
    lines[130] = lines[130].rpartition(",")[0] + ","
    path.write_text("date,load,OT\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def run_dir(csv, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "quantiles"
    args = ["train", "forecast", "--preset", "patch", "--csv", str(csv), "--run", str(folder)]
    with no_drawing():
        assert cli.main([*args, *SMALL]) == 0
    return folder


def windows_of(run, csv, part):
    arrays = standardize(data.load_series(csv), run.data_spec)
    return PanelWindows([run.data_spec], arrays, [range(*run.data_spec.split[part])], run.config)


@pytest.mark.slow
def test_corrections_are_the_ranks_of_errors_on_validation_rows(run_dir, csv):
    run = tasks.load_run(run_dir)
    kept = np.array(run.model.quantile_head.correction)
    windows = windows_of(run, csv, 1)
    assert kept.shape == (HORIZON, 2, len(LEVELS)) and windows.num_examples == 40 - HORIZON + 1
    run.model.quantile_head.correction[...] = np.zeros_like(kept)
    batch = windows.take(np.arange(windows.num_examples))
    told = np.asarray(compile_outputs(run)(batch))[..., 1:]
    truth = np.where(batch["known"], batch["values"], np.nan)[:, INPUT:]
    assert np.isnan(truth).any()
    for place in np.ndindex(kept.shape):
        came = truth[:, *place[:2]]
        errors = sorted(e for e in came - told[:, *place] if not np.isnan(e))
        up, level = len(errors) + 1, LEVELS[place[2]]
        rank = math.ceil(up * level) if level >= 0.5 else math.floor(up * level)
        assert kept[place] == pytest.approx(errors[min(max(rank, 1), len(errors)) - 1], abs=1e-6)
    np.testing.assert_allclose(corrections(run, windows), kept, atol=1e-6)
    assert windows.num_examples * told[0].size < MAX_ERRORS  # all of them


def test_the_report_scores_the_model_and_the_baselines(run_dir, csv, capsys):
    report = json.loads((run_dir / "test.json").read_text())
    for name in ("test", "naive", "seasonal_naive", "ridge"):
        assert {f"{name}_{key}" for key in ("crps", "wql", "coverage_80", "width_80")} <= set(
            report
        )
    run = tasks.load_run(run_dir)
    windows = windows_of(run, csv, 2)
    batch = windows.take(np.arange(windows.num_examples))
    told, truth = np.asarray(compile_outputs(run)(batch)), batch["values"][:, INPUT:]
    assert (np.diff(told[..., 1:], axis=-1) >= 0).all()
    found = scored(LEVELS, told[..., 1:], truth)
    for key in ("crps", "coverage_80", "width_80"):
        assert report[f"test_{key}"] == pytest.approx(found[key], rel=1e-5)
    np.testing.assert_array_equal(compile_forecast(run)(batch), told[..., 0])
    assert report["test_mse"] == pytest.approx(np.mean(np.square(told[..., 0] - truth)), rel=1e-4)
    again = tasks.evaluate_run(run_dir)
    assert again.pop("stream_max_error") < 1e-5
    assert {k: again[k] for k in report if k in again} == {
        k: report[k] for k in again if k in report
    }


def test_a_stream_tells_the_quantiles(run_dir, csv, tmp_path, capsys):
    """As the parallel model does, in the file's units, and after a restart."""
    run, series = tasks.load_run(run_dir), data.load_series(csv)
    lines = csv.read_text().splitlines(keepends=True)
    source, state, figure = (tmp_path / name for name in ("rows.csv", "state.npz", "last.png"))
    args = ["stream", str(run_dir), "--input", str(source), "--context", "0"]
    source.write_text("".join(lines[:31]))
    whole = succeed(capsys, *args, "--figure", str(figure)).splitlines()
    assert figure.stat().st_size > 10_000
    assert whole[0].startswith("step,date,load+1,load+1@0.1,load+1@0.5,load+1@0.6,load+1@0.9,OT+1,")
    source.write_text("".join(lines[:11]))
    succeed(capsys, *args, "--state", str(state))
    source.write_text("".join(lines[:31]))
    rest = succeed(capsys, *args, "--state", str(state), "--skip-processed").splitlines()
    assert rest[1:] == whole[11:]
    x = standardize(series, run.data_spec)["values"][None, :30]
    every = np.asarray(nnx.jit(lambda model, x: model(x, every_step=True))(run.model, x)[0])
    scale = run.data_spec.standardizer
    want = every * scale.std[:, None] + scale.mean[:, None]
    found = np.array([line.split(",")[2:] for line in whole[1:]], np.float64)
    np.testing.assert_allclose(found, want.reshape(30, -1), rtol=2e-5)
    assert series.times is not None
    one = ForecastStream(run).step(Row(series.times[0], series.values[0]))
    assert one.shape == (HORIZON, 2, 1 + len(LEVELS))


def test_without_its_calibration_a_run_says_so(run_dir, tmp_path, capsys):
    corrected = np.array(tasks.load_run(run_dir).model.quantile_head.correction)
    assert np.abs(corrected).min() > 0 and not capsys.readouterr().err
    for harm, why in (
        ("gone", "the run ended before"),
        ("other", "belongs to other parameters"),
    ):
        folder = tmp_path / harm
        shutil.copytree(run_dir, folder)
        if harm == "gone":
            (folder / "calibration.npz").unlink()
            run = tasks.load_run(folder)
        else:
            run = tasks.load_run(folder, checkpoint="last")
            if np.abs(run.model.quantile_head.correction).max() > 0:
                continue  # the last epoch was the best
        assert not np.any(run.model.quantile_head.correction)
        assert why in capsys.readouterr().err
    damaged = tmp_path / "damaged"
    shutil.copytree(run_dir, damaged)
    (damaged / "calibration.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="is no state file, or is damaged"):
        tasks.load_run(damaged)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--quantiles", "0.1,x"], "expected quantiles as levels such as 0.1,0.5,0.9, got '0.1,x'"),
        (["--quantiles", "0.9,0.1"], "quantiles must be increasing levels between 0 and 1"),
        (["--quantiles", "0.5", "--model", "encoder-decoder"], "'decoder' and 'patch'"),
    ],
)
def test_bad_options_are_refused(options, message, tmp_path, capsys):
    told = one_line(fail(capsys, "train", "forecast", "--run", str(tmp_path / "r"), *options))
    assert message in told and "--quantiles" in told


def test_no_quantiles_leave_all_as_it_was(csv):
    config = ForecastConfig.of(csv=csv, model="patch", horizon=4, context_length=8)
    assert config.model.levels == () and config.model.conformal and not config.model.is_conformal
    task = tasks.get_task("forecast")
    rows = task.load(config.resolve())
    model = task.model(config, task.describe(rows, config.resolve()))
    assert not jax_leaves(nnx.state(model, models.FittedVariable)) and model.quantile_head is None


def jax_leaves(state):
    return list(nnx.to_flat_state(state))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["decoder", "patch"])
def test_many_runs_are_calibrated_each(csv, tmp_path, model):
    folder = tmp_path / "many"
    small = [o for o in SMALL if model == "patch" or o not in ("--patch-length", "5")]
    args = ["train", "forecast", "--model", model, "--csv", str(csv), "--run", str(folder)]
    assert cli.main([*args, *small, "--conformal", "--runs", "2"]) == 0
    report = json.loads((folder / "test.json").read_text())
    assert report["test_crps_sd"] > 0
    both = [tasks.load_run(folder, which).model.quantile_head.correction for which in (0, 1)]
    assert np.abs(np.array(both[0]) - np.array(both[1])).max() > 1e-3
    again = tasks.evaluate_run(folder)
    assert again["test_crps"] == pytest.approx(report["test_crps"], rel=1e-6)


@pytest.mark.slow
def test_on_etth1_quantiles_beat_those_of_the_ridge_s_errors(tmp_path):
    """After two epochs of the preset, with corrections."""
    args = ["train", "forecast", "--preset", "patch", "--epochs", "2", "--run", str(tmp_path / "r")]
    levels = "0.025,0.1,0.5,0.9,0.975"
    assert cli.main([*args, "--quantiles", levels, "--conformal"]) == 0
    report = json.loads((tmp_path / "r" / "test.json").read_text())
    assert report["test_crps"] < report["ridge_crps"] < report["seasonal_naive_crps"]
    assert 0.7 < report["test_coverage_80"] < 0.9 and 0.9 < report["test_coverage_95"] < 1
