"""A forecaster of several series, tested over all of them and by series."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.tasks.forecast.evaluate import compile_forecast, compile_outputs, with_truth
from flax_linattn.tasks.forecast.figures import draw_windows
from flax_linattn.tasks.forecast.metrics import seasonal_naive
from flax_linattn.tasks.forecast.several import SeveralWindows
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.task import Report
from flax_linattn.tasks.yardsticks import Yardsticks

YARDSTICKS = Yardsticks("mse", ("naive", "seasonal_naive"), title="MSE")
LISTED = 5
"""Best and worst series in the table that is printed."""


class SeriesErrors:
    """Sums of errors of each series, in float64; unknown truth is left out.

    Args:
        std: the deviation of each series, [S, C]: errors come on standardised values.
        seasonal: what MASE divides by, in the units of the file, [S, C]; NaN = none.

    Example:
        >>> errors = SeriesErrors(np.array([[2.0]]), np.array([[4.0]]))
        >>> errors.add(np.array([0]), np.array([[[1.0], [3.0]]]), np.array([[[1.0], [np.nan]]]))
        >>> errors.add(np.array([0]), np.array([[[1.0]]]), np.array([[[3.0]]]))
        >>> errors.metrics()
        {'mse': 2.0, 'mae': 1.0, 'rmse': 1.4142135623730951, 'mase': 0.5}
    """

    def __init__(self, std: NDArray[np.float64], seasonal: NDArray[np.float64]) -> None:
        self._std, self._seasonal = std, seasonal
        self._square, self._absolute, self._count = (np.zeros(std.shape) for _ in range(3))

    def add(self, owners: NDArray[np.int64], forecasts: NDArray, truth: NDArray) -> None:
        """Takes in forecasts [B, H, C] of these series [B], and what came; NaN = not known."""
        known = ~np.isnan(truth)
        difference = np.where(known, forecasts.astype(np.float64) - truth, 0.0)
        np.add.at(self._square, owners, np.sum(np.square(difference), axis=1))
        np.add.at(self._absolute, owners, np.sum(np.abs(difference), axis=1))
        np.add.at(self._count, owners, np.sum(known, axis=1))

    def metrics(self) -> dict[str, float]:
        """MSE, MAE and RMSE over all known values, and MASE, the mean of that of each series.

        Raises:
            ValueError: nothing of what came is known.
        """
        count = np.sum(self._count)
        if not count:
            raise ValueError("expected known values to test on, got missing ones only.")
        square = float(np.sum(self._square) / count)
        scaled = self.by_series()["mase"]
        scaled = scaled[~np.isnan(scaled)]
        return {
            "mse": square,
            "mae": float(np.sum(self._absolute) / count),
            "rmse": float(np.sqrt(square)),
            **({"mase": float(np.mean(scaled))} if scaled.size else {}),
        }

    def by_series(self) -> dict[str, NDArray[np.float64]]:
        """MSE, MAE, MAE in the units of the file, and MASE of each series; NaN where unknown.

        MASE is the mean over channels of absolute error / ``seasonal``.
        """
        count = np.sum(self._count, axis=1)
        each = np.where(self._count > 0, self._count, np.nan)
        mae = self._absolute * self._std / each
        return {
            "mse": np.sum(self._square, axis=1) / np.where(count > 0, count, np.nan),
            "mae": np.sum(self._absolute, axis=1) / np.where(count > 0, count, np.nan),
            "original_mae": np.sum(self._absolute * self._std, axis=1)
            / np.where(count > 0, count, np.nan),
            "mase": _mean(mae / self._seasonal),
        }


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the last axis, of what is known; NaN of nothing."""
    known = ~np.isnan(values)
    count = np.sum(known, axis=1)
    total = np.sum(values, axis=1, where=known)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def report_on_series(run: Run, windows: SeveralWindows) -> Report:
    """Errors over all series, and of the best and worst, by MASE where it is known."""
    config, problem = run.config, run.problem
    forecast = compile_forecast(run)
    errors = _errors(run, windows, lambda batch, _, __: np.asarray(forecast(batch)))
    counts = np.bincount(windows.owners, minlength=len(windows.problems))
    columns = {key: errors.by_series()[key] for key in ("mase", "mse", "mae", "original_mae")}
    by = columns["mase"] if not np.isnan(columns["mase"]).all() else columns["mse"]
    order = [which for which in np.argsort(by).tolist() if not np.isnan(by[which])]
    rows = [
        {
            "series": windows.problems[which].dataset,
            "windows": int(counts[which]),
            **{key: _number(column[which]) for key, column in columns.items()},
        }
        for which in order
    ]
    shown = rows if len(rows) <= 2 * LISTED else [*rows[:LISTED], *rows[-LISTED:]]
    values = {
        "dataset": problem.dataset,
        "model": config.model.model,
        "mechanism": mechanism_name(config.layers),
        "input_length": config.data.input_length,
        "horizon": config.data.horizon,
        "targets": ", ".join(problem.target_names),
        "num_test_windows": windows.num_examples,
        "num_test_series": len(rows),
        **{f"test_{key}": value for key, value in errors.metrics().items()},
        "best_series": rows[0]["series"],
        "worst_series": rows[-1]["series"],
        "series": shown,
        "by_series": rows,
    }
    return Report(
        values,
        tables=("series",),
        figures={"forecasts.png": partial(draw_series, run, windows)},
        yardsticks=YARDSTICKS,
    )


