"""Rules by which offline-RL runs are judged, stated before the runs that test them.

Returns of different robots have different units, so they are compared as D4RL's normalized scores:
0 is the return of random actions, and 100 that of an expert.
"""

from __future__ import annotations

from experiments.intervals import Interval
from experiments.margins import within
from experiments.rules import above
from experiments.verdicts import FAILS, HOLDS, REVISED, Rule, Word

STATED = "2026-11-24T11:50:00+00:00"
"""When all that stands here was stated."""

MARGIN = 5.0
"""Points: the paper prints deviations over seeds from 0.5 to 15, with a median of 5.8, for what it
calls competitive."""

COMPARABLE = Rule(
    "Two configurations are comparable if the 95 % confidence interval of the difference of "
    f"their scores lies within {MARGIN:g} points on either side of 0, and one is worse if it "
    "lies outside: paired by seed, one mean per data set, by Student's t over data sets.",
    STATED,
)
AHEAD = Rule(
    "A model is better than another if the 95 % confidence interval of the difference of their "
    "scores (paired by seed, one mean per data set, by Student's t over data sets) lies above 0, "
    "and worse if it lies below.",
    STATED,
)
CLUSTERED = Rule(
    "Data sets of one robot are not independent (medium-expert contains medium). Therefore "
    "intervals are over robots, not data sets; each robot counts with the mean of its data sets.",
    REVISED,
)
FOLLOWS = Rule(
    "A model follows its target return if, over the targets up to the best return in the data, "
    "the rank correlation of target and achieved return is at least 0.8 on a data set.",
    STATED,
)


def comparable(difference: Interval | None) -> Word:
    """The word on two ways, by the interval of their differences."""
    return within(difference, MARGIN, COMPARABLE).under(CLUSTERED)


def ahead(difference: Interval | None) -> Word:
    """The word on whether a model's scores are above a baseline's."""
    return above(difference, 0, AHEAD, over="robots").under(CLUSTERED)


def follows(correlation: float) -> Word:
    """The word on achieved returns of one run, given the target returns."""
    return Word(HOLDS if correlation >= 0.8 else FAILS, FOLLOWS)
