"""Trained forecasters: tested, and their streams compared with the parallel model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import data, inference
from flax_linattn.tasks.forecast.data import load_data, step_seconds
from flax_linattn.tasks.forecast.metrics import Errors, seasonal_naive
from flax_linattn.tasks.forecast.model import predict
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.run import reading_data
from flax_linattn.tasks.run_types import Run
from flax_linattn.typing import Array


def evaluate_forecaster(run: Run, windows: data.Windows) -> dict[str, Any]:
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
    seasons = {"naive": 1, "seasonal_naive": config.data.season or problem.season}
    series = windows.arrays["values"][:, targets]
    errors_of = {name: Errors(len(targets)) for name in ("model", "naive", "seasonal_naive")}
    for first, batch in zip(
        range(0, windows.num_examples, config.fit.batch_size), windows, strict=True
    ):
        real = batch["weight"] > 0
        truth = batch["values"][real][:, config.data.input_length :, targets]
        if "known" in batch:
            known = batch["known"][real][:, config.data.input_length :, targets]
            truth = np.where(known, truth, np.nan)
        last = windows.starts[first : first + len(truth)] + config.data.input_length - 1
        errors_of["model"].add(np.asarray(forecast(batch))[real], truth)
        for name, season in seasons.items():
            errors_of[name].add(seasonal_naive(series, last, config.data.horizon, season), truth)
    report: dict[str, Any] = {
        "dataset": problem.dataset,
        "model": config.model.model,
        "mechanism": mechanism_name(config.layers),
        "input_length": config.data.input_length,
        "horizon": config.data.horizon,
        "targets": ", ".join(problem.target_names),
        "num_test_windows": windows.num_examples,
    }
    for name, errors in errors_of.items():
        prefix = "test" if name == "model" else name
        report |= {f"{prefix}_{key}": value for key, value in errors.metrics().items()}
        original = errors.metrics(scale).items()
        report |= {f"{prefix}_original_{key}": value for key, value in original}
    return report


def compile_forecast(run: Run) -> Callable[[dict[str, NDArray]], Array]:
    """The forecasts [B, H, targets] of windows, as one compiled program."""
    graphdef, variables = nnx.split(run.model)
    last = jnp.array([run.config.data.input_length - 1])

    @jax.jit
    def forecast(variables: Any, batch: dict[str, Array]) -> Array:
        model = nnx.merge(graphdef, variables)
        return predict(model, batch, run.config.data.input_length, last)[:, 0]

    return partial(forecast, variables)


def load_series(run: Run, path: Path | None = None) -> data.TimeSeries:
    """A run's series, or another file's, with the run's channels.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: a damaged file, or other channels or times than the run was trained on.
    """
    config = run.config if path is None else run.config.replace(csv=path)
    with reading_data(path is None):
        series = load_data(config.data, run.problem.channels)
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


def stream_error(run: Run, windows: data.Windows, most: int) -> dict[str, Any]:
    """The largest difference between forecasts of a stream and of the parallel model.

    Args:
        run: one that streams.
        windows: of the series scaled by the run's standardizer.
        most: rows to compare, from the first one that is forecast.
    """
    graphdef, variables = nnx.split(run.model)
    options, arrays = run.config.data, windows.arrays
    begin = int(windows.starts[0]) + options.input_length
    end = int(windows.starts[-1]) + options.input_length + options.horizon
    seen = [arrays[name] for name in ("values", "marks") if name in arrays]
    x = np.concatenate(seen, axis=-1)[begin : min(begin + most, end)][None]

    @jax.jit
    def error(variables: Any, x: Array) -> Array:
        model = nnx.merge(graphdef, variables)
        return jnp.max(jnp.abs(model(x, every_step=True) - inference.unroll(model, x)))

    return {"stream_max_error": float(error(variables, x)), "stream_steps": x.shape[1]}
