"""Expressive vs. dot-product attention across tasks: margins by complexity, from stored runs.

The abstract of the expressive-attention paper summarizes all its figures. These claims are judged
by the runs of figures 3 to 7 with the standard setting, and are on the page of all claims.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from experiments.intervals import interval, text
from experiments.measured import Rows
from experiments.rules import above
from experiments.statements import Statement
from experiments.synthetic.learning_curves import (
    DOT_PRODUCT,
    EXPRESSIVE,
    STANDARD,
    Place,
    accuracies,
    success_rate,
)
from experiments.synthetic.rules import ABOUT, LEARNED, MAJORITY, about, finished, majority
from experiments.verdicts import FAILS, HOLDS, OPEN, Rule, Verdict, Word, combine, rows_with

RESULTS = tuple(f"synthetic/figure{n}" for n in (3, 4, 5, 6, 7))
SEARCH = "synthetic/search"

STATED = "2026-11-29T22:00:00+00:00"
MARGIN = Rule(
    "A margin is the test accuracy of a run of expressive attention minus that of the run of "
    "dot-product attention with the same seed. It is larger at one place than at another if a "
    "two-sided rank test (Mann and Whitney) of the runs says so at 5 %.",
    STATED,
)
NOT_WORSE = Rule(
    f"Expressive attention performs at least as well if the 95 % confidence interval of its "
    f"margin (by Student's t over seeds) lies above -{ABOUT:g}, and not if it lies below.",
    STATED,
)
AHEAD = Rule(
    "Expressive attention outperforms dot-product attention if the 95 % confidence interval of its "
    "margin lies above 0, and not if it lies below.",
    STATED,
)
ACCESS = Rule(
    "Dot-product attention does not reach 100 % at a place, whatever the setting, if its runs of "
    "at least two settings fail there. A place with runs of one setting decides nothing. "
    '"Complexities" are at least two places.',
    "2026-11-29T23:05:00+00:00",
)

STEPS = (
    (Place("nt-s", 16, 2, 32), Place("nt", 16, 2, 32)),
    (Place("nt", 16, 2, 64), Place("nt", 16, 2, 32)),
    (Place("nt", 16, 2, 32), Place("nt", 16, 2, 24)),
    (Place("nt", 2, 5, 32), Place("nt", 2, 5, 16)),
    (Place("nt", 16, 2, 64), Place("nt-r", 16, 2, 64)),
    (Place("nt-r", 16, 2, 128), Place("nt-r", 16, 2, 64)),
    (Place("nt-r", 16, 2, 128), Place("nt", 16, 5, 128)),
)
"""An easier place, and a harder one by the paper's words: NT-S is easier to learn, a task becomes
easier as the context grows, a rare event is hard to find, and N16T5 is the most demanding."""
MIXTURE = Place("nt+nt-s", 16, 2, 32)
PLACES = tuple(dict.fromkeys([*(place for step in STEPS for place in step), MIXTURE]))


def task_values(place: Place) -> dict[str, Any]:
    """The values that identify the task of a place in rows of any setting."""
    return {name: getattr(place, name) for name in ("rules", "base", "delay", "context")}


def find(rows: Rows, place: Place, mechanism: str) -> dict[str, Any]:
    """The runs of an attention at a place.

    Raises:
        NotMeasuredError: there are none.
    """
    own = rows_with(rows, str(place), **task_values(place), mechanism=mechanism, setting=STANDARD)
    return own[0]


def margins(rows: Rows, place: Place) -> list[float]:
    """Margins of the runs at a place, by seed; a failed run has an accuracy of 0."""
    both = (accuracies(find(rows, place, name)) for name in (EXPRESSIVE, DOT_PRODUCT))
    return [(ours or 0.0) - (other or 0.0) for ours, other in zip(*both, strict=True)]


def unless_unfinished(word: Word, rows: Rows, *places: Place) -> Word:
    """The verdict, or "not decided" if fewer runs than the paper's are still rising."""
    for place in places:
        for name in (EXPRESSIVE, DOT_PRODUCT):
            word = finished(word, [run["accuracies"] for run in find(rows, place, name)["runs"]])
    return word


def judge_growth(rows: Rows) -> Verdict:
    """The verdict on margins that grow with complexity."""
    words, texts = [], []
    for easier, harder in STEPS:
        small, large = margins(rows, easier), margins(rows, harder)
        p = float(mannwhitneyu(large, small).pvalue)
        grows = statistics.mean(large) > statistics.mean(small)
        word = Word(OPEN if p > 0.05 else HOLDS if grows else FAILS, MARGIN)
        words.append(unless_unfinished(word, rows, easier, harder))
        means = (f"{statistics.mean(each):+.2f}" for each in (small, large))
        texts.append(f"{easier} to {harder}: {' to '.join(means)} ({words[-1]})")
    return Verdict(combine(words), "; ".join(texts))


