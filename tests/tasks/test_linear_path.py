"""The patch model beside a ridge: where it begins, what training leaves, what is added."""

import numpy as np
import pytest
from flax import nnx
from scipy.optimize import lsq_linear

from flax_linattn import models, tasks, training
from flax_linattn.tasks.forecast import ForecastConfig
from flax_linattn.tasks.forecast import task as forecast_task
from flax_linattn.tasks.forecast.baselines import (
    FOLDS,
    best_attention_weights,
    bounded_lstsq,
    fit_windows_ridge,
    set_to_ridge,
)
from flax_linattn.tasks.forecast.evaluate import evaluate_baselines
from flax_linattn.tasks.forecast.ridge import fit_ridge
from flax_linattn.tasks.forecast.windows import compile_forecast
from flax_linattn.tasks.train_run import train_report
from tests.tasks.commands import SIZES, no_drawing

INPUT, HORIZON = 12, 4


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> ForecastConfig:
    rng = np.random.default_rng(0)
    rows = np.sin(np.arange(220.0)[:, None] / [4, 7]) + 0.3 * rng.normal(size=(220, 2))
    csv = tmp_path_factory.mktemp("data") / "waves.csv"
    csv.write_text("a,b\n" + "".join(f"{a:.5f},{b:.5f}\n" for a, b in rows))
    of_data = {"csv": csv, "split": "0.6/0.2/0.2", "context_length": INPUT, "horizon": HORIZON}
    fit = {"epochs": 3, "learning_rate": 0.03, "batch_size": 16}
    options = {"model": "patch", "ridge": True, "ridge_maps": "channel", "patch_length": 5}
    return ForecastConfig.of(**options, **SIZES, **of_data, **fit)


@pytest.fixture(scope="module")
def trained(config, tmp_path_factory) -> tasks.Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    session = training.Session(folder, progress=False, parallel=training.Parallel("none"))
    with no_drawing():
        tasks.train("forecast", config, session)
    return tasks.load_run(folder)


def made(config):
    """A new model, its splits and data_spec."""
    task, config = tasks.get_task("forecast"), config.resolve()
    rows = task.load(config)
    data_spec = task.describe(rows, config)
    splits = task.batches(rows, config, data_spec, 1)
    model = task.model(config, data_spec)
    task.begin([model], splits, config, data_spec)
    return tasks.Run(task, config, data_spec, model, rows), splits


def errors(forecast, windows):
    """Truth less forecast [N, H, C]."""
    found = [
        (batch["values"][:, INPUT:] - np.asarray(forecast(batch)))[batch["weight"] > 0]
        for batch in windows
    ]
    return np.concatenate(found)


def mean_weight(added, linear):
    """The mean over parts of the validation windows of the weight with the least squares."""
    parts = [
        np.clip(np.sum(a * e) / np.sum(a**2), 0, 1)
        for a, e in zip(np.array_split(added, FOLDS), np.array_split(linear, FOLDS), strict=True)
    ]
    return np.mean(parts)


def test_a_new_model_is_the_ridge(config):
    run, splits = made(config)
    found = np.mean(np.square(errors(compile_forecast(run), splits.test)))
    want = evaluate_baselines(run, splits.test)["ridge_mse"]
    assert found == pytest.approx(want, rel=1e-6)


def test_training_leaves_the_map_and_the_run_saves_the_weight(config, trained):
    new, splits = made(config)
    kernels = [run.model.linear_map.kernel[...] for run in (new, trained)]
    np.testing.assert_array_equal(*kernels)
    assert np.abs(trained.model.head.kernel[...]).max() > 0
    weight = float(trained.model.share[...])
    validation = splits.validation
    linear = errors(compile_forecast(new), validation)
    trained.model.share[...] = np.float32(1)
    added = linear - errors(compile_forecast(trained), validation)
    assert weight == pytest.approx(mean_weight(added, linear), abs=1e-5)


@pytest.mark.usefixtures("no_steps")
def test_a_run_that_is_the_ridge_alone_says_so(config, tmp_path, monkeypatch, capsys):
    told = []
    for weight in (0.0, 0.25):
        monkeypatch.setattr(
            forecast_task, "best_attention_weights", lambda *_, weight=weight: [weight]
        )
        session = training.Session(tmp_path / str(weight), parallel=training.Parallel("none"))
        with no_drawing():
            report = train_report("forecast", config.replace(steps=2), session)
        assert f"weight of the attention to {weight:g}, where 0 is" in capsys.readouterr().err
        told.append(report.verdict)
    assert told[0].endswith("attention is 0, so the forecasts come from the ridge alone")
    assert "weight of the attention" not in told[1] and told[1]


