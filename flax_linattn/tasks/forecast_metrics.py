"""Errors of forecasts, and the forecasts that every model has to beat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Errors:
    """Mean square and mean absolute error, summed up in float64.

    Args:
        num_targets: C, channels of a forecast.

    Example:
        >>> errors = Errors(1)
        >>> errors.add(np.array([[[1.0], [3.0]]]), np.array([[[1.0], [1.0]]]))
        >>> errors.metrics()
        {'mse': 2.0, 'mae': 1.0, 'rmse': 1.4142135623730951}
    """

    def __init__(self, num_targets: int) -> None:
        self._square = np.zeros(num_targets)
        self._absolute = np.zeros(num_targets)
        self._count = 0

    def add(self, forecasts: NDArray, truth: NDArray) -> None:
        """Takes in forecasts [B, H, C] and what came."""
        difference = forecasts.astype(np.float64) - truth
        self._square += np.sum(np.square(difference), axis=(0, 1))
        self._absolute += np.sum(np.abs(difference), axis=(0, 1))
        self._count += difference.shape[0] * difference.shape[1]

    def metrics(self, scale: NDArray | float = 1.0) -> dict[str, float]:
        """MSE, MAE and RMSE over everything, the errors of each channel times its scale."""
        square = float(np.mean(self._square * np.square(scale) / self._count))
        absolute = float(np.mean(self._absolute * scale / self._count))
        return {"mse": square, "mae": absolute, "rmse": float(np.sqrt(square))}


def naive(seen: NDArray, horizon: int) -> NDArray:
    """Repeats the last observation: seen [B, L, C] -> [B, H, C].

    Example:
        >>> naive(np.array([[[1.0], [2.0]]]), 3).ravel().tolist()
        [2.0, 2.0, 2.0]
    """
    return np.repeat(seen[:, -1:], horizon, axis=1)


def seasonal_naive(seen: NDArray, horizon: int, season: int) -> NDArray:
    """Repeats the last season, or all that was seen if that is less: [B, L, C] -> [B, H, C].

    Example:
        >>> seasonal_naive(np.array([[[1.0], [2.0], [3.0]]]), 3, season=2).ravel().tolist()
        [2.0, 3.0, 2.0]
    """
    season = min(season, seen.shape[1])
    return seen[:, seen.shape[1] - season + np.arange(horizon) % season]
