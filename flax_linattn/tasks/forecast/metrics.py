"""Errors of forecasts, and the forecasts that every model has to beat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Errors:
    """Mean square and mean absolute error, summed up in float64; unknown truth is left out.

    Args:
        num_targets: C, channels of a forecast.

    Example:
        >>> errors = Errors(1)
        >>> errors.add(np.array([[[1.0], [3.0], [5.0]]]), np.array([[[1.0], [1.0], [np.nan]]]))
        >>> errors.metrics()
        {'mse': 2.0, 'mae': 1.0, 'rmse': 1.4142135623730951}
        >>> errors.by_step()["mse"].tolist()
        [0.0, 4.0, nan]
    """

    def __init__(self, num_targets: int) -> None:
        self._square = np.zeros((1, num_targets))  # [H, C] once there is a forecast
        self._absolute = np.zeros((1, num_targets))
        self._count = np.zeros((1, num_targets), np.int64)

    @property
    def num_known(self) -> int:
        """Values of what came that are known."""
        return int(np.sum(self._count))

    def add(self, forecasts: NDArray, truth: NDArray) -> None:
        """Takes in forecasts [B, H, C] and what came; NaN = not known."""
        known = ~np.isnan(truth)
        difference = forecasts.astype(np.float64) - truth
        self._square = self._square + np.sum(np.square(difference), axis=0, where=known)
        self._absolute = self._absolute + np.sum(np.abs(difference), axis=0, where=known)
        self._count = self._count + np.sum(known, axis=0)

    def metrics(self, scale: NDArray | float = 1.0) -> dict[str, float]:
        """MSE, MAE and RMSE over all known values, the errors of each channel times its scale.

        Raises:
            ValueError: nothing of what came is known.
        """
        count = self.num_known
        if not count:
            raise ValueError("expected known values to test on, got missing ones only.")
        square = float(np.sum(self._square * np.square(scale)) / count)
        absolute = float(np.sum(self._absolute * scale) / count)
        return {"mse": square, "mae": absolute, "rmse": float(np.sqrt(square))}

    def by_step(self) -> dict[str, NDArray[np.float64]]:
        """MSE and MAE of each step of the horizon [H]; NaN where nothing is known."""
        return self._along(1)

    def by_channel(self) -> dict[str, NDArray[np.float64]]:
        """MSE and MAE of each channel [C]; NaN where nothing is known."""
        return self._along(0)

    def _along(self, axis: int) -> dict[str, NDArray[np.float64]]:
        count = np.sum(self._count, axis=axis)
        sums = {"mse": self._square, "mae": self._absolute}
        return {
            name: np.where(count > 0, np.sum(values, axis=axis) / np.maximum(count, 1), np.nan)
            for name, values in sums.items()
        }


def seasonal_naive(
    values: NDArray,
    last: NDArray[np.int64],
    horizon: int,
    season: int,
    first: NDArray[np.int64] | int = 0,
) -> NDArray:
    """Repeats the last season; with a season of one row, the last observation.

    Where the series begins too late to know the season, the last observation stands in.

    Args:
        values: the series [T, C].
        last: the last row that each forecast knows [N].
        horizon: H.
        season: rows of a season.
        first: the first row of the series that each forecast is of [N].

    Returns:
        Forecasts [N, H, C].

    Example:
        >>> values = np.arange(5.0)[:, None]
        >>> seasonal_naive(values, np.array([3]), 3, season=2).ravel().tolist()
        [2.0, 3.0, 2.0]
        >>> seasonal_naive(values, np.array([3]), 3, season=1).ravel().tolist()
        [3.0, 3.0, 3.0]
    """
    ahead = np.arange(1, horizon + 1)
    row = last[:, None] + ahead - season * -(-ahead // season)
    return values[np.where(row >= np.reshape(first, (-1, 1)), row, last[:, None])]
