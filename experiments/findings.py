"""Tables of findings: a summary of the stored runs that takes a minute to read.

python -m experiments.report
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from experiments.intervals import COMPARABLE, FEWEST, text
from experiments.pages import write_page
from experiments.rules import ONE_SOURCE
from experiments.store import Store
from experiments.tables import Says, Table, baselines
from experiments.tables.cells import Metric, Rows, by_row, list_columns, values
from experiments.tables.claims import Outcome, outcome
from experiments.tables.page import collect_baselines
from experiments.verdicts import CLAIMED_SIZE, OPEN, SMALLER
from flax_linattn.bench.report import markdown

PAGE = Path(__file__).with_suffix(".md")


class StoredTable(NamedTuple):
    """A table and what is stored of its first size that has any."""

    table: Table
    scale: str
    store: Store
    rows: Rows


def stored(tables: Iterable[Table]) -> Iterator[StoredTable]:
    """Yields the tables that have results."""
    for table in tables:
        scale = next((scale for scale in table.sizes if table.stored(scale).is_file()), None)
        if scale is not None:
            store = table.store(scale)
            yield StoredTable(table, scale, store, by_row(table.cells(None)))


def outcomes(of: StoredTable) -> list[Outcome]:
    """What the runs say of a table's claims."""
    candidates = (outcome(claim, of.table.metrics, of.rows, of.store) for claim in of.table.claims)
    return [of_claim for of_claim in candidates if of_claim is not None]


def summary_line(of: StoredTable, judged: list[Outcome]) -> list[str]:
    """One claim of a table, its verdict by each measure, and the numbers."""
    names = _measures(judged)
    by_verdict: dict[str, list[str]] = {}
    for name, one in zip(names, judged, strict=True):
        by_verdict.setdefault(_word(one), []).append(name)
    said = list(by_verdict)
    if len(by_verdict) > 1:
        said = [f"{' and '.join(by)}: {word}" for word, by in by_verdict.items()]
    numbers = [f"{name} {difference_text(one)}" for name, one in zip(names, judged, strict=True)]
    return [judged[0].claim.text, _where(of.table), "; ".join(said), "; ".join(numbers)]


def _measures(judged: list[Outcome]) -> list[str]:
    """Names that distinguish the outcomes of a claim: metric, rows, other column."""
    others = {one.claim.other for one in judged}
    return [
        measure_text(one) + (f" against {one.claim.other}" if len(others) > 1 else "")
        for one in judged
    ]


def _where(table: Table) -> str:
    """A link to the heading under which a table stands."""
    slug = "".join(c for c in table.title.lower() if c.isalnum() or c in " -").replace(" ", "-")
    page = f"../docs/{'time-series' if table.claims else 'results'}.md"
    return f"[{table.title}]({page}#{slug})"


def claim_line(of: StoredTable, judged: Outcome) -> list[str]:
    """A claim by a metric, and its verdict."""
    claim = judged.claim
    sets = f"{judged.data_sets} ({len(judged.rows)})"
    if judged.published < judged.data_sets:
        sets += f", {judged.published} of the paper's"
    return [
        _where(of.table),
        f"{claim.column} - {claim.other}",
        measure_text(judged),
        sets,
        difference_text(judged),
        text(judged.over_rows, 1),
        _verdict(judged),
    ]


def measure_text(judged: Outcome) -> str:
    """The metric and the rows that judge a claim."""
    return ", ".join(filter(None, [judged.metric.name.removesuffix(", %"), judged.claim.rows]))


def difference_text(judged: Outcome) -> str:
    """The interval that decides, in percent of the second column, and that of all runs.

    It is over data sets, or of a single row over its seeds.
    """
    over = judged.over_data_sets
    if over is None and len(judged.rows) == 1:
        over = judged.rows[0].percent
    difference, of_all = text(over, 1), text(judged.over_all, 1)
    return difference if of_all in (difference, "-") else f"{difference} (all runs {of_all})"


def _word(judged: Outcome) -> str:
    return judged.word if judged.word.startswith(OPEN) else f"**{judged.word}**"


def _verdict(judged: Outcome) -> str:
    """In words, with what weakens it."""
    notes = []
    if judged.word == SMALLER:
        notes.append(f"the paper's smallest is {judged.claimed:.1f} %")
    if judged.holds is None and COMPARABLE in judged.verdicts:
        notes.append(f"equal to {100 * judged.metric.margin.fraction:g} %")
    if judged.early and judged.claim.says is not Says.BETTER:
        notes.append(f"{judged.early} of {judged.runs} runs predate the margin and are excluded")
    return "; ".join([_word(judged), *notes])


