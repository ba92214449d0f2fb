"""The length at which one measured curve crosses another."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.rules import Range
from experiments.verdicts import NotMeasuredError

Curves = Sequence[tuple[float, float, float]]
"""A length and two quantities, by ascending length."""


def crossing(points: Curves) -> Range:
    """The length from which the second of two quantities is the smaller one, for good.

    It lies on straight lines through the logarithms. Beyond what was measured it has only a bound:
    from 0 to the shortest length, or from the longest on; the middle is the bound.

    Raises:
        NotMeasuredError: there is no point.
    """
    if not points:
        raise NotMeasuredError("no length was measured")
    x = [math.log(length) for length, _, _ in points]
    y = [math.log(first / second) for _, first, second in points]
    if y[-1] < 0:
        return Range(points[-1][0], points[-1][0], math.inf)
    for i in reversed(range(len(x) - 1)):
        if y[i] < 0:
            fraction = -y[i] / (y[i + 1] - y[i])
            return Range.exact(math.exp(x[i] + fraction * (x[i + 1] - x[i])))
    return Range(points[0][0], 0.0, points[0][0])


def spread_crossing(points: Sequence[tuple[float, Range, Range]]) -> Range:
    """The same between the ends of the spreads: where it lies at the earliest and the latest."""
    first = crossing([(n, slow.high, fast.low) for n, slow, fast in points])
    last = crossing([(n, slow.low, fast.high) for n, slow, fast in points])
    middle = crossing([(n, slow.middle, fast.middle) for n, slow, fast in points]).middle
    return Range(middle, first.low, last.high)


def crossing_text(point: Range) -> str:
    """Formats a crossing for a table."""
    side = "above " if point.high > point.middle else "below " if point.low < point.middle else ""
    return f"{side}{point.middle:,.0f}"


def where(points: Curves) -> str:
    """A crossing for a table, if anything was measured."""
    return crossing_text(crossing(points)) if points else "not measured"
