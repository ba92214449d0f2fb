"""Values that may not be measurements: those that stand for a missing one, and far ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

REPEATS = 3
"""So often a value stands that is no chance."""
DISTINCT = 10
"""So many other values a channel has at least; of fewer, such as states, none stands apart."""
DEVIATIONS = 30.0
"""So far a value lies from the median of its channel, in deviations of all but the farthest."""
FARTHEST = 100
"""One value of so many, and at least one, may be far; and it lies ``APART`` times as far as the
others."""
APART = 5.0


class Code(NamedTuple):
    """A value that may stand for a missing one.

    Attributes:
        channel: where.
        value: which one.
        rows: where it stands, int64.
    """

    channel: int
    value: float
    rows: NDArray[np.int64]


def find_codes(values: NDArray[np.float64]) -> list[Code]:
    """Finds the lowest or highest value of a channel where it repeats and stands apart.

    It is told, if it is that of at most half of the rows, by its distance from the next value,
    which is larger than the range of the others (but for their hundredth at either end); or as the
    only negative one, if it is -1, -9, -99, -999, ... and the most frequent of all.

    Args:
        values: float64 ``[T, C]``; NaN marks a missing value.

    Example:
        >>> values = 20 + np.sin(np.arange(100.0))[:, None]
        >>> values[[7, 30, 31]] = -9999
        >>> [(code.value, code.rows.tolist()) for code in find_codes(values)]
        [(-9999.0, [7, 30, 31])]
    """
    found = []
    for channel, column in enumerate(values.T):
        known = column[~np.isnan(column)]
        if not known.size:
            continue
        for value in {float(known.min()): None, float(known.max()): None}:
            is_code = column == value
            count = int(np.count_nonzero(is_code))
            if REPEATS <= count <= known.size / 2 and _stands_apart(value, count, known):
                found.append(Code(channel, value, np.flatnonzero(is_code)))
    return found


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
    """Finds a few values that lie 30 deviations or more from the median of their channel.

    They are at most one in a hundred, and the deviation is that of the others, which lie within a
    fifth of that distance. A channel that mostly has one value, such as rain, has none.

    Args:
        values: float64 ``[T, C]``; NaN marks a missing value.

    Returns:
        int64 ``[N, 2]``: row and channel of each, by channel.

    Example:
        >>> values = np.sin(np.arange(200.0))[:, None]
        >>> values[7] = 50
        >>> find_far(values).tolist()
        [[7, 0]]
    """
    found = []
    for channel, column in enumerate(values.T):
        known = column[~np.isnan(column)]
        few = max(1, len(known) // FARTHEST)
        if len(known) < 2 + few:
            continue
        distance = np.abs(column - np.median(known))
        near = np.sort(distance[~np.isnan(distance)])[:-few]
        if near[len(near) // 2] == 0:
            continue
        limit = max(DEVIATIONS * np.sqrt(np.mean(near**2)), APART * near[-1])
        found += [(row, channel) for row in np.flatnonzero(distance > limit).tolist()]
    return np.array(found, np.int64).reshape(-1, 2)