def test_what_holds_on_no_other_row_is_not_added(config):
    """A head that adds the same to all forecasts: against the errors nothing, else what helps."""
    run, splits = made(config)
    run.model.head.bias[...] = np.full(HORIZON, 1e3, np.float32)
    linear = errors(compile_forecast(made(config)[0]), splits.validation)
    (weight,) = best_attention_weights(run, splits.validation)
    helps = [np.mean(part) > 0 for part in np.array_split(linear, FOLDS)]
    assert 0 <= weight < 1e-2 and (weight > 0) == any(helps)


@pytest.mark.parametrize("seed", range(5))
def test_weights_are_the_least_squares_within_bounds(seed):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 2))
    b = a @ rng.uniform(-0.5, 1.5, 2) + 0.1 * rng.normal(size=30)
    found = bounded_lstsq(a.T @ a, a.T @ b)
    want = lsq_linear(a, b, bounds=(0, 1), tol=1e-12).x
    np.testing.assert_allclose(found, want, atol=1e-5)


def test_what_known_columns_tell_is_weighed_by_itself(config):
    """They say the same of all steps here, and the attention nothing."""
    run, splits = made(config.replace(known_future="b"))
    assert run.model.known_share[...] == 1
    linear = errors(compile_forecast(run), splits.validation)[..., :1]
    run.model.added.contract.bias[...] = np.ones(1, np.float32)
    added = linear - errors(compile_forecast(run), splits.validation)[..., :1]
    weights = best_attention_weights(run, splits.validation)
    assert weights[0] == 0 and weights[1] == pytest.approx(mean_weight(added, linear), abs=1e-5)


def test_the_ridge_of_several_series_is_that_of_all_their_windows():
    rng = np.random.default_rng(1)
    one, two = rng.normal(size=(60, 1)), rng.normal(size=(50, 1)).cumsum(axis=0)
    joined = np.concatenate([one, two])
    rows = ([range(40), range(60, 95)], [range(40, 60), range(95, 110)])
    found = fit_ridge(joined, *rows, 6, 3, begins=(0, 60))
    pasts, futures = [], []
    for values in (one[:40, 0], two[:35, 0]):
        windows = np.lib.stride_tricks.sliding_window_view(values, 9)
        pasts.append(windows[:, :6] - windows[:, 5:6])
        futures.append(windows[:, 6:] - windows[:, 5:6])
    past, future = np.concatenate(pasts), np.concatenate(futures)
    unit = np.trace(past.T @ past) / 6
    kernels = [
        np.linalg.solve(past.T @ past + strength * unit * np.eye(6), past.T @ future)
        for strength in np.logspace(-4, 1, 11)
    ]
    distances = [np.abs(kernel - found.kernel).max() for kernel in kernels]
    assert min(distances) < 1e-9 and found.num_windows == len(past)
    short = fit_ridge(joined, [range(40), range(60, 62)], rows[1], 6, 3, begins=(0, 60))
    np.testing.assert_allclose(short.num_windows, 32)
    with pytest.raises(ValueError, match="in the rows of the series, got too few rows"):
        fit_ridge(joined, [range(4), range(60, 62)], rows[1], 6, 3, begins=(0, 60))


def test_the_map_sees_at_most_the_rows_that_a_ridge_is_fitted_on(config, monkeypatch):
    run, splits = made(config)
    monkeypatch.setattr("flax_linattn.tasks.forecast.ridge.MAX_INPUT", 8)
    set_to_ridge(
        [run.model], fit_windows_ridge(splits.train, splits.validation, run.data_spec, "channel")
    )
    kernel = run.model.linear_map.kernel[...]
    assert kernel.shape == (2, INPUT, HORIZON)
    assert not kernel[:, :4].any() and kernel[:, 4:-1].all()


def test_a_fixed_map_takes_a_map():
    with pytest.raises(ValueError, match="fixed_map needs a linear map"):
        models.PatchForecaster(2, 3, context=0, fixed_map=True, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="ridge sets the linear map"):
        ForecastConfig.of(model="patch", ridge=True, linear_path=False)
    with pytest.raises(ValueError, match="ridge is an option of the model 'patch'"):
        ForecastConfig.of(ridge=True)
