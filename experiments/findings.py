"""The tables of findings: what the stored runs say, in a minute.

python -m experiments.report
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from experiments.intervals import COMPARABLE, text
from experiments.pages import write_page
from experiments.store import Store
from experiments.tables import Says, Table, yardsticks
from experiments.tables.cells import Metric, Rows, by_row, columns_of, values
from experiments.tables.claims import Outcome, outcome
from experiments.tables.page import of_rows
from experiments.verdicts import FAILS, HOLDS, OPEN
from flax_linattn.bench.report import markdown

PAGE = Path(__file__).with_suffix(".md")
VERDICTS = {True: f"**{HOLDS}**", False: f"**{FAILS}**", None: OPEN}


class Stored(NamedTuple):
    """A table and what is stored of its first size that has any."""

    table: Table
    scale: str
    store: Store
    rows: Rows


def stored(tables: Iterable[Table]) -> Iterator[Stored]:
    """Those that have results."""
    for table in tables:
        scale = next((scale for scale in table.sizes if table.stored(scale).is_file()), None)
        if scale is not None:
            store = table.store(scale)
            yield Stored(table, scale, store, by_row(table.cells(None)))


def outcomes(of: Stored) -> list[Outcome]:
    """What the runs say of a table's claims."""
    found = (outcome(claim, of.table.metrics, of.rows, of.store) for claim in of.table.claims)
    return [of_claim for of_claim in found if of_claim is not None]


def claim_line(found: Outcome) -> list[str]:
    """A claim and its verdict."""
    claim = found.claim
    over = found.over_data_sets
    if over is None:
        over = found.rows[0].of_shares if len(found.rows) == 1 else None
    before = "-" if found.over_rows is None else text(found.over_rows, 1)
    return [
        claim.text,
        f"{claim.column} - {claim.other}",
        ", ".join(filter(None, [claim.metric.removesuffix(", %"), claim.rows])),
        f"{found.data_sets} ({len(found.rows)})",
        "-" if over is None else text(over, 1),
        before,
        _verdict(found),
    ]


def _verdict(found: Outcome) -> str:
    """In words, with what weakens it."""
    weak = []
    if found.holds is None and COMPARABLE in found.verdicts:
        weak.append(f"equal to {100 * found.metric.margin.share:g} %")
    if found.holds is not None and found.data_sets == 1:
        weak.append("for one data set")
    if found.holds is not None and found.early and found.claim.says is not Says.BETTER:
        weak.append(f"{found.early} of {found.runs} runs are older than the margin")
    return "; ".join([VERDICTS[found.holds], *weak])


def yardstick_lines(of: Stored) -> Iterator[list[str]]:
    """A table's models, each beside the yardstick that it loses to most, by its first metric."""
    metric = of.table.metrics[0]
    beside = of_rows(of.table, of.rows, metric, of.store)
    names = dict.fromkeys(name for numbers in beside.values() for name in numbers)
    sign = -1 if metric.larger_is_better else 1
    for column in columns_of(of.rows):
        found = {
            name: yardsticks.losses(column, name, of.rows, metric, of.store, beside)
            for name in names
        }
        lost = {name: losses for name, losses in found.items() if losses and losses.rows > 1}
        if lost:
            worst = max(lost, key=lambda name: (lost[name].lost, sign * lost[name].share))
            yield [of.table.name_of, column, worst, *lost[worst].cells()]


def published_lines(of: Stored) -> Iterator[list[str]]:
    """A table's numbers beside those of the paper, a line a metric and column."""
    for metric in of.table.metrics:
        for column in columns_of(of.rows):
            shares = [share for share in _shares(of, metric, column) if share is not None]
            if shares:
                better = sum((share > 0) == metric.larger_is_better for share in shares)
                span = f"{min(shares):+.1f} to {max(shares):+.1f}"
                line = [of.table.name_of, column, metric.name, f"{better} of {len(shares)}"]
                yield [*line, f"{statistics.median(shares):+.1f} ({span})"]


def _shares(of: Stored, metric: Metric, column: str) -> Iterator[float | None]:
    """Our mean's difference from the published one in per cent, a row a number."""
    for cells in of.rows.values():
        cell = cells.get(column)
        published = cell.paper.get(metric.name) if cell else None
        ours = list(values(of.store, cell, metric).values()) if cell else []
        if published and ours:
            yield 100 * (statistics.mean(ours) / published[0] - 1)


def render(tables: Iterable[Table]) -> str:
    """Writes the page; returns it."""
    found = list(stored(tables))
    of_claims = [of_claim for of in found for of_claim in outcomes(of)]
    margins = dict.fromkeys(of_claim.metric.margin for of_claim in of_claims)
    stated = ", ".join(f"{100 * m.share:g} % (stated {m.stated[:10]})" for m in margins)
    claim_heads = ["claim", "difference of", "by", "data sets (rows)"]
    claim_heads += ["% of the second", "rows alone, %", "verdict"]
    lost = [line for of in found for line in yardstick_lines(of)]
    published = [line for of in found for line in published_lines(of)]
    return write_page(
        PAGE,
        [
            markdown(claim_heads, map(claim_line, of_claims)),
            "Intervals are 95 %, over data sets, each with the mean of its rows as its one number; "
            "of a single row over its seeds. *Rows alone*: rows taken as if they were independent, "
            f"which they are not. Margins: {stated}, of accuracy and of errors. Nothing is "
            "corrected for the number of claims. ETTh2 and ETTm2 are one transformer's data at two "
            "rates, and counted as two.",
            "What a user would pick instead: each model beside the yardstick that it loses to in "
            "most rows, by the table's first metric (difference of means in % of the yardstick's):",
            markdown(["table", "model", "yardstick", "loses in", "difference, %"], lost),
            "Beside the published numbers (rows in which ours is better; median difference and "
            "span):",
            markdown(["table", "model", "by", "better in", "difference, %"], published),
        ],
    )
