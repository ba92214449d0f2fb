"""Rules by which ratios and exponents are judged, stated before the rows that test them.

Each limit has a stated reason and is never adjusted to a result. Rows that are older than a rule
(``Rule.stated``) do not test it: pages list them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.intervals import Interval
from experiments.verdicts import (
    FAILS,
    HOLDS,
    OPEN,
    REVISED,
    TOO_FEW,
    NotMeasuredError,
    Rule,
    Word,
    combine,
)
from flax_linattn.bench.report import number

STATED = "2026-11-23T17:36:00+00:00"
"""When all that stands here was stated; what is stated later gets a time of its own."""

TIE = 1.5
"""Times that differ by less may be of the same program: on a machine that others use too, the
medians of the same program differ as much from hour to hour, so that less repeats by chance."""

EQUAL = 1.1
"""Up to a tenth more is no more. It is as near as medians of programs that run in turns come, and
stands well below ``TIE``, so that doubt speaks for neither side. A whole number of sequences in a
budget, which is found to a few percent, is no better known."""

SAME_BYTES = 1.05
"""Memory is counted, not measured, and would need no margin but for what the compiler rounds up
and lays out differently as shapes change: a few percent."""

POWER = 0.25
"""An exponent is that of a whole power within the middle half of the way to the next one."""

REACH = 4
"""An exponent is taken from the longest N down to this factor less, of times and memory alike:
two doublings, so that three lengths share in it, and no more, as what does not grow weighs more
the shorter N is."""

TIMES = Rule(
    f"A time is longer if it is at least {TIE:g} times the other and outside the spread (min to "
    f"max) of both. It is not longer up to {EQUAL:g} times, if it stays below {TIE:g} times at "
    "the ends of the spread. Anything between is not decided.",
    STATED,
)
BYTES = Rule(
    f"Memory is larger above {SAME_BYTES:g} times the other, and not larger up to that.", STATED
)
COUNTS = Rule(
    f"A batch is larger above {EQUAL:g} times the other, and not larger up to that.", STATED
)
GROWTH = Rule(
    f"A quantity grows as N^p if the slope of its logarithm over the last factor of {REACH} in N "
    f"is within {POWER:g} of p. It does not if the slope is {1 - POWER:g} or more away.",
    STATED,
)
EXPONENTIAL = Rule(
    "Exponential growth multiplies by the same factor for every equal step in N. It is judged by "
    "its extrapolation from the two previous lengths to the longest N, divided by the measured "
    "value.",
    STATED,
)
SLOWER_GROWTH = Rule(f"Exponents that differ by up to {POWER:g} count as equal.", STATED)
BOUNDS = Rule(
    "A crossing beyond the measured lengths is bounded by the longest one, and counts if that "
    "bound is enough to decide.",
    STATED,
)

ONE_SOURCE = Rule(
    "ETTh2 and ETTm2 are measurements of one electricity transformer at two sampling rates. "
    "Intervals over series count them as one series, with the mean of both.",
    REVISED,
)


def source(row: str) -> str:
    """The series or data set as which a row counts in intervals over them.

    Args:
        row: the name of a series, or of a row that begins with it and a comma.
    """
    return row.partition(", ")[0].replace("ETTm2", "ETTh2")


Points = Sequence[tuple[float, float]]
"""A length and a quantity, by ascending length."""


class Range(NamedTuple):
    """A quantity, and between what it lies; one without a spread lies where it is."""

    middle: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Range:
        """A range without a width, of what is counted or has no known spread."""
        return cls(value, value, value)

    @classmethod
    def of(cls, spread: Mapping[str, float]) -> Range:
        """The range of a result of ``bench.spread``."""
        return cls(spread["median"], spread["min"], spread["max"])

    def over(self, other: Range) -> Range:
        """The ratio to another, at the worst and the best."""
        pairs = zip(self, (other.middle, other.high, other.low), strict=True)
        return Range(*(a / b if b else math.inf for a, b in pairs))

    def per(self, count: float) -> Range:
        """The quantity divided by a count."""
        return self.over(Range.exact(count))

    def text(self) -> str:
        """Formats the range as ``middle (low - high)``."""
        return f"{number(self.middle)} ({number(self.low)} - {number(self.high)})"


ONE = Range.exact(1.0)
Ratios = Iterable[Range | float]


def more(ratios: Ratios) -> Word:
    """The word of "one takes more time than the other", by their ratios in all cases."""
    return combine(Word(_more(_range(ratio)), TIMES) for ratio in ratios)


def no_more(ratios: Ratios) -> Word:
    """The word of "one takes no more time than the other": of the contrary."""
    return combine(Word(_NOT[_more(_range(ratio))], TIMES) for ratio in ratios)


def same(ratios: Ratios) -> Word:
    """The word of "their times hardly differ": neither is more than the other."""
    return combine(Word(_same(_range(ratio)), TIMES) for ratio in ratios)


def _range(ratio: Range | float) -> Range:
    return ratio if isinstance(ratio, Range) else Range.exact(ratio)


def _more(ratio: Range) -> str:
    if ratio.middle >= TIE and ratio.low > 1:
        return HOLDS
    return FAILS if ratio.middle <= EQUAL and ratio.high < TIE else OPEN


def _same(ratio: Range) -> str:
    ways = {_more(ratio), _more(ONE.over(ratio))}
    return FAILS if HOLDS in ways else OPEN if OPEN in ways else HOLDS


_NOT = {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}


def more_bytes(ratios: Iterable[float]) -> Word:
    """The word of "one needs more memory": as much is not more."""
    return combine(Word(HOLDS if ratio > SAME_BYTES else FAILS, BYTES) for ratio in ratios)


def no_more_bytes(ratios: Iterable[float]) -> Word:
    """The word of "one needs no more memory"."""
    return combine(Word(FAILS if ratio > SAME_BYTES else HOLDS, BYTES) for ratio in ratios)


def more_counts(ratios: Iterable[float]) -> Word:
    """The word of "one takes more tokens a step", whose batches are whole numbers."""
    return combine(Word(HOLDS if ratio > EQUAL else FAILS, COUNTS) for ratio in ratios)


def no_more_counts(ratios: Iterable[float]) -> Word:
    """The word of "one takes no more tokens a step"."""
    return combine(Word(FAILS if ratio > EQUAL else HOLDS, COUNTS) for ratio in ratios)


def within(quantity: Range, low: float, high: float, *rules: Rule) -> Word:
    """The word of "it lies between these"."""
    if low <= quantity.low and quantity.high <= high:
        return Word(HOLDS, *rules)
    return Word(FAILS if quantity.high < low or quantity.low > high else OPEN, *rules)


def exponent(points: Points) -> float:
    """p of N**p for large N: the slope of the logarithms, by least squares.

    Raises:
        NotMeasuredError: there are fewer than two lengths within ``REACH`` of the longest.
    """
    longest = max((n for n, _ in points), default=0.0)
    far = [point for point in points if point[0] * REACH >= longest]
    if len(far) < 2:
        raise NotMeasuredError("only one length was measured")
    n, values = zip(*far, strict=True)
    return float(np.polyfit(np.log(n), np.log(values), 1)[0])


def grows(points: Points, power: float) -> Word:
    """The word of "it grows as N**power"; half way to another power it is not decided."""
    away = abs(exponent(points) - power)
    return Word(HOLDS if away <= POWER else FAILS if away >= 1 - POWER else OPEN, GROWTH)


def grows_less(power: float, others: Iterable[float]) -> Word:
    """The word of "its exponent is less than that of any other"."""
    ahead = min(others) - power
    return Word(HOLDS if ahead > POWER else FAILS if ahead < -POWER else OPEN, SLOWER_GROWTH)


def exponential_excess(points: Points) -> float:
    """How many times an exponential growth would be more than what the longest length has.

    Raises:
        NotMeasuredError: there are fewer than three lengths.
    """
    if len(points) < 3:
        raise NotMeasuredError("fewer than three lengths were measured")
    (n, y), (m, z), (longest, last) = points[-3:]
    return float((z / y) ** ((longest - m) / (m - n)) * z / last)


def at(points: Points, length: float) -> float:
    """The quantity at a length, on straight lines through the logarithms.

    Raises:
        NotMeasuredError: it lies outside of what was measured.
    """
    if not points or not points[0][0] <= length <= points[-1][0]:
        raise NotMeasuredError(f"nothing was measured around {length:,}")
    n, values = zip(*points, strict=True)
    return float(np.exp(np.interp(np.log(length), np.log(n), np.log(values))))


def span(values: Ratios) -> str:
    """Formats the smallest and the largest value, or the only one.

    Raises:
        NotMeasuredError: there is none.
    """
    middles = [_range(value).middle for value in values]
    if not middles:
        raise NotMeasuredError("no case was measured")
    return " to ".join(dict.fromkeys(number(value) for value in (min(middles), max(middles))))


def above(difference: Interval | None, bound: float, rule: Rule, *, over: str = "seeds") -> Word:
    """The word on whether a mean lies above a bound, as all of its interval does.

    Args:
        difference: the interval; None where there are too few numbers.
        bound: what it is to be above.
        rule: that says so.
        over: what the numbers are of.
    """
    if difference is None:
        return Word(TOO_FEW.replace("data sets", over), rule)
    if not difference.decides:
        return Word(OPEN, rule)
    if difference.middle - difference.half > bound:
        return Word(HOLDS, rule)
    return Word(FAILS if difference.middle + difference.half < bound else OPEN, rule)


def below(difference: Interval | None, bound: float, rule: Rule, *, over: str = "seeds") -> Word:
    """The word on whether a mean lies below a bound; arguments as of ``above``."""
    return above(None if difference is None else -difference, -bound, rule, over=over)
