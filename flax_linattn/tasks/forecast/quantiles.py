"""Quantile forecasts: their scores, and their correction by errors on held-out rows (conformal).

If windows were exchangeable, a corrected level would hold on average over calibration sets, for any
model. Windows of a time series are not exchangeable: neighbors overlap, and the future may differ.
The validation rows are not new to the model either: they selected its epoch, and the weight of the
attention that is added to a ridge. So the correction gives no guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.tasks.forecast.baselines import baseline_forecasts
from flax_linattn.tasks.forecast.ridge import Ridge
from flax_linattn.tasks.forecast.windows import (
    Forecast,
    PanelWindows,
    compile_outputs,
    validation_windows,
    with_truth,
)
from flax_linattn.tasks.spec import Run

NO_TRUE_VALUES = (
    "expected test rows with values of the targets, got missing values only; choose other rows or "
    "targets."
)
MAX_ERRORS = 2**26
"""Maximum number of errors of a calibration; beyond it, every n-th window is used."""


def central_intervals(levels: Sequence[float]) -> dict[str, tuple[int, int]]:
    """Central intervals by their percentages, the widest first, each as indices of two levels.

    Example:
        >>> central_intervals((0.025, 0.1, 0.5, 0.9, 0.975))
        {'95': (0, 4), '80': (1, 3)}
    """
    return {
        f"{100 * (above - below):g}": (low, high)
        for low, below in enumerate(levels)
        for high, above in enumerate(levels)
        if below < above and abs(below + above - 1) < 1e-9
    }


class QuantileScores:
    """Scores of quantiles, summed in float64; missing true values are ignored.

    - ``crps``: the mean over levels of twice the pinball loss. With levels that are close and
      evenly spread it comes near the continuous ranked probability score (Gneiting and Raftery,
      2007), an integral over levels; with few levels, only scores at the same levels are
      comparable.
    - ``wql``: the weighted quantile loss, as in GluonTS: the mean over levels of twice the
      sum of pinball losses / the sum of absolute truths, in the units of the file.
    - ``coverage_80``: the fraction of truths in the central interval of 80 %, and ``width_80``, its
    mean width; likewise for each interval that the levels define.

    Example:
        >>> scores = QuantileScores((0.1, 0.5, 0.9))
        >>> scores.add(np.array([[[[-1.0, 0.0, 1.0]]]]), np.array([[[2.0]]]), 1.0, 0.0)
        >>> metrics = scores.metrics()
        >>> round(metrics["crps"], 4), round(metrics["wql"], 4)
        (1.4667, 0.7333)
        >>> metrics["coverage_80"], metrics["width_80"]
        (0.0, 2.0)
    """

    def __init__(self, levels: Sequence[float]) -> None:
        self._levels = np.asarray(levels, np.float64)
        self._intervals = central_intervals(levels)
        self._pinball, self._original = np.zeros(len(levels)), np.zeros(len(levels))
        self._inside, self._width = (np.zeros(len(self._intervals)) for _ in range(2))
        self._absolute, self._count = 0.0, 0

    def add(
        self, quantiles: NDArray, truth: NDArray, std: NDArray | float, mean: NDArray | float
    ) -> None:
        """Adds quantiles [B, H, C, Q] and the truth [B, H, C]; NaN = not known."""
        known = ~np.isnan(truth)
        scale = np.broadcast_to(std, truth.shape)[known]
        original = (
            truth[known].astype(np.float64) * scale + np.broadcast_to(mean, truth.shape)[known]
        )
        levels = quantiles[known].astype(np.float64)
        above = truth[known].astype(np.float64)[:, None] - levels
        pinball = np.maximum(self._levels * above, (self._levels - 1) * above)
        self._pinball += pinball.sum(axis=0)
        self._original += (pinball * scale[:, None]).sum(axis=0)
        self._absolute += float(np.abs(original).sum())
        for which, (low, high) in enumerate(self._intervals.values()):
            self._inside[which] += np.sum((above[:, low] >= 0) & (above[:, high] <= 0))
            self._width[which] += np.sum(levels[:, high] - levels[:, low])
        self._count += int(known.sum())

    def metrics(self) -> dict[str, float]:
        """The scores by name: on standardized values, except ``original_crps`` and ``wql``."""
        if not self._count:
            raise ValueError(NO_TRUE_VALUES)
        report = {
            "crps": 2 * float(np.mean(self._pinball)) / self._count,
            "original_crps": 2 * float(np.mean(self._original)) / self._count,
        }
        if self._absolute:
            report["wql"] = 2 * float(np.mean(self._original)) / self._absolute
        for which, percent in enumerate(self._intervals):
            report[f"coverage_{percent}"] = float(self._inside[which] / self._count)
            report[f"width_{percent}"] = float(self._width[which] / self._count)
        return report


def offsets(errors: NDArray, level: float) -> NDArray:
    """Offsets [...] of forecasts below which the fraction ``level`` of true values lies.

    Errors [n, ...] are truth - forecast, NaN = not known. If the n errors and a new one are
    exchangeable, the new error is at most the error of rank ceil((n + 1) level) with a probability
    of at least the level; for a level below one half the same holds from above (Romano, Patterson
    and Candes, "Conformalized Quantile Regression", 2019, theorem 2, which corrects the two ends of
    an interval independently). Departure: with too few errors for such a rank, the outermost error
    is used instead of infinity; without a known error, 0.

    Example:
        >>> errors = np.arange(1.0, 10.0)
        >>> [float(offsets(errors, level)) for level in (0.1, 0.5, 0.9, 0.99)]
        [1.0, 5.0, 9.0, 9.0]
    """
    count = np.sum(~np.isnan(errors), axis=0)
    beyond = max(level, 1 - level)
    rank = np.ceil((count + 1) * beyond - 1e-9).astype(np.int64)
    rank = rank if level >= 0.5 else count + 1 - rank
    place = np.clip(rank, 1, np.maximum(count, 1)) - 1
    ordered = np.sort(errors, axis=0)  # NaN comes last
    ranked = np.take_along_axis(ordered, place[None], axis=0)[0]
    return np.where(count > 0, ranked, 0.0)


def corrections(run: Run, windows: data.Windows) -> NDArray[np.float32]:
    """Corrections [H, targets, Q] of a run's quantiles, calibrated on windows.

    Each level of each step and target is corrected independently, on standardized values.
    """
    errors = np.moveaxis(_errors_on(run, windows, _model_quantiles(run)), -1, 0)
    corrected = map(offsets, errors, run.config.model.levels)
    return np.stack([*corrected], axis=-1).astype(np.float32)


def _model_quantiles(run: Run) -> Forecast:
    """The quantiles [B, H, targets, Q] of a run's model."""
    outputs = compile_outputs(run)
    return lambda batch: np.asarray(outputs(batch.arrays))[..., 1:]


