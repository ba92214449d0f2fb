"""Means, confidence intervals and verdicts from the numbers of a few seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from scipy import stats

VERDICTS = BETTER, WORSE, UNDECIDED = "better", "worse", "not distinguishable"
COMPARABLE = "comparable"

FEWEST = 3
"""Numbers that an interval takes: that of two is nearly thirteen times as wide as they differ."""


class Interval(NamedTuple):
    """A mean, and half its 95 % interval."""

    middle: float
    half: float

    def __neg__(self) -> Interval:
        return Interval(-self.middle, self.half)

    @property
    def decides(self) -> bool:
        """Whether it has a width; equal numbers, as accuracies may be, have none."""
        return self.half > 1e-9 * max(1.0, abs(self.middle))


def spread(numbers: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation; of one number no deviation."""
    return statistics.mean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None


def mean_text(numbers: Sequence[float], digits: int) -> str:
    """Mean and standard deviation for a table; "-" of no numbers."""
    if not numbers:
        return "-"
    return spread_text(*spread(numbers), digits)


def spread_text(mean: float, std: float | None, digits: int) -> str:
    """A mean, and its standard deviation where there is one, for a table."""
    return f"{mean:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def paired_differences(ours: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """``ours`` minus ``other`` for each seed that both have, in the order of the seeds."""
    return [ours[seed] - other[seed] for seed in sorted(ours.keys() & other.keys())]


def interval(numbers: Sequence[float]) -> Interval | None:
    """That of the mean by Student's t; None for fewer than ``FEWEST`` numbers."""
    if len(numbers) < FEWEST:
        return None
    quantile = float(stats.t.ppf(0.975, len(numbers) - 1))
    half = quantile * statistics.stdev(numbers) / math.sqrt(len(numbers))
    return Interval(statistics.mean(numbers), half)


def over_sets(
    differences: Mapping[str, Sequence[float]], cluster: Callable[[str], str] = str
) -> Interval | None:
    """The interval over data sets, of each the mean over its seeds; None for too few of them.

    Args:
        differences: by data set.
        cluster: what a data set shares with others, which then count as one; default nothing.
    """
    means = {name: statistics.mean(of_set) for name, of_set in differences.items() if of_set}
    return interval(list(by_cluster(means, cluster).values()))


def by_cluster(values: Mapping[str, float], cluster: Callable[[str], str]) -> dict[str, float]:
    """The mean of each cluster's numbers.

    Args:
        values: a number for each name.
        cluster: of a name.
    """
    of_clusters: dict[str, list[float]] = {}
    for name, value in values.items():
        of_clusters.setdefault(cluster(name), []).append(value)
    return {name: statistics.mean(of_one) for name, of_one in of_clusters.items()}


def text(interval: Interval | None, digits: int) -> str:
    """An interval for a table; "-" where there is none."""
    if interval is None:
        return "-"
    return f"{interval.middle:+.{digits}f} ± {interval.half:.{digits}f}"


def judge(difference: Interval, margin: float, *, larger_is_better: bool) -> list[str]:
    """What a difference says: one of VERDICTS, and perhaps COMPARABLE."""
    middle, half = difference
    if not difference.decides:
        return [UNDECIDED]
    verdict = BETTER if (middle > 0) == larger_is_better else WORSE
    verdicts = [verdict if abs(middle) > half else UNDECIDED]
    return verdicts + [COMPARABLE] * (abs(middle) + half <= margin)