def baseline_lines(of: StoredTable) -> Iterator[list[str]]:
    """A table's models compared with its baseline, by its first metric."""
    metric, name = of.table.metrics[0], of.table.baseline
    numbers = collect_baselines(of.table, of.rows, metric)
    for column in list_columns(of.rows):
        lost = baselines.losses(column, name, of.rows, metric, of.store, numbers, of.table.data_set)
        if lost is not None:
            yield [_where(of.table), column, name, *lost.cells()]


def published_lines(of: StoredTable) -> Iterator[list[str]]:
    """A table's numbers compared with the paper's, a line for each metric and column."""
    for metric in of.table.metrics:
        for column in list_columns(of.rows):
            percents = list(_shares(of, metric, column))
            if percents:
                better = sum((each > 0) == metric.larger_is_better for each in percents)
                span = f"{min(percents):+.1f} to {max(percents):+.1f}"
                line = [_where(of.table), column, metric.name, f"{better} of {len(percents)}"]
                yield [*line, f"{statistics.median(percents):+.1f} ({span})"]


def _shares(of: StoredTable, metric: Metric, column: str) -> Iterator[float]:
    """Our mean's difference from the published one in percent, a row a number."""
    for cells in of.rows.values():
        cell = cells.get(column)
        published = cell.paper.get(metric.name) if cell else None
        ours = list(values(of.store, cell, metric).values()) if cell else []
        if published and ours:
            yield 100 * (statistics.mean(ours) / published[0] - 1)


def render(tables: Iterable[Table]) -> str:
    """Writes the page of findings and returns its text."""
    tables_stored = list(stored(tables))
    of_claims = [(of, one) for of in tables_stored for one in outcomes(of)]
    by_text: dict[tuple[str, str], list[tuple[StoredTable, Outcome]]] = {}
    for of, one in of_claims:
        by_text.setdefault((of.table.module, one.claim.text), []).append((of, one))
    summary = [summary_line(of[0][0], [one for _, one in of]) for of in by_text.values()]
    margins = dict.fromkeys(one.metric.margin for _, one in of_claims)
    stated = ", ".join(f"{100 * m.fraction:g} % (stated {m.stated[:10]})" for m in margins)
    heads = ["table", "difference of", "by", "data sets (rows)", "% of the second"]
    lost = [line for of in tables_stored for line in baseline_lines(of)]
    published = [line for of in tables_stored for line in published_lines(of)]
    return write_page(
        PAGE,
        [
            markdown(["claim", "table", "verdict", "difference in %, 95 %"], summary),
            "*a ± b* is a mean difference with its 95 % confidence interval, a - b to a + b, by "
            "Student's t. The interval is over data sets: each counts once, with the mean of "
            "its rows (a row is a line of a table below: one data set and protocol, or one "
            f"series and horizon). It needs at least {FEWEST} data sets (- if there are fewer). "
            "For a single row the interval is over seeds, which says nothing about other test "
            "sequences.",
            "Where a margin decides, only runs that do not predate it count; the interval of all "
            "runs is in brackets where it differs.",
            "*Comparable* holds if the interval lies within the margin, *better* if it lies "
            "entirely on the better side of 0, and *at least as good* if it is not worse by "
            f"more than the margin. {CLAIMED_SIZE.text} (Stated {CLAIMED_SIZE.stated[:10]}, after "
            f"the runs.) Nothing is decided for fewer than {FEWEST} data sets. "
            f"Margins: {stated}, of accuracy and of errors (1 % of an accuracy of 96 % is a "
            "quarter of the errors). There is no correction for multiple comparisons.",
            "Each comparison by itself. *Rows alone* treats rows as independent, which they are "
            "not:",
            markdown([*heads, "rows alone, %", "verdict"], [claim_line(*one) for one in of_claims]),
            f"{ONE_SOURCE.text} (Stated {ONE_SOURCE.stated[:10]}, after the runs.) ETTh1 and ETTh2 "
            "come from two electricity transformers and count as two series.",
            "Compared with baselines, by the first metric of each table (difference of means in "
            f"% of the baseline, with a 95 % interval for {FEWEST} data sets or more). Our "
            "forecasters have 32 features and train on every second to sixteenth window. Ridge "
            "trains on every window, and MiniRocket also on the sequences that select our "
            "models:",
            markdown(["table", "model", "baseline", "rows lost", "difference, %"], lost),
            "Compared with the published numbers (rows in which ours is better; median "
            "difference and range):",
            markdown(["table", "model", "by", "better in", "difference, %"], published),
        ],
    )