def series_yardsticks(run: Run, windows: SeveralWindows) -> dict[str, Any]:
    """Errors of repeating each series' last value, and its last season."""
    values = windows.arrays["values"][:, list(run.problem.targets)]
    horizon = run.config.data.horizon
    begins = np.array(windows.begins)
    report: dict[str, Any] = {}
    seasons = {"naive": 1, "seasonal_naive": run.config.data.season or run.problem.season}
    for name, season in seasons.items():

        def repeated(_: Any, last: NDArray, owners: NDArray, season: int = season) -> NDArray:
            return seasonal_naive(values, last, horizon, season, first=begins[owners])

        metrics = _errors(run, windows, repeated).metrics()
        report |= {f"{name}_{key}": value for key, value in metrics.items()}
    return report


_Forecast = Callable[[dict[str, NDArray], NDArray[np.int64], NDArray[np.int64]], NDArray]
"""Forecasts of a batch, the last row that each knows, and the series of each."""


def _errors(run: Run, windows: SeveralWindows, forecast: _Forecast) -> SeriesErrors:
    targets = list(run.problem.targets)
    problems = windows.problems
    seasonal = {member.name: member.seasonal for member in run.problem.members}
    unknown = (None,) * len(targets)
    errors = SeriesErrors(
        np.array([problem.standardizer.std[targets] for problem in problems]),
        np.array([seasonal.get(problem.dataset, unknown) for problem in problems], np.float64),
    )
    first = 0
    for batch, last, truth in with_truth(run, windows):
        count = len(truth)
        owners = windows.owners[first : first + count]
        filled = np.pad(owners, (0, len(last) - count), "edge")
        errors.add(owners, forecast(batch, last, filled)[:count], truth)
        first += count
    return errors


def draw_series(run: Run, windows: SeveralWindows, path: Path, count: int = 3) -> None:
    """Draws forecasts of some series, evenly spread over the windows, in the units of the file.

    Args:
        run: the run.
        windows: of its series.
        path: the file.
        count: how many forecasts.

    Raises:
        ValueError: matplotlib is not installed.
    """
    targets, length = list(run.problem.targets), run.config.data.input_length
    chosen = np.linspace(0, windows.num_examples - 1, count).astype(int)
    batch = windows.take(chosen)
    forecasts = np.asarray(compile_outputs(run)(batch))
    drawn, titles = [], []
    for which, values, forecast in zip(
        chosen, batch["values"][:, :, targets], forecasts, strict=True
    ):
        owner = windows.owners[which]
        problem = windows.problems[owner]
        drawn.append(tuple(map(problem.in_units, (values[:length], values[length:], forecast))))
        row = windows.starts[which] + length - windows.begins[owner]
        titles.append(f"{problem.dataset}, from row {row}")
    draw_windows(drawn, run.problem.target_names, path, titles, run.config.model.levels)


def _number(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)
