"""Claims of a paper about two columns, and the verdicts of our runs.

Rows of one data set are one cluster, and so are data sets of one source (``rules.source``): their
differences are averaged before the comparison with others. Seeds are paired.
"""

from __future__ import annotations

import dataclasses
import enum
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.intervals import (
    COMPARABLE,
    FEWEST,
    VERDICTS,
    Interval,
    by_cluster,
    interval,
    judge,
    text,
)
from experiments.margins import BETTER
from experiments.rules import ONE_SOURCE, source
from experiments.store import Store
from experiments.tables.cells import Cell, Metric, Rows, finished_runs, pairs
from experiments.verdicts import FAILS, HOLDS, OPEN, SMALLER, TOO_FEW, Word, against_size
from flax_linattn.bench.report import markdown


class Says(enum.Enum):
    """How a claim compares its column with the other one."""

    COMPARABLE = "comparable"
    BETTER = "better"
    NOT_WORSE = "not worse"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of a paper that compares two columns.

    Attributes:
        text: what it says in words.
        says: what that comes to.
        column: the one that it is about.
        other: the one that it is compared with.
        metric: the name of the one that it is judged by.
        rows: text of the rows that it is judged by; default all.
    """

    text: str
    says: Says
    column: str
    other: str
    metric: str
    rows: str = ""


class RowDifference(NamedTuple):
    """A row's difference between two columns.

    Attributes:
        row: its name.
        difference: by seeds, in the metric's unit.
        percent: the same as a percentage of the other column's mean.
        tested: the mean percentage of the seeds that test the margin; None of fewer than two.
        diverged: how many of either ended without a result.
        verdicts: of ``difference``.
    """

    row: str
    difference: Interval
    percent: Interval
    tested: float | None
    diverged: int
    verdicts: list[str]


class Outcome(NamedTuple):
    """What the runs say of a claim.

    By a margin, only the runs that test it count; by direction, all do.

    Attributes:
        claim: which.
        metric: it is judged by.
        rows: those with enough seeds of both columns for an interval.
        data_sets: how many data sets count; of one source they are one.
        published: of how many of those the paper has numbers.
        over_data_sets: of the percentages that count, a data set a number: the interval that
            decides. None for too few of them.
        over_rows: the same with rows treated as independent, which they are not.
        over_all: as ``over_data_sets``, of all runs.
        verdicts: of ``over_data_sets``.
        holds: whether the claim does; None where the runs do not decide it, or are of too few data
            sets.
        claimed: the smallest improvement that the paper prints, in percent; None where it prints
            none, or the claim is not of one.
        runs: how many there are.
        early: how many of them do not test the margin.
        made: commit and date of each run that counts.
    """

    claim: Claim
    metric: Metric
    rows: list[RowDifference]
    data_sets: int
    published: int
    over_data_sets: Interval | None
    over_rows: Interval | None
    over_all: Interval | None
    verdicts: list[str]
    holds: bool | None
    claimed: float | None
    runs: int
    early: int
    made: list[dict[str, Any]]

    @property
    def word(self) -> Word:
        """One of ``verdicts.VERDICTS``, or that there are too few data sets."""
        rules = [BETTER if self.claim.says is Says.BETTER else self.metric.margin.rule]
        if any(row.row != source(row.row) and "ETTm2" in row.row for row in self.rows):
            rules.append(ONE_SOURCE)
        if self.over_data_sets is None:
            return Word(TOO_FEW, *rules)
        word = Word(OPEN if self.holds is None else HOLDS if self.holds else FAILS, *rules)
        if not self.over_data_sets.decides:
            return word
        sign = 1 if self.metric.larger_is_better else -1
        upper_end = sign * self.over_data_sets.middle + self.over_data_sets.half
        return against_size(word, upper_end, self.claimed)


def outcome(claim: Claim, metrics: Sequence[Metric], rows: Rows, store: Store) -> Outcome | None:
    """What the runs say of a claim; None if no row has enough seeds of both columns.

    Args:
        claim: which.
        metrics: of the table.
        rows: its cells.
        store: its runs.
    """
    metric = next(metric for metric in metrics if metric.name == claim.metric)
    differences, runs = [], []
    for row, cells in rows.items():
        if claim.rows not in row or not {claim.column, claim.other} <= set(cells):
            continue
        both = cells[claim.column], cells[claim.other]
        of_row = _compare_row(row, *both, metric, store)
        if of_row is not None:
            differences.append(of_row)
            runs += [run for cell in both for run in finished_runs(store, cell)]
    if not differences:
        return None
    percents = {of_row.row: of_row.percent.middle for of_row in differences}
    tested = {of_row.row: of_row.tested for of_row in differences if of_row.tested is not None}
    counted = percents if claim.says is Says.BETTER else tested
    over = interval(list(by_cluster(counted, source).values()))
    published = {source(row) for row in rows if any(cell.paper for cell in rows[row].values())}
    clusters = {source(row) for row in counted}
    return Outcome(
        claim=claim,
        metric=metric,
        rows=differences,
        data_sets=len(clusters),
        published=len(clusters & published),
        over_data_sets=over,
        over_rows=interval(list(counted.values())),
        over_all=interval(list(by_cluster(percents, source).values())),
        verdicts=[] if over is None else _judge(metric, over, 100 * metric.margin.fraction),
        holds=_holds(claim, over, metric),
        claimed=_claimed(claim, metric, rows),
        runs=len(runs),
        early=sum(not metric.margin.is_tested_by(run["made"]) for run in runs),
        made=[
            run["made"]
            for run in runs
            if claim.says is Says.BETTER or metric.margin.is_tested_by(run["made"])
        ],
    )


def _claimed(claim: Claim, metric: Metric, rows: Rows) -> float | None:
    """The smallest improvement that a paper prints for a claim of one, in percent."""
    if claim.says is not Says.BETTER:
        return None
    sign = 1 if metric.larger_is_better else -1
    printed = []
    for row, cells in rows.items():
        both = [cells[name].paper.get(metric.name) for name in (claim.column, claim.other)
                if claim.rows in row and name in cells]  # fmt: skip
        if len(both) == 2 and both[0] and both[1]:
            printed.append(100 * sign * (both[0][0] / both[1][0] - 1))
    return min(printed, default=None)


def verdicts(
    claims: Sequence[Claim], metrics: Sequence[Metric], rows: Rows, store: Store
) -> list[str]:
    """A line and a table a claim: a paired difference with a 95 % interval a row."""
    outcomes = [outcome(claim, metrics, rows, store) for claim in claims]
    results = [of_claim for of_claim in outcomes if of_claim is not None]
    if not results:
        return []
    margins = dict.fromkeys(of_claim.metric.margin for of_claim in results)
    stated = " or ".join(f"{100 * m.fraction:g} % (stated {m.stated[:10]})" for m in margins)
    early = any(of_claim.early and of_claim.claim.says is not Says.BETTER for of_claim in results)
    one_source = any(row.row.startswith("ETTm2") for of_claim in results for row in of_claim.rows)
    return [
        *(part for of_claim in results for part in _page(of_claim)),
        f"Intervals are 95 % confidence intervals by Student's t over {FEWEST} numbers or more. "
        "The interval of a row is over its seeds, paired. The interval over data sets has one "
        "number per data set, the mean of its rows. "
        + "ETTh2 and ETTm2 come from one electricity transformer and count as one data set. "
        * one_source
        + "Verdicts by a margin ignore runs that predate the margin. " * early
        + "Two models are not distinguishable if the interval contains 0 or has "
        "no width, which does not prove them equal. They are comparable if it lies within our "
        f"margin, {stated} of the other model's mean.",
    ]


def _compare_row(
    row: str, cell: Cell, other: Cell, metric: Metric, store: Store
) -> RowDifference | None:
    both = pairs(store, cell, other, metric)
    difference = interval([ours - theirs for ours, theirs in both.values()])
    if difference is None:
        return None
    mean = abs(statistics.mean(theirs for _, theirs in both.values()))
    early = {
        seed
        for c in (cell, other)
        for seed, run in store.of(c.row, c.column).items()
        if not metric.margin.is_tested_by(run["made"])
    }
    tested = [pair for seed, pair in both.items() if seed not in early]
    return RowDifference(
        row,
        difference,
        Interval(*(100 * number / mean for number in difference)),
        _percent_difference(tested) if len(tested) > 1 else None,
        sum(store.num_failures(c.row, c.column) for c in (cell, other)),
        _judge(metric, difference, metric.margin.fraction * mean),
    )


def _percent_difference(both: Sequence[tuple[float, float]]) -> float:
    """The mean difference of pairs in percent of the second's mean."""
    ours, theirs = (statistics.mean(of_column) for of_column in zip(*both, strict=True))
    return 100 * (ours - theirs) / abs(theirs)


