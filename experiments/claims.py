"""All claims of the four papers, with our verdicts, in one list.

Each experiment states the claims that it measures (``Measured.statements``, ``Table.claims``). This
module adds claims that the rows of several experiments judge and claims without an experiment
(unmeasured.py), and writes the page of all claims (claims.md).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments import findings, stale
from experiments.experiment import Experiment
from experiments.intervals import FEWEST
from experiments.margins import first_measured
from experiments.measured import Measured
from experiments.pages import quoted, write_page
from experiments.statements import Statement, early, rules_in, rules_text
from experiments.synthetic import complexity
from experiments.tables import Table
from experiments.tables.claims import Outcome
from experiments.unmeasured import CHECKED, NOT_MEASURED
from experiments.verdicts import (
    HOLDS,
    NOT_RUN,
    OPEN,
    VERDICTS,
    Verdict,
    get_rules,
)
from flax_linattn.bench.report import markdown

PAGE = Path(__file__).with_suffix(".md")
PAPERS = ("Aaren", "Element-wise attention", "TaylorShift", "Expressive attention")
LOCATIONS = ("abstract", "introduction", "section", "background", "algorithm", "equation", "table",
             "figure", "discussion", "conclusion", "appendix")  # fmt: skip
"""Kinds of parts of a paper, in the order of its claims."""


class JudgedStatement(NamedTuple):
    """A statement and the verdict on it.

    Attributes:
        statement: Claim of a paper.
        verdict: Our verdict on it.
        by: Names of the result files, or "-".
        measured: Date and commit of the measurement, or "-".
        untested: Why the measurement does not test the claim: it is older than the rules or the
            judge, or its options are fitted to the claim; "" if it does.
        is_stale: Whether the code of a mechanism has changed since the measurement.
        is_smaller: Whether the models, or their training, are smaller than the paper's.
    """

    statement: Statement
    verdict: Verdict
    by: str = "-"
    measured: str = "-"
    untested: str = ""
    is_stale: bool = False
    is_smaller: bool = False


def judge_statements(experiments: Iterable[Experiment]) -> list[JudgedStatement]:
    """Every statement with its verdict and what measured it, paper by paper.

    Results of an experiment that also ran on a GPU give a second line.
    """
    judged = []
    for experiment in experiments:
        if isinstance(experiment, Table):
            judged += _judged_table(experiment)
        elif isinstance(experiment, Measured) and paper_statements(experiment):
            scales = [scale for scale in experiment.sizes if experiment.stored(scale).is_file()]
            own = [one for scale in scales for one in _judged(experiment, scale)]
            run = {one.statement.says for one in own if one.verdict.word != NOT_RUN}
            judged += [
                one for one in own if one.verdict.word != NOT_RUN or one.statement.says not in run
            ]
            if not scales:
                why = Verdict(NOT_RUN, f"`{experiment.command(experiment.usual_scale)}`")
                judged += [JudgedStatement(one, why) for one in paper_statements(experiment)]
    judged += [_judged_over(statement) for statement in complexity.STATEMENTS]
    without_rows = (*CHECKED, *NOT_MEASURED)
    judged += [JudgedStatement(statement, statement.verdict()) for statement in without_rows]
    return sorted(judged, key=lambda one: location(one.statement))


def paper_statements(experiment: Measured) -> list[Statement]:
    """Statements about a paper, without our own."""
    papers = tuple(name.lower() for name in PAPERS)
    return [
        one
        for one in experiment.statements
        if one.where.lower().startswith(papers) and not one.says.startswith("our ")
    ]


def _judged(experiment: Measured, scale: str) -> Iterator[JudgedStatement]:
    """The verdicts by the results at one scale."""
    stored = experiment.stored(scale)
    results = json.loads(stored.read_text())
    name = f"{experiment.folder.name}/{stored.stem}"
    is_stale = bool(stale.what_changed(name))
    is_smaller = scale in experiment.smaller_scales
    for statement in paper_statements(experiment):
        verdict = statement.verdict(results["rows"])
        if verdict.word == NOT_RUN:
            yield JudgedStatement(statement, verdict)
            continue
        untested = _untested(statement, verdict, [results])
        yield JudgedStatement(
            statement, verdict, f"`{name}`", _origin(results), untested, is_stale, is_smaller
        )


def _untested(statement: Statement, verdict: Verdict, made: Iterable[Mapping[str, Any]]) -> str:
    """Why results, made then, do not test a statement."""
    made = list(made)
    if any(early(get_rules(verdict.word), one) for one in made):
        return "before the rules"
    if any(early((), one, statement.stated) for one in made):
        return f"judged so since {statement.stated[:10]}"
    return "fitted" if statement.fitted else ""


def _judged_over(statement: Statement) -> JudgedStatement:
    """The verdict by the rows of several files of results."""
    files = {name: PAGE.parent / f"{name}.json" for name in statement.results}
    for name, file in files.items():
        if not file.is_file():
            missing = f"`python -m experiments.{name.replace('/', '.')}`"
            return JudgedStatement(statement, Verdict(NOT_RUN, missing))
    results = {name: json.loads(file.read_text()) for name, file in files.items()}
    rows = [row | {"results": name} for name, own in results.items() for row in own["rows"]]
    verdict = statement.verdict(rows)
    by = quoted(results)
    measured = "; ".join(dict.fromkeys(map(_origin, results.values())))
    untested = _untested(statement, verdict, results.values())
    return JudgedStatement(statement, verdict, by, measured, untested)


def _origin(results: dict[str, Any]) -> str:
    origin = f"{results['date']}, {results['commit']}"
    first = results.get("first_measured")
    return f"{origin}, first measured {first[:10]}" if first else origin


def _judged_table(table: Table) -> Iterator[JudgedStatement]:
    """The verdicts by the runs of a table, for each claim of the paper, measure and protocol.

    Runs that are older than a margin are left out already.
    """
    where = table.title.partition(":")[0]
    if not where.startswith(PAPERS):
        return
    for of in findings.stored([table]):
        for one in findings.outcomes(of):
            if not one.claim.text.endswith("(ours)"):
                statement = Statement(where, f"{one.claim.text}, {findings.measure_text(one)}")
                name = f"`{table.folder.name}/{table.stored(of.scale).stem}`"
                verdict = _table_verdict(one)
                days = sorted({first_measured(made)[:10] for made in one.made})
                measured = " to ".join(dict.fromkeys((days[0], days[-1])))
                untested = _untested(statement, verdict, one.made)
                is_smaller = of.scale in table.smaller_scales
                yield JudgedStatement(
                    statement, verdict, name, measured, untested, is_smaller=is_smaller
                )


def _table_verdict(judged: Outcome) -> Verdict:
    sets = f"{judged.data_sets} data set{'s' * (judged.data_sets != 1)}"
    if judged.over_data_sets is None:
        return Verdict(judged.word, f"no interval: {sets}, {FEWEST} needed")
    if judged.published < judged.data_sets:
        sets += f", {judged.published} of the paper's"
    return Verdict(judged.word, f"{findings.difference_text(judged)} % over {sets}")


def paper_index(statement: Statement) -> int:
    """The index of a statement's paper in ``PAPERS``."""
    where = statement.where.lower()
    return next(i for i, name in enumerate(PAPERS) if where.startswith(name.lower()))


