"""Rules by which event-forecasting runs are judged, stated before the runs that test them.

A likelihood of times depends on their unit, and so does its mean; the difference of two does not.
Models are therefore compared by differences, in nats per event. A relative gap is required only for
synthetic processes, whose unit of time is fixed.
"""

from __future__ import annotations

from experiments.intervals import Interval
from experiments.margins import within
from experiments.rules import above
from experiments.verdicts import FAILS, HOLDS, Rule, Word

STATED = "2026-11-24T08:45:00+00:00"
"""When all that stands here was stated."""

MARGIN = 0.05
"""Of the NLL an event, in natural logarithms: the paper prints deviations over seeds from 0.02
(StackOverflow) to 0.15 (Uber) for what it calls comparable."""

MAX_RELATIVE_GAP = 0.02

COMPARABLE = Rule(
    "Two models are comparable if the 95 % confidence interval of the difference of their NLL "
    f"per event lies within {MARGIN:g} on either side of 0, and one is worse if it lies outside: "
    "paired by seed, one mean per data set, by Student's t over data sets.",
    STATED,
)
LAGS = Rule(
    "A mechanism lags behind another in event forecasting if the 95 % confidence interval of its "
    f"NLL per event minus the other's lies above {MARGIN:g}, and does not if it lies below: paired "
    "by seed, one mean per data set, by Student's t over data sets.",
    "2026-11-30T12:40:00+00:00",
)
NEAR_TRUE = Rule(
    "A model has recovered a process if its NLL per event, on the same test events, is within "
    f"{100 * MAX_RELATIVE_GAP:g} % of the NLL of the process itself.",
    STATED,
)


def comparable(difference: Interval | None) -> Word:
    """The word on two models, by the interval of their differences."""
    return within(difference, MARGIN, COMPARABLE)


def lags(difference: Interval | None) -> Word:
    """The word on whether a model is worse than another, by the interval of their differences."""
    return above(difference, MARGIN, LAGS, over="data sets")


def near_true(ours: float, true: float) -> Word:
    """The word on a likelihood, against that of the process."""
    return Word(HOLDS if abs(ours - true) <= MAX_RELATIVE_GAP * abs(true) else FAILS, NEAR_TRUE)
