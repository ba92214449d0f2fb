"""What a paper claims of two columns, and what our runs say of it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from experiments.intervals import COMPARABLE, VERDICTS, Interval, interval, judge, text
from experiments.store import Store
from experiments.tables.cells import Metric, Rows, pairs
from flax_linattn.bench.report import markdown


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of a paper that compares two columns.

    Attributes:
        text: what it says.
        column: the one that it is about.
        other: the one that it is compared with.
        metric: the name of the one that it is judged by.
        rows: text of the rows that it is judged by; default all.
    """

    text: str
    column: str
    other: str
    metric: str
    rows: str = ""


def verdicts(
    claims: Sequence[Claim], metrics: Sequence[Metric], rows: Rows, store: Store
) -> list[str]:
    """A line and a table a claim: a paired difference with a 95 % interval a row."""
    by_name = {metric.name: metric for metric in metrics}
    parts = [
        part for claim in claims for part in _verdict(claim, by_name[claim.metric], rows, store)
    ]
    if not parts:
        return []
    margins = {f"{100 * by_name[claim.metric].margin:g} %" for claim in claims}
    return [
        *parts,
        "Intervals are of differences seed by seed; one over rows takes them as if they were "
        "independent. Where one holds 0, or has no width, two are not told apart, which proves "
        "no equality; they are comparable where it lies within our margin, "
        f"{' or '.join(sorted(margins))} of the other's mean.",
    ]


def _verdict(claim: Claim, metric: Metric, rows: Rows, store: Store) -> list[str]:
    """A claim's line and table; nothing if no row has two seeds of both columns."""
    lines, shares = [], []
    counts = dict.fromkeys((*VERDICTS, COMPARABLE), 0)
    for row, cells in rows.items():
        if claim.rows not in row or not {claim.column, claim.other} <= set(cells):
            continue
        cell, other = cells[claim.column], cells[claim.other]
        both = pairs(store, cell, other, metric)
        difference = interval([ours - theirs for ours, theirs in both])
        if difference is None:
            continue
        mean = abs(statistics.mean(theirs for _, theirs in both))
        judgement = _judge(metric, difference, metric.margin * mean)
        for verdict in judgement:
            counts[verdict] += 1
        if diverged := sum(store.num_failures(c.row, c.column) for c in (cell, other)):
            judgement.append(f"{diverged} that diverged left out")
        shares.append(100 * difference.middle / mean)
        lines.append([row, text(difference, metric.digits), ", ".join(judgement)])
    if not lines:
        return []
    if over_rows := interval(shares):
        judgement = _judge(metric, over_rows, 100 * metric.margin)
        share = f"{text(over_rows, 1)} %"
        lines.append([f"mean of rows, % of {claim.other}", share, ", ".join(judgement)])
    summary = ", ".join(f"{verdict} in {n}" for verdict, n in counts.items())
    total = sum(counts[verdict] for verdict in VERDICTS)
    heads = ["", f"{claim.metric}: {claim.column} - {claim.other}, 95 %", claim.column]
    return [f"*{claim.text}*: {claim.column} {summary} of {total}.", markdown(heads, lines)]


def _judge(metric: Metric, difference: Interval, margin: float) -> list[str]:
    return judge(difference, margin, larger_is_better=metric.larger_is_better)
