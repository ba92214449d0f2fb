"""By what accuracies of long sequences and images are judged: stated before the runs.

Accuracies are in per cent; a difference is paired by seed.
"""

from __future__ import annotations

from experiments.intervals import Interval
from experiments.margins import within
from experiments.verdicts import FAILS, HOLDS, OPEN, TOO_FEW, Rule, Word

STATED = "2026-11-24T15:45:00+00:00"
"""When all that stands here was stated."""

MARGIN = 2.0
"""Points: the paper calls 75.0 against 75.6 competitive, and 47.6 against 44.7 better."""

COMPARABLE = Rule(
    "Two models are comparable where the 95 % interval of the difference of their accuracies lies "
    f"within {MARGIN:g} points on either side, and not where it lies beyond: paired by seed, the "
    "mean of a data set one number, by Student's t over data sets.",
    STATED,
)
AHEAD = Rule(
    "A model is ahead of another one on a data set where the 95 % interval of the difference of "
    "their accuracies, paired by seed, by Student's t over seeds, lies above 0; it is behind where "
    "it lies below.",
    STATED,
)
FALLS = Rule(
    "Accuracy falls beyond training where, at the longest length of up to four times, it is at "
    "most 90 % of that at the lengths of training, and not where it is more than 95 %.",
    STATED,
)


def comparable(found: Interval | None) -> Word:
    """The word on two models over data sets."""
    return within(found, MARGIN, COMPARABLE)


def ahead(found: Interval | None) -> Word:
    """The word on two models on one data set."""
    if found is None:
        return Word(TOO_FEW.replace("data sets", "seeds"), AHEAD)
    if found.middle - found.half > 0:
        return Word(HOLDS, AHEAD)
    return Word(FAILS if found.middle + found.half < 0 else OPEN, AHEAD)


def falls(share: float) -> Word:
    """The word on accuracy beyond training, as a share of that within."""
    if share <= 0.9:
        return Word(HOLDS, FALLS)
    return Word(FAILS if share > 0.95 else OPEN, FALLS)
