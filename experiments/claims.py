"""What a paper claims of time or memory, and what our measured rows say of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flax_linattn.bench.report import markdown, number

HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "not decided", "not run"
VERDICTS = (HOLDS, FAILS, OPEN, NOT_RUN)

TIE = 1.5
"""Times that differ by less are a tie: as much as the same program differs on a shared machine."""

SAME_BYTES = 1.05
"""Memory, which the compiler tells to the byte, is the same within this factor."""

POWER = 0.25
"""A quantity grows as N**p where its exponent is so near to p."""

REACH, REACH_OF_BYTES = 4, 2
"""An exponent is taken from the longest N measured down to so many times less."""

RULE = (
    f"Times within a factor of {TIE:g} are a tie, and memory within {SAME_BYTES:g} is the same. A "
    "quantity grows as N^p where the slope of its logarithm over the last factor of "
    f"{REACH} in N ({REACH_OF_BYTES} for memory) is within {POWER:g} of p. A claim over several "
    "cases holds where it holds in all, and is not decided where they differ."
)

Rows = Sequence[dict[str, Any]]
Points = Sequence[tuple[float, float]]
"""A length and a quantity, by ascending length."""


class NotMeasuredError(Exception):
    """What would decide a claim was not measured; says what it is."""


class Verdict(NamedTuple):
    """What our rows say.

    Attributes:
        word: one of ``VERDICTS``.
        ours: the numbers that decide it, or why there are none.
    """

    word: str
    ours: str


@dataclasses.dataclass(frozen=True)
class Claim:
    """A paper's statement.

    Attributes:
        where: the paper, and where in it.
        says: what it says, in our words.
        judge: the verdict of an experiment's rows; None where nothing is measured.
        why: where nothing is measured, the reason.
    """

    where: str
    says: str
    judge: Callable[[Rows], Verdict] | None = None
    why: str = ""

    def verdict(self, rows: Rows = ()) -> Verdict:
        """What these rows say of it."""
        if self.judge is None:
            return Verdict(NOT_RUN, self.why)
        try:
            return self.judge(rows)
        except NotMeasuredError as missing:
            return Verdict(NOT_RUN, str(missing))


def claims_table(claims: Iterable[Claim], rows: Rows) -> str:
    """A line a claim; nothing if there are none."""
    lines = []
    for claim in claims:
        word, ours = claim.verdict(rows)
        lines.append([f"{claim.where}: {claim.says}", ours, f"**{word}**"])
    return f"{markdown(['paper', 'ours', 'verdict'], lines)}\n\n{RULE}" if lines else ""


def all_of(words: Iterable[str]) -> str:
    """The word of a claim over several cases: theirs if they agree."""
    found = set(words)
    if not found:
        raise NotMeasuredError("nothing of it was measured")
    return found.pop() if len(found) == 1 else OPEN


def more(ratios: Iterable[float], by: float = TIE) -> str:
    """The word of "one is more than the other", by their ratios in all cases.

    Args:
        ratios: of the one that is said to be more, to the other.
        by: less than this factor is a tie.
    """
    return all_of(HOLDS if r >= by else FAILS if r <= 1 / by else OPEN for r in ratios)


def more_bytes(ratios: Iterable[float]) -> str:
    """The same of what is counted without noise: as much is not more."""
    return all_of(HOLDS if ratio > SAME_BYTES else FAILS for ratio in ratios)


def same(ratios: Iterable[float], by: float = TIE) -> str:
    """The word of "they hardly differ", by ratios in all cases."""
    return all_of(HOLDS if 1 / by < ratio < by else FAILS for ratio in ratios)


def no_more(ratios: Iterable[float], by: float = TIE) -> str:
    """The word of "one is not more than the other", by their ratios in all cases."""
    return all_of(HOLDS if ratio < by else FAILS for ratio in ratios)


def by_the_best(best: Verdict, printed: Verdict) -> Verdict:
    """Against the best yardstick at hand, which decides, and against the paper's own."""
    return Verdict(best.word, f"{best.ours}; {printed.ours} (by that: {printed.word})")


def exponent(points: Points, reach: float = REACH) -> float:
    """p of N**p for large N: the slope of the logarithms, by least squares.

    Args:
        points: of which the longest count,
        reach: down to so many times less than the longest.

    Raises:
        NotMeasuredError: there are fewer than two lengths.
    """
    longest = max((n for n, _ in points), default=0.0)
    far = [point for point in points if point[0] * reach >= longest]
    if len(far) < 2:
        raise NotMeasuredError("one length alone was measured")
    n, values = zip(*far, strict=True)
    return float(np.polyfit(np.log(n), np.log(values), 1)[0])


def grows(points: Points, power: float, reach: float = REACH) -> str:
    """The word of "it grows as N**power"; between two whole powers it is not decided."""
    measured = exponent(points, reach)
    if abs(measured - power) <= POWER:
        return HOLDS
    return FAILS if abs(measured - round(measured)) <= POWER else OPEN


def at(points: Points, length: float) -> float:
    """The quantity at a length, on straight lines through the logarithms.

    Raises:
        NotMeasuredError: it lies outside of what was measured.
    """
    if not points or not points[0][0] <= length <= points[-1][0]:
        raise NotMeasuredError(f"nothing was measured around {length:,}")
    n, values = zip(*points, strict=True)
    return float(np.exp(np.interp(np.log(length), np.log(n), np.log(values))))


def span(values: Iterable[float]) -> str:
    """Least and most, or the only one."""
    found = list(values)
    texts = [number(value) for value in (min(found), max(found))]
    return " to ".join(dict.fromkeys(texts))
