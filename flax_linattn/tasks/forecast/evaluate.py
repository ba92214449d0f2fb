"""Evaluation of forecasters: test errors, baselines, and the difference to their streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.tasks.baselines import Baselines, read_or_note
from flax_linattn.tasks.forecast.baselines import baseline_forecasts, fitted_ridge
from flax_linattn.tasks.forecast.figures import plot_errors, plot_forecasts
from flax_linattn.tasks.forecast.panel import own_panel
from flax_linattn.tasks.forecast.quantiles import (
    NO_TRUE_VALUES,
    score_baselines,
    score_quantiles,
)
from flax_linattn.tasks.forecast.windows import (
    Forecast,
    PanelWindows,
    model_forecast,
    validation_windows,
    with_truth,
)
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import stream_difference
from flax_linattn.tasks.task import Report

MAX_LISTED = 5
"""Best and worst series in the table that is printed."""


class Errors:
    """Mean squared and mean absolute errors, summed in float64; missing true values are ignored.

    There is one sum for each step of the horizon, or for each of ``num_series`` series.

    Example:
        >>> errors = Errors(1)
        >>> errors.add(np.array([[[1.0], [3.0], [5.0]]]), np.array([[[1.0], [1.0], [np.nan]]]))
        >>> errors.metrics()
        {'mse': 2.0, 'mae': 1.0, 'rmse': 1.4142135623730951}
        >>> errors.by_row()["mse"].tolist(), errors.by_channel()["mae"].tolist()
        ([0.0, 4.0, nan], [1.0])
        >>> two = Errors(1, num_series=2)
        >>> two.add(np.array([[[1.0], [3.0]]]), np.array([[[1.0], [1.0]]]), np.array([1]))
        >>> two.by_row()["mse"].tolist(), two.mase(np.ones((2, 1)), np.full((2, 1), 0.5)).tolist()
        ([nan, 2.0], [nan, 2.0])
    """

    def __init__(self, num_targets: int, num_series: int | None = None) -> None:
        shape = (num_series or 1, num_targets)  # without series [H, C] once there is a forecast
        self._square, self._absolute = np.zeros(shape), np.zeros(shape)
        self._count = np.zeros(shape, np.int64)

    @property
    def num_known(self) -> int:
        """Number of true values that are not missing."""
        return int(np.sum(self._count))

    def add(
        self, forecasts: NDArray, truth: NDArray, owners: NDArray[np.int64] | None = None
    ) -> None:
        """Adds forecasts [B, H, C] and the truth, NaN = not known; owners [B] are their series."""
        known = ~np.isnan(truth)
        difference = np.where(known, forecasts.astype(np.float64) - truth, 0.0)
        square, absolute = np.square(difference), np.abs(difference)
        if owners is not None:
            np.add.at(self._square, owners, np.sum(square, axis=1))
            np.add.at(self._absolute, owners, np.sum(absolute, axis=1))
            np.add.at(self._count, owners, np.sum(known, axis=1))
        else:
            self._square = self._square + np.sum(square, axis=0)
            self._absolute = self._absolute + np.sum(absolute, axis=0)
            self._count = self._count + np.sum(known, axis=0)

    def metrics(self, scale: NDArray | float = 1.0) -> dict[str, float]:
        """MSE, MAE and RMSE over all known values, the errors of each channel times its scale."""
        count = self.num_known
        if not count:
            raise ValueError(NO_TRUE_VALUES)
        square = float(np.sum(self._square * np.square(scale)) / count)
        absolute = float(np.sum(self._absolute * scale) / count)
        return {"mse": square, "mae": absolute, "rmse": float(np.sqrt(square))}

    def by_row(self, scale: NDArray | float = 1.0) -> dict[str, NDArray[np.float64]]:
        """MSE and MAE of each step [H], or series [S], times a scale; NaN where none is known."""
        return self._along(1, scale)

    def by_channel(self) -> dict[str, NDArray[np.float64]]:
        """MSE and MAE of each channel [C]; NaN where nothing is known."""
        return self._along(0, 1.0)

    def mase(self, std: NDArray[np.float64], seasonal: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean over channels of absolute error / seasonal, of each series [S]; see ``spec``.

        ``std`` [S, C] scales standardized values; ``seasonal`` [S, C] is in the file's units, NaN =
        none.
        """
        count = np.where(self._count > 0, self._count, np.nan)
        scaled = self._absolute * std / count / seasonal
        known = ~np.isnan(scaled)
        count = np.sum(known, axis=1)
        total = np.sum(scaled, axis=1, where=known)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def _along(self, axis: int, scale: NDArray | float) -> dict[str, NDArray[np.float64]]:
        count = np.sum(self._count, axis=axis)
        sums = {"mse": self._square * np.square(scale), "mae": self._absolute * scale}
        return {
            name: np.where(count > 0, np.sum(values, axis=axis) / np.maximum(count, 1), np.nan)
            for name, values in sums.items()
        }


