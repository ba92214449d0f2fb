"""Trained forecasters: loaded from their run folders, tested and drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import data, inference, models, training
from flax_linattn.tasks.forecast_config import ForecastConfig
from flax_linattn.tasks.forecast_data import (
    ForecastProblem,
    checksum_of,
    load_data,
    make_windows,
    standardize,
    step_seconds,
)
from flax_linattn.tasks.forecast_figure import draw_windows
from flax_linattn.tasks.forecast_metrics import Errors, seasonal_naive
from flax_linattn.tasks.forecast_model import Model, build_forecaster, predict
from flax_linattn.tasks.runs import reading_data, reading_problem
from flax_linattn.typing import Array


class ForecastRun(NamedTuple):
    """A trained run, loaded from its folder.

    Attributes:
        model: with the selected parameters.
        config: what the run was started with, resolved.
        problem: what it learned of the data.
    """

    model: Model
    config: ForecastConfig
    problem: ForecastProblem


def load_forecaster(run_dir: Path) -> ForecastRun:
    """Loads a run's model with its selected parameters.

    Raises:
        FileNotFoundError: there is no such run, or it has no checkpoint.
        ValueError: its files are damaged.
    """
    config = ForecastConfig.read(run_dir)
    with reading_problem(run_dir) as values:
        problem = ForecastProblem.from_json(values)
    model = build_forecaster(config, problem)
    training.load_best(model, run_dir)
    return ForecastRun(model, config, problem)


def evaluate_forecaster(run: ForecastRun, windows: data.Windows) -> dict[str, Any]:
    """Tests a run on windows, beside the naive forecasts.

    Args:
        run: the run.
        windows: of the series scaled by the run's standardizer, in the order of time.

    Returns:
        MSE, MAE and RMSE over all windows, steps and known targets, of the model, of repeating the
        last observation ("naive") and of repeating the last season ("seasonal naive"), on
        standardised values and (``original_``) on those of the file.
    """
    config, problem = run.config, run.problem
    forecast = compile_forecast(run)
    targets = list(problem.targets)
    scale = problem.standardizer.std[targets]
    seasons = {"naive": 1, "seasonal_naive": config.season or problem.season}
    series = windows.arrays["values"][:, targets]
    found = {name: Errors(len(targets)) for name in ("model", "naive", "seasonal_naive")}
    for first, batch in zip(
        range(0, windows.num_examples, config.batch_size), windows, strict=True
    ):
        real = batch["weight"] > 0
        truth = batch["values"][real][:, config.input_length :, targets]
        if "known" in batch:
            known = batch["known"][real][:, config.input_length :, targets]
            truth = np.where(known, truth, np.nan)
        last = windows.starts[first : first + len(truth)] + config.input_length - 1
        found["model"].add(np.asarray(forecast(batch))[real], truth)
        for name, season in seasons.items():
            found[name].add(seasonal_naive(series, last, config.horizon, season), truth)
    report: dict[str, Any] = {
        "dataset": problem.dataset,
        "model": config.model,
        "mechanism": config.mechanism,
        "input_length": config.input_length,
        "horizon": config.horizon,
        "targets": ", ".join(problem.target_names),
        "num_test_windows": windows.num_examples,
    }
    for name, errors in found.items():
        prefix = "test" if name == "model" else name
        report |= {f"{prefix}_{key}": value for key, value in errors.metrics().items()}
        original = errors.metrics(scale).items()
        report |= {f"{prefix}_original_{key}": value for key, value in original}
    return report


def compile_forecast(run: ForecastRun) -> Callable[[dict[str, NDArray]], Array]:
    """The forecasts [B, H, targets] of windows, as one compiled program."""
    graphdef, variables = nnx.split(run.model)
    last = jnp.array([run.config.input_length - 1])

    @jax.jit
    def forecast(variables: Any, batch: dict[str, Array]) -> Array:
        model = nnx.merge(graphdef, variables)
        return predict(model, batch, run.config.input_length, last)[:, 0]

    return partial(forecast, variables)


def evaluate_run(run_dir: Path, test_file: Path | None = None) -> dict[str, Any]:
    """Tests a run on its test rows, or on all of another file.

    Where the model streams, ``stream_max_error`` is the largest difference, on standardised values,
    between the forecasts after each of the first 300 test rows (of a window, with a mechanism
    whose state grows) from a stream and from the parallel model.

    Args:
        run_dir: the run folder.
        test_file: a table with the run's channels.

    Raises:
        FileNotFoundError: the run or the file is missing.
        ValueError: damaged files, or other channels; the run's own file has changed.
    """
    run = load_forecaster(run_dir)
    series = load_series(run, test_file)
    rows = range(series.num_steps)
    if test_file is None:
        rows = range(*run.problem.split[-1])
        if checksum_of(series, rows.stop) != run.problem.checksum:
            raise ValueError(
                f"the data of the run have changed since ({series.name}, {series.num_steps} "
                "rows); give other data with --test-file."
            )
    windows = make_windows(standardize(series, run.problem), run.config, rows, seed=None)
    report = evaluate_forecaster(run, windows)
    if isinstance(run.model, models.Forecaster) and run.model.backbone.streams:
        most = 300
        if not run.model.backbone.constant_memory:
            most = run.config.input_length
        report |= _compare_stream(run.model, windows.arrays, rows[:most])
    return report


def load_series(run: ForecastRun, path: Path | None = None) -> data.TimeSeries:
    """A run's series, or another file's, with the run's channels.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: a damaged file, or other channels or times than the run was trained on.
    """
    config = run.config if path is None else dataclasses.replace(run.config, csv=path)
    with reading_data(path):
        series = load_data(config, run.problem.channels)
    if run.problem.marks and series.times is None:
        raise ValueError(
            f"{series.name} has no times, from which the run took "
            f"{', '.join(run.problem.marks)}; give times in the first column."
        )
    seconds, expected = step_seconds(series), run.problem.step_seconds
    if seconds is None or expected is None:
        return series
    if not data.is_step(seconds, expected):
        raise ValueError(
            f"expected rows {expected} seconds apart, as those that the run was "
            f"trained on, got {seconds} in {series.name}."
        )
    return series


def _compare_stream(
    model: models.Forecaster, arrays: dict[str, NDArray], rows: range
) -> dict[str, Any]:
    graphdef, variables = nnx.split(model)
    seen = [arrays[name] for name in ("values", "marks") if name in arrays]
    x = np.concatenate(seen, axis=-1)[rows.start : rows.stop][None]

    @jax.jit
    def error(variables: Any, x: Array) -> Array:
        model = nnx.merge(graphdef, variables)
        return jnp.max(jnp.abs(model(x, every_step=True) - inference.unroll(model, x)))

    return {"stream_max_error": float(error(variables, x)), "stream_steps": x.shape[1]}


def draw_forecasts(
    run: ForecastRun,
    windows: data.Windows,
    path: Path,
    times: NDArray[np.datetime64] | None = None,
    count: int = 3,
) -> None:
    """Draws some forecasts, evenly spread over the windows, to a PNG file, in the file's units.

    Args:
        run: the run.
        windows: of the series scaled by the run's standardizer.
        path: the file.
        times: of the series' rows; None if not known.
        count: how many forecasts.

    Raises:
        ValueError: matplotlib is not installed.
    """
    config, targets = run.config, list(run.problem.targets)
    chosen = np.linspace(0, windows.num_examples - 1, count).astype(int)
    batch = windows.take(chosen)
    forecasts = np.asarray(compile_forecast(run)(batch))
    scale = run.problem.standardizer.std[targets], run.problem.standardizer.mean[targets]
    values = batch["values"][:, :, targets]
    drawn = [
        (
            seen[: config.input_length] * scale[0] + scale[1],
            seen[config.input_length :] * scale[0] + scale[1],
            forecast * scale[0] + scale[1],
        )
        for seen, forecast in zip(values, forecasts, strict=True)
    ]
    begins = windows.starts[chosen] + config.input_length
    titles = [f"from row {row}" if times is None else f"from {times[row].item()}" for row in begins]
    draw_windows(drawn, run.problem.target_names, path, titles)
