"""Verdicts on the statements of a paper, in a fixed set of words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold"
SMALLER = "smaller than claimed"
OPEN, NOT_RUN, IMPOSSIBLE = "not decided", "not run", "not possible here"
VERDICTS = (HOLDS, IN_PART, FAILS, SMALLER, OPEN, NOT_RUN, IMPOSSIBLE)
TOO_FEW, ONE_SEED = f"{OPEN}, too few data sets", f"{OPEN}, one seed"

REVISED = "2026-11-29T18:00:00+00:00"
"""When rules were added that all runs stored by then predate. By these runs, each took a verdict
back or made it more exact; none made an undecided claim hold."""


class NotMeasuredError(Exception):
    """What would decide a statement was not measured; says what it is."""


def rows_with(
    rows: Iterable[dict[str, Any]], wanted: str = "", /, **values: Any
) -> list[dict[str, Any]]:
    """The rows that have these values.

    Args:
        rows: the rows of an experiment.
        wanted: the name of these rows for the error; default their values.
        **values: by the names of a row.

    Raises:
        NotMeasuredError: no row has these values.
    """
    matching = [row for row in rows if values.items() <= row.items()]
    if not matching:
        raise NotMeasuredError(wanted or ", ".join(map(str, values.values())))
    return matching


@dataclasses.dataclass(frozen=True)
class Rule:
    """By what a word is given.

    Attributes:
        text: with all of its numbers.
        stated: when, in ISO 8601. What was measured before does not test it.
    """

    text: str
    stated: str


class Word(str):
    """One of ``VERDICTS``, and the rules that gave it."""

    rules: tuple[Rule, ...]

    def __new__(cls, text: str, *rules: Rule) -> Word:
        word = super().__new__(cls, text)
        word.rules = tuple(dict.fromkeys(rules))
        return word

    def under(self, *rules: Rule) -> Word:
        """The same word, by further rules."""
        return Word(self, *self.rules, *rules)


class Verdict(NamedTuple):
    """What our rows say of a statement.

    Attributes:
        word: one of ``VERDICTS``; a ``Word`` where a rule gave it.
        ours: the numbers that decide it, or why there are none.
    """

    word: str
    ours: str


def get_rules(word: str) -> tuple[Rule, ...]:
    """The rules that gave a word."""
    return word.rules if isinstance(word, Word) else ()


CASES = Rule(
    "A claim over several cases holds if it holds in all of them, and holds in part if it holds "
    "in some and fails in others. It does not hold if it fails in some and holds in none. "
    "Otherwise it is not decided.",
    stated="2026-11-23T17:36:00+00:00",
)


CLAIMED_SIZE = Rule(
    "If an improvement is neither confirmed nor refuted, it is *smaller than claimed* (at our "
    "sizes) if its 95 % confidence interval lies below the smallest improvement that the paper "
    "prints.",
    REVISED,
)
SEEDS = Rule("A claim that was tested with one seed is not decided.", REVISED)


def against_size(word: Word, upper_end: float, claimed: float | None) -> Word:
    """The word on an improvement, with the third outcome where its size is known.

    Args:
        word: by the interval alone.
        upper_end: the end of the interval at which the improvement is the largest.
        claimed: the smallest printed improvement; None, or not above 0, where there is none.
    """
    if word != OPEN or claimed is None or claimed <= 0 or upper_end >= claimed:
        return word
    return Word(SMALLER, *word.rules, CLAIMED_SIZE)


def one_seed(word: str) -> Word:
    """The word on what was run with one seed, which decides nothing: only the rules are kept."""
    return Word(ONE_SEED, *get_rules(word), SEEDS)


def opposite(word: Word) -> Word:
    """The word on the contrary of what a word is on."""
    return Word({HOLDS: FAILS, FAILS: HOLDS}.get(word, word), *word.rules)


def combine(words: Iterable[str]) -> Word:
    """The word of a claim over several cases.

    Raises:
        NotMeasuredError: there is none.
    """
    judged = list(words)
    if not judged:
        raise NotMeasuredError("nothing of it was measured")
    rules = [rule for word in judged for rule in get_rules(word)]
    if len(judged) > 1:
        rules.append(CASES)
    some, none = {HOLDS, IN_PART} & {*judged}, {FAILS, IN_PART} & {*judged}
    if some and none:
        return Word(IN_PART, *rules)
    if {*judged} == {SMALLER}:
        return Word(SMALLER, *rules)
    is_open = any(word == SMALLER or word.startswith(OPEN) for word in judged)  # TOO_FEW, perhaps
    return Word(FAILS if none else OPEN if is_open else HOLDS, *rules)


def with_note(decides: Verdict, other: Verdict) -> Verdict:
    """The verdict of one case, with the verdict of another as a note."""
    word = Word(decides.word, *get_rules(decides.word), *get_rules(other.word))
    return Verdict(word, f"{decides.ours}; {other.ours} (this alone: {other.word})")
