"""Rules by which accuracies of long sequences and images are judged, stated before the runs.

Accuracies are in percent; differences are paired by seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from experiments.intervals import FEWEST, Interval
from experiments.rules import above
from experiments.verdicts import (
    CLAIMED_SIZE,
    FAILS,
    HOLDS,
    OPEN,
    REVISED,
    SMALLER,
    TOO_FEW,
    Rule,
    Word,
    against_size,
)

STATED = "2026-11-24T16:45:00+00:00"
"""When all that stands here was stated, unless it says otherwise: before the runs that it judges,
but after trials of TaylorShift and softmax, a seed each, by which sizes and recipe were chosen."""

MARGIN = 2.0
"""Points: the paper calls 75.0 against 75.6 competitive, and 47.6 against 44.7 better."""

COMPETITIVE = Rule(
    "A model is competitive if the 95 % confidence interval of the difference between its "
    f"accuracy and the other's lies above -{MARGIN:g} points, and not if it lies below: paired "
    "by seed, one mean per data set, by Student's t over data sets.",
    STATED,
)
AHEAD = Rule(
    "A model is better than another on a data set if the 95 % confidence interval of the "
    "difference of their accuracies (paired by seed, by Student's t over seeds) lies above 0, "
    "and worse if it lies below. All seeds share the same test examples, about 2,500 per data "
    "set; the interval does not cover their choice, which adds about 0.01 of accuracy. A failed "
    "run counts as zero accuracy.",
    STATED,
)
MAJORITY = Rule(
    "A model is better on most data sets if it is better on all but at most one, and not if it "
    "is worse on two or more.",
    STATED,
)
LEARNED_POINTS = 1.0
"""Points: a hundredth is the standard error of an accuracy of a half over 2,500 examples."""

LEARNED = Rule(
    f"A model has learned a data set if its mean accuracy is more than {LEARNED_POINTS:g} point "
    "above that of the constant answer. A comparison of two models leaves out a data set that "
    "neither has learned.",
    REVISED,
)
NOT_CONVERGED = Rule(
    f"A model fails to converge on a data set if it is at most {LEARNED_POINTS:g} point above the "
    f"constant answer, and does not if it is more than {LEARNED_POINTS:g} point above the best "
    "simple method. Anything between is not decided.",
    "2026-11-29T23:05:00+00:00",
)
FALLS = Rule(
    "Accuracy falls beyond the training lengths if, at the longest length (up to four times), it "
    "is at most 90 % of that at the training lengths, and not if it is more than 95 %.",
    STATED,
)


CENTERED = Rule(
    "Products are about centered around 0 if their mean is within a quarter of their standard "
    "deviation, and not if it is more than a half of it away.",
    "2026-11-24T16:25:00+00:00",
)


def competitive(difference: Interval | None) -> Word:
    """The word on a model against another one, over data sets."""
    return above(difference, -MARGIN, COMPETITIVE, over="data sets")


def on_majority(words: Sequence[Word]) -> Word:
    """The word on a model against another one over most data sets, from each set's word.

    Fewer than ``FEWEST`` data sets decide nothing: "all but one" of two is one.
    """
    if len(words) < FEWEST:
        return Word(TOO_FEW, MAJORITY, AHEAD)
    if words.count(HOLDS) >= len(words) - 1:
        return Word(HOLDS, MAJORITY, AHEAD)
    smaller = words.count(SMALLER) + words.count(FAILS) >= 2
    word = FAILS if words.count(FAILS) >= 2 else SMALLER if smaller else OPEN
    return Word(word, MAJORITY, AHEAD, *[CLAIMED_SIZE] * (word == SMALLER))


def ahead(difference: Interval | None, claimed: float | None = None) -> Word:
    """The word on two models on one data set, by how much the paper has one ahead, if it is."""
    word = above(difference, 0, AHEAD)
    if difference is None:
        return word
    return against_size(word, difference.middle + difference.half, claimed)


def has_learned(accuracies: Iterable[float], constant: float) -> bool:
    """Whether a model, by its accuracies over seeds, learned anything of a data set."""
    return statistics.mean(accuracies) > constant + LEARNED_POINTS


DECLINES = Rule(
    "Accuracy declines within the training lengths if the 95 % confidence interval of the accuracy "
    "at the longest training length minus that at the shortest (paired by seed, by Student's t "
    "over seeds) lies below 0. It does not if the interval lies above 0. Lengths between are not "
    "judged.",
    "2026-11-30T12:40:00+00:00",
)


def falls(fraction: float) -> Word:
    """The word on accuracy beyond the lengths of training, as a fraction of that within."""
    if fraction <= 0.9:
        return Word(HOLDS, FALLS)
    return Word(FAILS if fraction > 0.95 else OPEN, FALLS)


STATED_LONGER = "2026-11-24T16:20:00+00:00"
"""Before the longest sequences were sought, but after bytes of a few steps of 2,048 and 8,192
tokens were seen."""
STATED_NORMALIZATION = "2026-11-24T16:32:00+00:00"
"""Before the runs of table 4, but after trials of a plain efficient form as coded."""

LONGER = Rule(
    "A model trains on longer sequences in the same memory if its longest sequence that fits is "
    "at least 1.1 times as long, and not if it is at most as long; each length is known to 5 %.",
    STATED_LONGER,
)


def longer(ratio: float) -> Word:
    """The word on the longest sequences of two, as a ratio."""
    if ratio >= 1.1:
        return Word(HOLDS, LONGER)
    return Word(FAILS if ratio <= 1.0 else OPEN, LONGER)


def centered(mean: float, std: float) -> Word:
    """The word on a distribution."""
    away = abs(mean) / std
    return Word(HOLDS if away <= 0.25 else FAILS if away > 0.5 else OPEN, CENTERED)


ACCEPTABLE = Rule(
    "A model is acceptable compared with another if the 95 % confidence interval of the "
    "difference of their accuracies (paired by seed, by Student's t over seeds) lies above "
    f"-{MARGIN:g} points, and not if it lies below.",
    STATED_NORMALIZATION,
)
CONVERGES = Rule(
    "A training run converges if it is updated up to its last steps and the mean loss of its "
    "last fifth is below that of its first. It fails if updates stop because losses or gradients "
    "are not finite. Otherwise it is not decided.",
    STATED_NORMALIZATION,
)
OVERFLOWS = Rule(
    "Products overflow if the largest, computed exactly, exceeds 65,504, the float16 maximum.",
    STATED_NORMALIZATION,
)


def acceptable(difference: Interval | None) -> Word:
    """The word on a model against a better one."""
    return above(difference, -MARGIN, ACCEPTABLE)


def converges(losses: tuple[float, float] | None) -> Word:
    """The word on a training by its first and its last losses; None where updates ended."""
    if losses is None:
        return Word(FAILS, CONVERGES)
    return Word(HOLDS if losses[1] < losses[0] else OPEN, CONVERGES)


def overflows(max_product: float) -> Word:
    """The word on the largest product."""
    return Word(HOLDS if max_product > 65504 else FAILS, OVERFLOWS)
