"""Rules by which runs on symbols are judged, stated before the runs that test them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy.stats import binomtest

from experiments.verdicts import FAILS, HOLDS, OPEN, REVISED, Rule, Word

STATED = "2026-11-23T23:25:00+00:00"
"""When all that stands here was stated."""

RIGHT = 0.999
"""The paper's 100 % is printed without decimals, and 98.8 % is not it: a tenth of a percent lies
between, and is known to a third of that from 25,600 guesses."""

ABOUT = 0.05
"""The paper's plateaus are read off figures, "about" 0.55 and 0.2."""

LEARNED = Rule(
    f"A run reaches 100 % if at least {RIGHT:g} of its test predictions are correct.", STATED
)
MAJORITY = Rule(
    "Runs of a configuration count as succeeding if the exact 95 % confidence interval "
    "(Clopper-Pearson) of their success rate lies above one half, and as failing if it lies "
    "below.",
    STATED,
)
PLATEAU = Rule(
    f"A plateau matches the paper if the median run is within {ABOUT:g} of the published value.",
    STATED,
)


NEAR = Rule(
    "An accuracy that the paper prints above 0.98 is matched if the error rate of the median run "
    "is at most twice the paper's.",
    "2026-11-24T03:25:00+00:00",
)


PAPER_RUNS = 16
RISE = 0.02
"""More than chance: a fifth of a run has at least five validations, of 1,600 guesses each."""

UNFINISHED = Rule(
    f"A claim about the paper's {PAPER_RUNS} runs is not decided by fewer runs if any of them is "
    "unfinished. A run is unfinished if its mean validation accuracy over the last fifth of its "
    f"epochs is more than {RISE:g} above that over the fifth before.",
    REVISED,
)


def finished(word: Word, accuracies: Sequence[Sequence[float | None]]) -> Word:
    """The word, or that the runs by whose validation accuracies it was given are unfinished."""
    if len(accuracies) >= PAPER_RUNS or not any(map(rises, accuracies)):
        return word
    return Word(f"{OPEN}, unfinished runs", *word.rules, UNFINISHED)


def rises(accuracies: Sequence[float | None]) -> bool:
    """Whether accuracy still rises over the last fifth of the validations."""
    numbers = [accuracy or 0.0 for accuracy in accuracies]
    fifth = len(numbers) // 5
    if not fifth:
        return False
    last, before = numbers[-fifth:], numbers[-2 * fifth : -fifth]
    return statistics.mean(last) - statistics.mean(before) > RISE


class SuccessRate(NamedTuple):
    """How many of some runs did something, and the 95 % interval of that fraction."""

    did: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of Clopper and Pearson."""
        low, high = binomtest(self.did, self.of).proportion_ci()
        return float(low), float(high)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.did} of {self.of} ({100 * low:.0f} to {100 * high:.0f} %)"


def count_learned(accuracies: Sequence[float | None]) -> SuccessRate:
    """How many runs reached 100 %; one that failed did not."""
    return SuccessRate(sum((a or 0.0) >= RIGHT for a in accuracies), len(accuracies))


def majority(rate: SuccessRate, *rules: Rule) -> Word:
    """The word of "runs of this kind do it"."""
    low, high = rate.interval
    word = HOLDS if low > 0.5 else FAILS if high < 0.5 else OPEN
    return Word(word, *rules, MAJORITY)


def about(median: float, printed: float) -> Word:
    """The word of "the plateau is there"."""
    return Word(HOLDS if abs(median - printed) <= ABOUT else FAILS, PLATEAU)


def near(median: float, printed: float) -> Word:
    """The word of "nearly all guesses are right"."""
    return Word(HOLDS if 1 - median <= 2 * (1 - printed) else FAILS, NEAR)