def judge_not_worse(rows: Rows) -> Verdict:
    """The verdict on "at least as well" at every place, and what the search found elsewhere."""
    words, lows, equal = [], [], 0
    for place in PLACES:
        of_place = margins(rows, place)
        equal += len({*of_place}) == 1
        words.append(above(interval(of_place), -ABOUT, NOT_WORSE))
        lows.append(statistics.mean(of_place))
    worse, settings = count_worse(rows)
    return Verdict(
        combine(words),
        f"mean margins of {min(lows):+.2f} to {max(lows):+.2f} at {len(lows)} places of one "
        f"setting; at {equal} of them all runs have the same margin, so the interval has no width "
        f"and decides nothing; in the search (two seeds), expressive attention is more than "
        f"{ABOUT:g} behind in {worse} of {settings} combinations of setting, context and rate",
    )


def count_worse(rows: Rows) -> tuple[int, int]:
    """In how many cells of the search expressive attention is behind, and of how many."""
    means: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in (row for row in rows if row["results"] == SEARCH):
        names = ("context", "readout", "projections", "init_scale")
        for rate in {run["learning_rate"] for run in row["runs"]}:
            own = [r["test_accuracy"] or 0.0 for r in row["runs"] if r["learning_rate"] == rate]
            cell = (*(row[name] for name in names), rate)
            means.setdefault(cell, {})[row["mechanism"]] = statistics.mean(own)
    both = [of for of in means.values() if {EXPRESSIVE, DOT_PRODUCT} <= of.keys()]
    return sum(of[EXPRESSIVE] < of[DOT_PRODUCT] - ABOUT for of in both), len(both)


def judge_mixture(rows: Rows) -> Verdict:
    """The verdict on "it outperforms in the multi-task setting, too"."""
    margin = interval(margins(rows, MIXTURE))
    return Verdict(above(margin, 0, AHEAD), f"margin {text(margin, 2)}")


def judge_access(rows: Rows) -> Verdict:
    """The verdict on "100 % at complexities that dot-product attention does not reach"."""
    texts, num_places = [], 0
    for place in PLACES:
        if majority(success_rate(find(rows, place, EXPRESSIVE)), LEARNED) != HOLDS:
            continue
        settings = rows_with(rows, str(place), **task_values(place), mechanism=DOT_PRODUCT)
        if all(majority(success_rate(row), LEARNED) == FAILS for row in settings):
            count = len(settings)
            num_places += count > 1
            texts.append(f"{place} (dot-product attention in {count} setting{'s' * (count > 1)})")
    word = HOLDS if num_places > 1 else OPEN if texts else FAILS
    return Verdict(Word(word, LEARNED, MAJORITY, ACCESS), "; ".join(texts) or "no place")


def judge_fall(rows: Rows) -> Verdict:
    """The verdict on the plateau of N16T2, which falls from 0.55 to 0.34 in the mixture."""
    alone = find(rows, Place("nt", 16, 2, MIXTURE.context), DOT_PRODUCT)
    mixed = find(rows, MIXTURE, DOT_PRODUCT)["runs"]
    before = float(np.median([a or 0.0 for a in accuracies(alone)]))
    after = float(np.median([run["alone"]["nt"]["test_accuracy"] or 0.0 for run in mixed]))
    fall = before - after
    return Verdict(
        about(fall, 0.55 - 0.34),
        f"the median falls by {fall:.3f}, from {before:.3f} to {after:.3f}",
    )


def _statement(
    where: str, says: str, judge: Callable[[Rows], Verdict], results: tuple[str, ...] = RESULTS
) -> Statement:
    where = f"Expressive attention, {where}"
    return Statement(where, says, judge, results=results, stated=STATED)


STATEMENTS = (
    _statement("abstract", "margins grow with task complexity", judge_growth),
    _statement(
        "abstract and discussion",
        "expressive attention performs at least as well as dot-product attention",
        judge_not_worse,
        (*RESULTS, SEARCH),
    ),
    _statement(
        "abstract",
        "expressive attention is ahead in the multi-task setting, too (the paper: with increasing "
        "margins; here one mixture)",
        judge_mixture,
        ("synthetic/figure6",),
    ),
    _statement(
        "abstract",
        "expressive attention reaches 100 % at complexities that dot-product attention does not "
        "reach, whatever the setting",
        judge_access,
    ),
    _statement(
        "figure 6",
        "N16T2 falls from 0.55 to 0.34 in the mixture",
        judge_fall,
        ("synthetic/figure3", "synthetic/figure6"),
    ),
)
