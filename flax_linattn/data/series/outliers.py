"""Detection of outliers and of codes for missing values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_ROWS_PER_OUTLIER = 1000
"""Up to one value in this many, and at least one, may be an outlier."""
FACTOR = 10.0
"""Minimum ratio of standard deviations, and of distances, with and without the outliers."""
SPARSE_FACTOR = 1e6
"""Minimum distance ratio between outliers and other values in channels with mostly one value.

Rain or events are far from that value by nature, and a few determine the standard deviation.
"""


class RepeatedValue(NamedTuple):
    """A value that is isolated in its channel, or from which a few other values are isolated.

    Attributes:
        channel: Index of the channel.
        value: The value.
        rows: Rows that hold the value (``find_codes``) or the other values (``find_still``), int64.
    """

    channel: int
    value: float
    rows: NDArray[np.int64]


def find_still(values: NDArray[np.float64]) -> list[RepeatedValue]:
    """Finds the channels with a single value except in a few rows, which have no scale.

    ``values`` are float64 ``[T, C]``; NaN is ignored.
    """
    filled, median = _filled(values)
    others = filled != median
    few = (others.sum(axis=0) > 0) & (others.sum(axis=0) <= _few(values))
    return [
        RepeatedValue(channel, float(median[channel]), np.flatnonzero(others[:, channel]))
        for channel in np.flatnonzero(few).tolist()
    ]


def find_outliers(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Finds values without which the std of their channel would be less than a tenth.

    In a channel that mostly has one value, such as rain, they are a million times farther from it
    than half of the other values. Without other values nothing is an outlier: see ``find_still``.
    ``values`` are float64 ``[T, C]``, NaN where one is missing; the result is int64 ``[N, 2]``: row
    and channel of each, by channel.

    Example:
        >>> values = np.sin(np.arange(200.0))[:, None] + [0, 5]
        >>> values[7, 1] = 1e30
        >>> find_outliers(values).tolist()
        [[7, 1]]
    """
    few = _few(values)
    if len(values) < 2 + few:
        return np.zeros((0, 2), np.int64)
    values, median = _filled(values)
    distance = np.abs(values - median)
    order = np.argpartition(distance, -few, axis=0)
    rest, rows = order[:-few], order[-few:]
    rest_std = np.take_along_axis(values, rest, axis=0).std(axis=0)
    others = np.take_along_axis(distance, rest, axis=0)
    limit = FACTOR * others.max(axis=0)
    for channel in np.flatnonzero(2 * np.count_nonzero(others, axis=0) < len(others)).tolist():
        apart = others[:, channel][others[:, channel] > 0]
        limit[channel] = SPARSE_FACTOR * np.median(apart) if len(apart) else np.inf
    out = np.take_along_axis(distance, rows, axis=0) > limit
    out &= values.std(axis=0) > FACTOR * rest_std
    cells = [
        (row, channel) for channel, at in enumerate(rows.T) for row in np.sort(at[out[:, channel]])
    ]
    return np.array(cells, np.int64).reshape(-1, 2)


def _few(values: NDArray[np.float64]) -> int:
    return max(1, len(values) // MIN_ROWS_PER_OUTLIER)


def _filled(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Replaces missing values by medians; also returns the medians of the channels."""
    missing = np.isnan(values)
    median = np.nanmedian(values, axis=0) if missing.any() else np.median(values, axis=0)
    return np.where(missing, median, values), median


REPEATS = 3
"""Minimum number of repeats for a value to count as a missing-value code."""
DISTINCT = 10
"""Minimum number of other values of a channel that may have a code; states have fewer."""
MIN_STDS_FROM_MEDIAN = 30.0
"""Minimum distance of a far value from the median, in standard deviations of the others."""
FARTHEST = 100
"""Up to one value in this many, and at least one, may be far."""
APART = 5.0
"""Ratio of the distances from the median of a far value and of all others."""


def find_codes(values: NDArray[np.float64]) -> list[RepeatedValue]:
    """Finds the minimum or maximum of a channel if it repeats and is isolated.

    It is a code if at most half of the rows have it, and its distance from the next value exceeds
    the range of the others (without a hundredth at either end); or if it is the only negative
    value, is -1, -9, -99, -999, ..., and is the most frequent value. ``values`` are float64 ``[T,
    C]``; NaN marks a missing value.

    Example:
        >>> values = 20 + np.sin(np.arange(100.0))[:, None]
        >>> values[[7, 30, 31]] = -9999
        >>> [(code.value, code.rows.tolist()) for code in find_codes(values)]
        [(-9999.0, [7, 30, 31])]
    """
    codes = []
    for channel, column in enumerate(values.T):
        known = column[~np.isnan(column)]
        if not known.size:
            continue
        for value in {float(known.min()): None, float(known.max()): None}:
            is_code = column == value
            count = int(np.count_nonzero(is_code))
            if REPEATS <= count <= known.size / 2 and _stands_apart(value, count, known):
                codes.append(RepeatedValue(channel, value, np.flatnonzero(is_code)))
    return codes


def _stands_apart(value: float, count: int, known: NDArray[np.float64]) -> bool:
    others = known[known != value]
    distinct, counts = np.unique(others, return_counts=True)
    if len(distinct) < DISTINCT:
        return False
    if value < 0 <= distinct[0] and _is_code(value) and count > counts.max():
        return True
    low, high = np.quantile(others, [0.01, 0.99])
    return bool(np.abs(distinct - value).min() > high - low)


def _is_code(value: float) -> bool:
    """Whether a value is -1, -9, -99, -999, ..."""
    return value == -1 or (value.is_integer() and set(str(int(-value))) == {"9"})


def find_far(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Finds a few values that are 30 or more stds away from the median of their channel.

    At most one value in a hundred is far; the standard deviation is that of the other values, which
    are within a fifth of that distance. A channel that mostly has one value, such as rain, has
    none. ``values`` are float64 ``[T, C]``, NaN where one is missing; the result is int64 ``[N,
    2]``: row and channel of each, by channel.

    Example:
        >>> values = np.sin(np.arange(200.0))[:, None]
        >>> values[7] = 50
        >>> find_far(values).tolist()
        [[7, 0]]
    """
    cells = []
    for channel, column in enumerate(values.T):
        known = column[~np.isnan(column)]
        few = max(1, len(known) // FARTHEST)
        if len(known) < 2 + few:
            continue
        distance = np.abs(column - np.median(known))
        near = np.sort(distance[~np.isnan(distance)])[:-few]
        if near[len(near) // 2] == 0:
            continue
        limit = max(MIN_STDS_FROM_MEDIAN * np.sqrt(np.mean(near**2)), APART * near[-1])
        cells += [(row, channel) for row in np.flatnonzero(distance > limit).tolist()]
    return np.array(cells, np.int64).reshape(-1, 2)
