"""Margins within which two models count as comparable, stated before the runs that test them.

A margin is never adjusted to a result. Runs that were known before the margin, or whose code is
older, do not test it: verdicts use the other runs.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.intervals import Interval
from experiments.verdicts import FAILS, HOLDS, OPEN, TOO_FEW, Rule, Word


class Margin(NamedTuple):
    """A fraction of the other model's number.

    Attributes:
        fraction: such as 0.05 for five percent.
        stated: when, in ISO 8601.
    """

    fraction: float
    stated: str

    @property
    def rule(self) -> Rule:
        """The rule of verdicts by this margin."""
        return Rule(
            "Two models are comparable, or the first is at least as good, if the 95 % confidence "
            "interval of their difference over data sets lies within, or on the worse side within, "
            f"{100 * self.fraction:g} % of the second's mean; they are not if it lies beyond.",
            self.stated,
        )

    def is_tested_by(self, made: dict[str, Any]) -> bool:
        """Whether the margin was stated before a run, and before an earlier one of its seed.

        Args:
            made: where the run came from. Of older ones only the date of their code is known, which
                is before the run; "known_by" is when one of the same seed was known.
        """
        if "known_by" in made and _time(made["known_by"]) <= _time(self.stated):
            return False
        return is_stated_before(self.stated, made)


def within(difference: Interval | None, margin: float, rule: Rule) -> Word:
    """The word on whether two numbers differ by at most a margin, from the interval.

    Args:
        difference: None where there is too little for one.
        margin: on either side.
        rule: by which this is judged.
    """
    if difference is None:
        return Word(TOO_FEW, rule)
    low, high = difference.middle - difference.half, difference.middle + difference.half
    if low >= -margin and high <= margin:
        return Word(HOLDS, rule)
    return Word(FAILS if low > margin or high < -margin else OPEN, rule)


def is_stated_before(stated: str, made: Mapping[str, Any]) -> bool:
    """Whether something was stated, in ISO 8601, before a run of ``made``.

    Computing the same numbers again tests no rule that was stated in between.
    """
    return _time(first_measured(made)) >= _time(stated)


def first_measured(made: Mapping[str, Any]) -> str:
    """When results with this origin were measured for the first time, in ISO 8601."""
    date: str = made.get("first_measured") or made.get("commit_date") or made["date"]
    return date


BETTER = Rule(
    "A model is better than another if the 95 % confidence interval of their difference over data "
    "sets lies on the better side of 0, and is not if it lies on the other.",
    "2026-11-23T15:22:37+00:00",
)
ACCURACY = Margin(0.01, "2026-11-22T07:19:39+00:00")
ERROR = Margin(0.05, "2026-11-22T07:19:39+00:00")


def _time(text: str) -> datetime.datetime:
    """A day without a time begins at midnight, UTC."""
    time = datetime.datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
