"""The table of findings: every claim that trained runs were made to test, and its verdict.

python -m experiments.report
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from experiments.intervals import COMPARABLE, text
from experiments.pages import write_page
from experiments.tables import Says, Table
from experiments.tables.cells import by_row
from experiments.tables.claims import Outcome, outcome
from flax_linattn.bench.report import markdown

PAGE = Path(__file__).with_suffix(".md")
VERDICTS = {True: "**holds**", False: "**does not hold**", None: "not decided"}
HEADS = ["claim", "by", "data sets (rows)", "difference, %", "rows alone, %", "verdict"]


def outcomes(tables: Iterable[Table]) -> list[tuple[Table, Outcome]]:
    """What the stored runs say of each table's claims: those of its first size that has any."""
    found = []
    for table in tables:
        scale = next((scale for scale in table.sizes if table.stored(scale).is_file()), None)
        if scale is not None:
            store, rows = table.store(scale), by_row(table.cells(None))
            of_claims = (outcome(claim, table.metrics, rows, store) for claim in table.claims)
            found += [(table, of_claim) for of_claim in of_claims if of_claim is not None]
    return found


def line(found: Outcome) -> list[str]:
    """Of the table."""
    claim = found.claim
    over = found.over_data_sets
    if over is None:
        over = found.rows[0].of_shares if len(found.rows) == 1 else None
    before = "-" if found.over_rows is None else text(found.over_rows, 1)
    return [
        f"{claim.text} ({claim.column} - {claim.other})",
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


def render(tables: Iterable[Table]) -> str:
    """Writes the page; returns it."""
    found = outcomes(tables)
    margins = dict.fromkeys(of_claim.metric.margin for _, of_claim in found)
    stated = ", ".join(f"{100 * m.share:g} % (stated {m.stated[:10]})" for m in margins)
    return write_page(
        PAGE,
        [
            markdown(HEADS, [line(of_claim) for _, of_claim in found]),
            "Differences are of the first from the second, in % of the second, with 95 % "
            "intervals over data sets, each with the mean of its rows as its one number; of a "
            "single row over its seeds. *Rows alone*: rows taken as if they were independent, "
            f"which they are not. Margins: {stated}, of accuracy and of errors. Nothing is "
            "corrected for the number of claims. ETTh2 and ETTm2 are one transformer's data at two "
            "rates, and counted as two.",
        ],
    )