def location(statement: Statement) -> tuple[Any, ...]:
    """A key that sorts statements as in the papers: paper, kind of part, number."""
    at = statement.where.lower().removeprefix(PAPERS[paper_index(statement)].lower())
    parts = sorted((at.find(name), i) for i, name in enumerate(LOCATIONS) if name in at)
    first, kind = parts[0] if parts else (0, -1)
    number = re.search(r"\b(?:\d+(?:\.\d+)*|[a-g](?:\.\d+)?)\b", at[first:].partition(" ")[2])
    return paper_index(statement), kind, _parts(number[0] if number else "")


def _parts(number: str) -> list[int]:
    """3.2 as [3, 2], and B.3 as [2, 3]."""
    return [int(part) if part.isdigit() else ord(part) - ord("a") + 1
            for part in number.split(".") if part]  # fmt: skip


def _holding(lines: list[JudgedStatement]) -> str:
    hold = sum(one.verdict.word == HOLDS for one in lines)
    return f"{len(lines)} of the lines that test a claim, of which {hold} hold"


def render(experiments: Iterable[Experiment], page: Path = PAGE) -> str:
    """Writes the page and returns its text."""
    judged = judge_statements(experiments)
    first = f"{len(judged)} lines; a claim has one line for each metric, protocol and set of runs."
    if any(one.untested for one in judged):
        first += (
            " Results that do not test a claim are counted separately. They are marked *before the "
            "rules*, if one of the runs is older than a rule below; *judged so since*, if the "
            "calculation of the verdict was added or changed after the results were known; and "
            "*fitted*, if the options of the runs were chosen to match the claim. *Older code* "
            "marks measurements of time, memory or rounding errors since which the code of a "
            "mechanism has changed; stale.md lists them."
        )
    if older := [one for one in judged if one.is_stale and not one.untested]:
        first += f" It marks {_holding(older)}."
    if smaller := [one for one in judged if one.is_smaller and not one.untested]:
        first += (
            " *Smaller models* marks results of models that are smaller, or trained for less, than "
            f"the paper's. It marks {_holding(smaller)}."
        )
    parts = [first, _counts(judged)]
    for number, of_paper in itertools.groupby(judged, lambda one: paper_index(one.statement)):
        lines = [
            [
                one.statement.where[len(PAPERS[number]) :].removeprefix(", ") or "-",
                one.statement.says,
                one.verdict.ours,
                f"**{one.verdict.word}**",
                one.by,
                one.measured
                + f", *{one.untested}*" * bool(one.untested)
                + ", *older code*" * one.is_stale
                + ", *smaller models*" * one.is_smaller,
            ]
            for one in of_paper
        ]
        heads = ["where", "claim", "ours", "verdict", "experiment", "date and commit"]
        parts += [f"## {PAPERS[number]}", markdown(heads, lines)]
    rules = rules_text(rules_in(one.verdict for one in judged))
    return write_page(page, [*parts, "## Rules for the verdicts", rules])


def _counts(judged: list[JudgedStatement]) -> str:
    """A table of the number of claims with each verdict, by paper."""

    def line(name: str, of_paper: list[JudgedStatement]) -> list[str]:
        words = [one.verdict.word for one in of_paper if not one.untested]
        words = [OPEN if word.startswith(OPEN) else word for word in words]
        untested = [one.verdict.word for one in of_paper if one.untested]
        last = f"{len(untested)}, of which {untested.count(HOLDS)} hold"
        return [name, *(str(words.count(word)) for word in VERDICTS), last]

    lines = [
        line(name, [one for one in judged if paper_index(one.statement) == i])
        for i, name in enumerate(PAPERS)
    ]
    return markdown(
        ["paper", *VERDICTS, "not tested by these results"], [*lines, line("all", judged)]
    )
