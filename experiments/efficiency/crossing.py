"""Where one measured curve crosses another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def crossing(lengths: Sequence[float], ratios: Sequence[float]) -> float | None:
    """The length at which a ratio becomes 1: on straight lines through the logarithms.

    Args:
        lengths: ascending.
        ratios: at each; the last time that they rise from below 1 counts.

    Returns:
        None if they do not, within what was measured.
    """
    x, y = np.log(lengths), np.log(ratios)
    for i in reversed(range(len(x) - 1)):
        if y[i] < 0 <= y[i + 1]:
            share = -y[i] / (y[i + 1] - y[i])
            return float(np.exp(x[i] + share * (x[i + 1] - x[i])))
    return None


def where(points: Sequence[tuple[float, float, float]]) -> str:
    """For a table, the length from which the second of two quantities is the smaller one.

    Args:
        points: (length, first, second), by ascending length.
    """
    lengths = [length for length, _, _ in points]
    ratios = [first / second for _, first, second in points]
    length = crossing(lengths, ratios) if points else None
    if length is not None:
        return f"{length:,.0f}"
    if not points:
        return "not measured"
    return f"below {lengths[0]:,}" if ratios[0] >= 1 else f"above {lengths[-1]:,}"
