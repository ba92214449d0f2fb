"""By what runs on decisions are judged: stated before the runs that test it.

Returns of robots have units of their own, so that they are compared as D4RL's normalised scores:
points of which 100 are the return of an expert and 0 that of random actions.
"""

from __future__ import annotations

from experiments.intervals import Interval
from experiments.margins import within
from experiments.verdicts import FAILS, HOLDS, OPEN, TOO_FEW, Rule, Word

STATED = "2026-11-24T11:50:00+00:00"
"""When all that stands here was stated."""

MARGIN = 5.0
"""Points: the paper prints deviations over seeds from 0.5 to 15, with a median of 5.8, for what it
calls competitive."""

COMPARABLE = Rule(
    "Two ways are comparable where the 95 % interval of the difference of their scores lies within "
    f"{MARGIN:g} points on either side, and one is worse where it lies beyond: paired by seed, the "
    "mean of a data set one number, by Student's t over data sets.",
    STATED,
)
AHEAD = Rule(
    "A model is ahead of another one where the 95 % interval of the difference of their scores, "
    "paired by seed, the mean of a data set one number, by Student's t over data sets, lies above "
    "0; it is behind where it lies below.",
    STATED,
)
FOLLOWS = Rule(
    "A model does what it is asked for where, over the returns that were asked for up to the best "
    "one of the data, the rank correlation of asked and returned is at least 0.8 on a data set.",
    STATED,
)


def comparable(difference: Interval | None) -> Word:
    """The word on two ways, by the interval of their differences."""
    return within(difference, MARGIN, COMPARABLE)


def ahead(difference: Interval | None) -> Word:
    """The word on whether a model's scores are above a baseline's."""
    if difference is None:
        return Word(TOO_FEW, AHEAD)
    if difference.middle - difference.half > 0:
        return Word(HOLDS, AHEAD)
    return Word(FAILS if difference.middle + difference.half < 0 else OPEN, AHEAD)


def follows(correlation: float) -> Word:
    """The word on achieved returns, given the target returns."""
    return Word(HOLDS if correlation >= 0.8 else FAILS, FOLLOWS)
