"""A forecaster of several series, tested over all of them and by series."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError
from flax_linattn.tasks.forecast.evaluate import (
    YARDSTICKS,
    compile_outputs,
    facts_of,
    model_forecast,
    ridge_forecast,
    with_truth,
)
from flax_linattn.tasks.forecast.figures import draw_windows
from flax_linattn.tasks.forecast.metrics import seasonal_naive
from flax_linattn.tasks.forecast.several import (
    Several,
    SeveralWindows,
    describe_several,
    load_several,
    several_splits,
)
from flax_linattn.tasks.forecast.yardsticks import Ridge, fit_ridge
from flax_linattn.tasks.run import reading_data
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.task import Report
from flax_linattn.tasks.yardsticks import at_hand

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

    @property
    def num_known(self) -> int:
        """How many values were known."""
        return int(np.sum(self._count))

    def metrics(self) -> dict[str, float]:
        """MSE, MAE and RMSE over all known values, and MASE, the mean of that of each series.

        Raises:
            ValueError: nothing of what came is known.
        """
        count = self.num_known
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
    model = model_forecast(run)
    forecasts: dict[str, _Forecast] = {"test": lambda batch, last, _: model(batch, last)}
    errors = _errors(run, windows, forecasts)["test"]
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
        **facts_of(run, windows),
        "num_test_series": len(rows),
        **{f"test_{key}": value for key, value in errors.metrics().items()},
        **_on_validation(run, windows, forecasts),
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
    """Errors of what a model has to beat, as ``evaluate.evaluate_yardsticks`` has those of one.

    The season is each series' own; the ridge is one map for all of them, fitted to the windows of
    all training rows, and is left out where these cannot be read.
    """
    values = windows.arrays["values"][:, list(run.problem.targets)]
    begins = np.array(windows.begins)

    def repeated(season: int) -> _Forecast:
        return lambda _, last, owners: seasonal_naive(
            values, last, run.config.data.horizon, season, first=begins[owners]
        )

    forecasts = {
        "naive": repeated(1),
        "seasonal_naive": repeated(run.config.data.season or run.problem.season),
    }
    report: dict[str, Any] = {}
    several = at_hand(partial(own_several, run))
    if several is not None:
        ridge = ridge_of_all(run, several)
        forecast = ridge_forecast(run, ridge)
        forecasts["ridge"] = lambda batch, last, _: forecast(batch, last)
        report = {"ridge_learned_from": ridge.num_windows, "num_train_windows": ridge.num_there}
    for name, errors in _errors(run, windows, forecasts).items():
        report |= {f"{name}_{key}": value for key, value in errors.metrics().items()}
    return report | _on_validation(run, windows, forecasts)


def own_several(run: Run) -> Several:
    """The series that a run was trained and tested on.

    Raises:
        FileNotFoundError: the run's file is missing.
        ValueError: its rows have changed.
    """
    if run.data is not None:
        loaded: Several = run.data
        return loaded
    with reading_data(True):
        several = load_several(run.config)
    if describe_several(several, run.config).checksum != run.problem.checksum:
        raise OptionError(
            f"the data of the run have changed since ({several.name}); give other data to test on.",
            "test_file",
        )
    return several


def ridge_of_all(run: Run, several: Several) -> Ridge:
    """The ridge of the training rows of a run's series, its strength chosen on validation rows."""
    train, validation, _ = several_splits(several, run.config, run.problem)
    values = train.arrays["values"][:, list(run.problem.targets)]
    options = run.config.data
    return fit_ridge(
        values, train.rows, validation.rows, options.input_length, options.horizon, train.begins
    )


_Forecast = Callable[[dict[str, NDArray], NDArray[np.int64], NDArray[np.int64]], NDArray]
"""Forecasts of a batch, the last row that each knows, and the series of each."""


def _errors(
    run: Run, windows: SeveralWindows, forecasts: Mapping[str, _Forecast]
) -> dict[str, SeriesErrors]:
    targets = list(run.problem.targets)
    std = np.array([problem.standardizer.std[targets] for problem in windows.problems])
    known = {member.name: member.seasonal for member in run.problem.members}
    unknown = (None,) * len(targets)
    seasonal = [known.get(problem.dataset, unknown) for problem in windows.problems]
    errors = {name: SeriesErrors(std, np.array(seasonal, np.float64)) for name in forecasts}
    first = 0
    for batch, last, truth in with_truth(run, windows):
        count = len(truth)
        owners = windows.owners[first : first + count]
        filled = np.pad(owners, (0, len(last) - count), "edge")
        for name, forecast in forecasts.items():
            errors[name].add(owners, forecast(batch, last, filled)[:count], truth)
        first += count
    return errors


def _on_validation(
    run: Run, windows: SeveralWindows, forecasts: Mapping[str, _Forecast]
) -> dict[str, float]:
    """MSE and MAE on the validation rows, where the windows are of the run's test rows."""
    each = list(zip(windows.problems, windows.rows, windows.begins, strict=True))
    if any(tuple(own.split[-1]) != (rows.start - b, rows.stop - b) for own, rows, b in each):
        return {}
    held = SeveralWindows(
        windows.problems,
        windows.arrays,
        [range(begin + own.split[1][0], begin + own.split[1][1]) for own, _, begin in each],
        run.config,
        seed=None,
        stride=run.config.data.stride,
        begins=windows.begins,
    )
    report: dict[str, float] = {}
    for name, errors in _errors(run, held, forecasts).items():
        prefix = "" if name == "test" else f"{name}_"
        found = errors.metrics() if errors.num_known else {}
        report |= {f"{prefix}validation_{key}": found[key] for key in ("mse", "mae") if found}
    return report


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
