"""Values so far out that they alone decide the deviation of their channel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHARE = 1000
"""One value of so many, and at least one, may be an outlier."""
FACTOR = 10.0
"""How much smaller the deviation of the others has to be, and how much nearer they have to lie."""


def find_outliers(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Finds the values without which the deviation of their channel would be less than a tenth.

    Args:
        values: float64 ``[T, C]``; NaN marks a missing value, of which no channel is made alone.

    Returns:
        int64 ``[N, 2]``: row and channel of each, by channel.

    Example:
        >>> values = np.sin(np.arange(200.0))[:, None] + [0, 5]
        >>> values[7, 1] = 1e30
        >>> find_outliers(values).tolist()
        [[7, 1]]
    """
    few = max(1, len(values) // SHARE)
    if len(values) < 2 + few:
        return np.zeros((0, 2), np.int64)
    missing = np.isnan(values)
    median = np.nanmedian(values, axis=0) if missing.any() else np.median(values, axis=0)
    values = np.where(missing, median, values)
    distance = np.abs(values - median)
    order = np.argpartition(distance, -few, axis=0)
    rest, rows = order[:-few], order[-few:]
    deviation = np.take_along_axis(values, rest, axis=0).std(axis=0)
    farthest = np.take_along_axis(distance, rest, axis=0).max(axis=0)
    out = np.take_along_axis(distance, rows, axis=0) > FACTOR * farthest
    out &= values.std(axis=0) > FACTOR * deviation
    found = [
        (row, channel) for channel, at in enumerate(rows.T) for row in np.sort(at[out[:, channel]])
    ]
    return np.array(found, np.int64).reshape(-1, 2)