def remark(values: Mapping[str, Any]) -> str:
    """Additions to a verdict: whether the attention has weight 0, and the coverage of intervals.

    Example:
        >>> remark({"attention_share": 0.0, "test_coverage_80": 0.764})
        'the weight of the attention is 0, so the forecasts come from the ridge alone; ...'
        >>> remark({"attention_share": 0.3})
        ''
    """
    known = " and the known future covariates" if values.get("known_share") else ""
    alone = f"the weight of the attention is 0, so the forecasts come from the ridge{known} alone"
    covered = [
        f"the {name.removeprefix(COVERAGE)} % interval covers {100 * value:.3g} % of true values"
        for name, value in values.items()
        if name.startswith(COVERAGE) and not name.endswith("_sd")
    ]
    return "; ".join([alone, *covered] if values.get("attention_share") == 0 else covered)


COVERAGE = "test_coverage_"
NAMES = ("naive", "seasonal_naive", "ridge")
CRPS = Baselines("crps", NAMES, title="CRPS")
BASELINES = Baselines("mse", NAMES, title="MSE", selected=NAMES[-1:], remark=remark, also=(CRPS,))


def evaluate_model(run: Run, windows: PanelWindows) -> Report:
    """Tests a run on windows in the order of time: errors, scores of quantiles, tables.

    Errors are on standardized values. A run on one series also reports errors in the units of the
    file, by step and by channel; a run on a panel reports MASE, and errors by series (``series``:
    the best and the worst). Errors on the validation rows are added if the windows cover the
    run's own test rows.
    """
    config, data_spec = run.config, run.data_spec
    channels = config.model.channel_mechanism
    weights = {}
    if config.model.ridge:
        weights = {"attention_share": run.model.share, "known_share": run.model.known_share}
    values = {
        "dataset": data_spec.dataset,
        "model": config.model.model,
        "mechanism": mechanism_name(config.layers),
        **({"channel_mechanism": channels} if channels else {}),
        "context_length": config.data.context_length,
        "horizon": config.data.horizon,
        "targets": ", ".join(data_spec.target_names),
        "num_test_windows": windows.num_examples,
        **{name: float(weight[...]) for name, weight in weights.items() if weight is not None},
        **evaluate_forecasts({"test": model_forecast(run)}, run, windows),
        **score_quantiles(run, windows),
    }
    return Report(
        values,
        tables=("series",) if data_spec.members else (),
        figures={"forecasts.png": partial(plot_forecasts, run, windows)},
        baselines=BASELINES,
        charts={} if data_spec.members else {"errors.png": plot_errors},
    )


def evaluate_baselines(run: Run, windows: PanelWindows) -> dict[str, Any]:
    """Errors of the baselines, in the form of ``evaluate_model``.

    The ridge is left out where the training rows cannot be read.
    """
    panel = read_or_note(partial(own_panel, run))
    ridge = None if panel is None else fitted_ridge(run, panel)
    maps = {} if ridge is None else {"ridge_maps": ridge.maps}
    report = maps | score_baselines(run, windows, ridge)
    return evaluate_forecasts(baseline_forecasts(run, windows, ridge), run, windows) | report