def _errors_on(run: Run, windows: data.Windows, forecast: Forecast) -> NDArray[np.float32]:
    """Errors truth - forecast [n, H, targets, Q]; NaN where the truth is not known."""
    parts, first, stride = [], 0, 1
    for batch in with_truth(run, windows):
        errors = batch.truth[..., None] - forecast(batch)[: len(batch.truth)]
        stride = -(-windows.num_examples * errors[0].size // MAX_ERRORS)
        parts.append(errors[-first % stride :: stride].astype(np.float32))
        first += len(errors)
    return np.concatenate(parts)


def score_quantiles(run: Run, windows: PanelWindows) -> dict[str, Any]:
    """Scores of a run's quantiles on windows, such as ``test_crps``; empty without quantiles."""
    if not run.config.model.levels:
        return {}
    scores = _scores(run, windows, _model_quantiles(run))
    return {f"test_{name}": value for name, value in scores.items()}


def score_baselines(run: Run, windows: PanelWindows, ridge: Ridge | None) -> dict[str, Any]:
    """Scores of the baselines with quantiles of their own errors, such as ``ridge_crps``.

    The quantiles of a step and target are its forecast plus the quantiles of its errors on the
    validation rows (``offsets``), as in split conformal prediction. Empty for a run without
    quantiles, for a panel, and on other rows than the run's own.
    """
    levels = run.config.model.levels
    validation = validation_windows(run, windows) if levels and not run.data_spec.members else None
    if validation is None:
        return {}
    report: dict[str, Any] = {}
    for name, forecast in baseline_forecasts(run, windows, ridge).items():
        (errors,) = np.moveaxis(_errors_on(run, validation, _plus(forecast, 0.0)), -1, 0)
        added = np.stack([offsets(errors, level) for level in levels], axis=-1)
        scores = _scores(run, windows, _plus(forecast, added))
        report |= {f"{name}_{key}": value for key, value in scores.items()}
    return report


def _plus(forecast: Forecast, added: NDArray | float) -> Forecast:
    """Quantiles [B, H, targets, Q]: a forecast plus offsets."""
    return lambda batch: forecast(batch)[..., None] + added


def _scores(run: Run, windows: PanelWindows, forecast: Forecast) -> dict[str, float]:
    """The scores of quantiles [B, H, targets, Q] on all windows."""
    scores, targets = QuantileScores(run.config.model.levels), list(run.data_spec.targets)
    std = np.stack([data_spec.standardizer.std[targets] for data_spec in windows.data_specs])
    mean = np.stack([data_spec.standardizer.mean[targets] for data_spec in windows.data_specs])
    for batch in with_truth(run, windows):
        owners = batch.owners[: len(batch.truth)]
        quantiles = forecast(batch)[: len(owners)]
        scores.add(quantiles, batch.truth, std[owners, None], mean[owners, None])
    return scores.metrics()
