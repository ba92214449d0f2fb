"""How good quantiles are: those of a run, and those that yardsticks get from their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.tasks.forecast.conformal import errors_on, offsets
from flax_linattn.tasks.forecast.evaluate import (
    Forecast,
    compile_outputs,
    simple_forecasts,
    validation_windows,
    with_truth,
)
from flax_linattn.tasks.forecast.several import SeveralWindows
from flax_linattn.tasks.forecast.yardsticks import Ridge
from flax_linattn.tasks.run_types import Run


def central_intervals(levels: Sequence[float]) -> dict[str, tuple[int, int]]:
    """The intervals that have as much below as above, by their shares in per cent.

    Args:
        levels: Q, rising.

    Returns:
        For each the numbers of the levels at its ends, the widest first.

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
    """Scores of quantiles, summed up in float64; unknown truth is left out.

    - ``crps``: the mean over levels of twice the pinball loss. With levels that are close and
      evenly spread it comes near the continuous ranked probability score (Gneiting and Raftery,
      2007), an integral over levels; with few, compare those of the same levels alone.
    - ``wql``: the weighted quantile loss, as GluonTS has it: the mean over levels of twice the
      sum of pinball losses / the sum of absolute truths, in the units of the file.
    - ``coverage_80``: the share of truths in the central interval of 80 %, and ``width_80``, its
      mean width; so for each that the levels give.

    Args:
        levels: Q, rising.

    Example:
        >>> scores = QuantileScores((0.1, 0.5, 0.9))
        >>> scores.add(np.array([[[[-1.0, 0.0, 1.0]]]]), np.array([[[2.0]]]), 1.0, 0.0)
        >>> found = scores.metrics()
        >>> round(found["crps"], 4), round(found["wql"], 4)
        (1.4667, 0.7333)
        >>> found["coverage_80"], found["width_80"]
        (0.0, 2.0)
    """

    def __init__(self, levels: Sequence[float]) -> None:
        self._levels = np.asarray(levels, np.float64)
        self._intervals = central_intervals(levels)
        self._pinball, self._original = np.zeros(len(levels)), np.zeros(len(levels))
        self._inside, self._width = (np.zeros(len(self._intervals)) for _ in range(2))
        self._absolute, self._count = 0.0, 0

    def add(
        self,
        quantiles: NDArray,
        truth: NDArray,
        std: NDArray | float,
        mean: NDArray | float,
    ) -> None:
        """Takes in quantiles [B, H, C, Q] and what came [B, H, C]; NaN = not known.

        Args:
            quantiles: on standardised values.
            truth: as those.
            std: what a standardised value is to be multiplied by, to broadcast with the truth.
            mean: what is added then.
        """
        known = ~np.isnan(truth)
        scale = np.broadcast_to(std, truth.shape)[known]
        original = (
            truth[known].astype(np.float64) * scale + np.broadcast_to(mean, truth.shape)[known]
        )
        found = quantiles[known].astype(np.float64)
        above = truth[known].astype(np.float64)[:, None] - found
        pinball = np.maximum(self._levels * above, (self._levels - 1) * above)
        self._pinball += pinball.sum(axis=0)
        self._original += (pinball * scale[:, None]).sum(axis=0)
        self._absolute += float(np.abs(original).sum())
        for which, (low, high) in enumerate(self._intervals.values()):
            self._inside[which] += np.sum((above[:, low] >= 0) & (above[:, high] <= 0))
            self._width[which] += np.sum(found[:, high] - found[:, low])
        self._count += int(known.sum())

    def metrics(self) -> dict[str, float]:
        """The scores by name: on standardised values, but for ``original_crps`` and ``wql``.

        Raises:
            ValueError: nothing of what came is known.
        """
        if not self._count:
            raise ValueError("expected known values to test on, got missing ones only.")
        report = {
            "crps": 2 * float(np.mean(self._pinball)) / self._count,
            "original_crps": 2 * float(np.mean(self._original)) / self._count,
        }
        if self._absolute:
            report["wql"] = 2 * float(np.mean(self._original)) / self._absolute
        for which, share in enumerate(self._intervals):
            report[f"coverage_{share}"] = float(self._inside[which] / self._count)
            report[f"width_{share}"] = float(self._width[which] / self._count)
        return report


def score_quantiles(run: Run, windows: data.Windows) -> dict[str, Any]:
    """The scores of a run's quantiles on windows, as ``test_crps`` and so on; of none nothing."""
    levels = run.config.model.levels
    if not levels:
        return {}
    scores, outputs, first = QuantileScores(levels), compile_outputs(run), 0
    for batch, _, truth in with_truth(run, windows):
        quantiles = np.asarray(outputs(batch))[: len(truth), ..., 1:]
        scores.add(quantiles, truth, *_scales(run, windows, first, len(truth)))
        first += len(truth)
    return {f"test_{name}": value for name, value in scores.metrics().items()}


def score_yardsticks(run: Run, windows: data.Windows, ridge: Ridge | None) -> dict[str, Any]:
    """The scores of the yardsticks with quantiles of their own errors, as ``ridge_crps`` and so on.

    To a forecast of a step and target are added the quantiles of its errors on the validation
    rows (``offsets``), as split conformal prediction does. Of a run without quantiles, and on other
    rows than the run's, there are none.
    """
    levels = run.config.model.levels
    held = validation_windows(run, windows) if levels else None
    if held is None:
        return {}
    report: dict[str, Any] = {}
    for name, forecast in simple_forecasts(run, windows, ridge).items():
        errors = errors_on(run, held, _one_level(forecast))
        added = np.stack([offsets(errors[..., 0], level) for level in levels], axis=-1)
        scores = QuantileScores(levels)
        for batch, last, truth in with_truth(run, windows):
            told = forecast(batch, last)[: len(truth), ..., None] + added
            scores.add(told, truth, *_scales(run, windows, 0, len(truth)))
        report |= {f"{name}_{key}": value for key, value in scores.metrics().items()}
    return report


def _one_level(forecast: Forecast) -> Forecast:
    """Forecasts with a last axis of 1."""
    return lambda batch, last: forecast(batch, last)[..., None]


def _scales(run: Run, windows: data.Windows, first: int, count: int) -> tuple[NDArray, NDArray]:
    """Deviation and mean of the targets of some windows, to broadcast with them."""
    targets = list(run.problem.targets)
    if isinstance(windows, SeveralWindows):
        of_each = [p.standardizer for p in windows.problems]
        owners = windows.owners[first : first + count]
        std, mean = (np.stack([getattr(s, k)[targets] for s in of_each]) for k in ("std", "mean"))
        return std[owners, None], mean[owners, None]
    return run.problem.standardizer.std[targets], run.problem.standardizer.mean[targets]