def evaluate_forecasts(
    forecasts: Mapping[str, Forecast], run: Run, windows: PanelWindows
) -> dict[str, Any]:
    """Errors by forecast and metric, on validation rows too, and tables; see ``evaluate_model``."""
    data_spec, targets = run.data_spec, list(run.data_spec.targets)
    errors = sum_errors(forecasts, run, windows)
    std = np.stack([own.standardizer.std[targets] for own in windows.data_specs])
    divisors = {info.name: info.seasonal for info in data_spec.members}
    none = (None,) * len(targets)
    seasonal = np.array([divisors.get(own.dataset, none) for own in windows.data_specs], np.float64)
    report: dict[str, Any] = {}
    for name, sums in errors.items():
        report |= {f"{name}_{key}": value for key, value in sums.metrics().items()}
        if not data_spec.members:
            report |= {f"{name}_original_{k}": v for k, v in sums.metrics(std[0]).items()}
            continue
        scaled = sums.mase(std, seasonal)
        if (known := ~np.isnan(scaled)).any():
            report[f"{name}_mase"] = float(np.mean(scaled[known]))
    validation = validation_windows(run, windows)
    for name, sums in {} if validation is None else sum_errors(forecasts, run, validation).items():
        prefix = "" if name == "test" else f"{name}_"
        own = sums.metrics() if sums.num_known else {}
        report |= {f"{prefix}validation_{key}": own[key] for key in ("mse", "mae") if own}
    if not data_spec.members:
        steps = range(1, run.config.data.horizon + 1)
        by_step = {name: sums.by_row() for name, sums in errors.items()}
        by_channel = {name: sums.by_channel() for name, sums in errors.items()}
        report["by_step"] = _table("step", steps, by_step)
        report["by_channel"] = _table("channel", data_spec.target_names, by_channel)
    elif "test" in errors:
        columns = {
            "mase": errors["test"].mase(std, seasonal),
            **errors["test"].by_row(),
            "original_mae": errors["test"].by_row(std)["mae"],
        }
        report |= _series_tables(columns, windows)
    return report


def sum_errors(
    forecasts: Mapping[str, Forecast], run: Run, windows: data.Windows
) -> dict[str, Errors]:
    """The errors of forecasts, by their names, on standardized values."""
    num_series = len(windows.begins) if run.data_spec.members else None
    errors = {name: Errors(len(run.data_spec.targets), num_series) for name in forecasts}
    for batch in with_truth(run, windows):
        count = len(batch.truth)
        owners = batch.owners[:count] if run.data_spec.members else None
        for name, forecast in forecasts.items():
            errors[name].add(forecast(batch)[:count], batch.truth, owners)
    return errors


def _table(
    what: str, keys: Iterable[Any], errors: Mapping[str, Mapping[str, NDArray]]
) -> list[dict[str, Any]]:
    """A row for each key: errors by name and metric."""
    columns = {
        f"{name}_{metric}": values
        for name, metrics in errors.items()
        for metric, values in metrics.items()
    }
    return pd.DataFrame({what: [*keys], **columns}).to_dict("records")


def _series_tables(columns: Mapping[str, NDArray], windows: PanelWindows) -> dict[str, Any]:
    """The errors of each series, the best first."""
    counts = np.bincount(windows.owners, minlength=len(windows.data_specs))
    by = columns["mase"] if not np.isnan(columns["mase"]).all() else columns["mse"]
    names = [data_spec.dataset for data_spec in windows.data_specs]
    table = pd.DataFrame({"series": names, "windows": counts, **columns})
    table = table.iloc[[which for which in np.argsort(by) if not np.isnan(by[which])]]
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    few = len(rows) <= 2 * MAX_LISTED
    return {
        "num_test_series": len(rows),
        "best_series": rows[0]["series"],
        "worst_series": rows[-1]["series"],
        "series": rows if few else [*rows[:MAX_LISTED], *rows[-MAX_LISTED:]],
        "by_series": rows,
    }


def stream_error(run: Run, windows: PanelWindows, max_rows: int) -> dict[str, Any]:
    """Difference between stream and parallel model over the first ``max_rows`` rows of windows."""
    options, arrays = run.config.data, windows.arrays
    begin = int(windows.starts[0]) + options.context_length
    end = int(windows.starts[-1]) + options.context_length + options.horizon
    known = list(run.data_spec.known_inputs)
    end -= options.horizon if known else 0
    rows = slice(begin, min(begin + max_rows, end))
    parts = [
        arrays[name][rows] for name in ("values", "missing", "time_features") if name in arrays
    ]
    if known:
        ahead = np.arange(rows.start, rows.stop)[:, None] + 1 + np.arange(options.horizon)
        parts.append(arrays["values"][ahead][..., known].reshape(len(ahead), -1))
    x = np.concatenate(parts, axis=-1)[None]
    return stream_difference(run.model, x, every_step=True)