def _page(result: Outcome) -> list[str]:
    """A claim's line and table."""
    claim, metric = result.claim, result.metric
    counts = {
        verdict: sum(verdict in of_row.verdicts for of_row in result.rows)
        for verdict in (*VERDICTS, COMPARABLE)
    }
    lines = [
        [
            of_row.row,
            text(of_row.difference, metric.digits),
            ", ".join(
                [
                    *of_row.verdicts,
                    *[f"{of_row.diverged} that diverged left out"] * (of_row.diverged > 0),
                ]
            ),
        ]
        for of_row in result.rows
    ]
    if len({source(of_row.row) for of_row in result.rows}) > 1:
        over, count = result.over_data_sets, result.data_sets
        what = f"mean of {count} data set{'s' if count != 1 else ''}, % of {claim.other}"
        percent = "-" if over is None else f"{text(over, 1)} %"
        said = [*result.verdicts, *[SMALLER] * (result.word == SMALLER)]
        lines.append([what, percent, ", ".join(said) or TOO_FEW])
    summary = ", ".join(f"{verdict} in {n}" for verdict, n in counts.items())
    early = f" {result.early} of {result.runs} runs predate the margin."
    heads = ["", f"{claim.metric}: {claim.column} - {claim.other}, 95 %", claim.column]
    judged = f" ({claim.rows})" if claim.rows else ""
    return [
        f"*{claim.text}*{judged}: {claim.column} {summary} of {len(result.rows)} rows."
        + early * (result.early > 0),
        markdown(heads, lines),
    ]


def _holds(claim: Claim, percent: Interval | None, metric: Metric) -> bool | None:
    """What an interval, in percent, says of a claim."""
    if percent is None or not percent.decides:
        return None
    sign = 1 if metric.larger_is_better else -1
    worst, best = (sign * percent.middle + side * percent.half for side in (-1, 1))
    margin = 100 * metric.margin.fraction
    holds, fails = {
        Says.COMPARABLE: (max(-worst, best) <= margin, worst > margin or best < -margin),
        Says.BETTER: (worst > 0, best < 0),
        Says.NOT_WORSE: (worst >= -margin, best < -margin),
    }[claim.says]
    return True if holds else False if fails else None


def _judge(metric: Metric, difference: Interval, margin: float) -> list[str]:
    return judge(difference, margin, larger_is_better=metric.larger_is_better)
