"""All claims of the papers on speed and memory, with our verdicts, in one table.

Each experiment states the claims that it measures (``Measured.statements``). This module has the
claims that nothing measures, and writes the page of all claims (claims.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from experiments.experiment import Experiment
from experiments.measured import Measured
from experiments.pages import write_page
from experiments.statements import Statement, early, rules_in, rules_text
from experiments.verdicts import NOT_RUN, VERDICTS, Verdict, get_rules
from flax_linattn.bench.report import markdown

FOLDER = Path(__file__).parent
PAPERS = ("Aaren", "Element-wise attention", "TaylorShift")
LEARNING = ("synthetic", "events", "offline_rl", "sequences")
"""The folders of what a paper claims of learning, whose verdicts stand on pages of their own."""
SILENT = "The paper on expressive attention makes no claims about speed or memory."

NOT_MEASURED = (
    Statement(
        "Aaren, abstract",
        "it trains in parallel, as Transformers do",
        why="tokens/s on two cores do not show how many steps depend on each other; training "
        "speed has its own line",
    ),
    Statement(
        "Aaren, sections 3.2 and 5",
        "its scan takes log2(N) steps, with N log(N) operations",
        why="two cores do not show the depth of a scan; ours works in chunks, with a number of "
        "operations linear in N",
    ),
    Statement(
        "Aaren, appendix A",
        "in blocks of b tokens attention takes memory of b",
        why="the paper declares it out of scope",
    ),
    Statement(
        "Element-wise attention, table 1",
        "computation grows with the number of terms t",
        why="EA-2 and EA-6 are measured above; no other t is",
    ),
    Statement(
        "Element-wise attention, table 1",
        "linear attention costs O(D^2) per token, in training and inference",
        why="`growth` measures linear attention and EA-series in turns, but at one D",
    ),
    Statement(
        "Element-wise attention, table 1",
        "AFT costs O(D) per pair of tokens in training, and O(D) per cached token in inference",
        why="`growth` measures AFT and EA-series in turns, but at one D",
    ),
    Statement(
        "Element-wise attention, section 3.4",
        "Taylor polynomials of dot products cost O(L D^t)",
        why="`taylorshift_order` times orders 2 and 4 for three D, but no rule was stated for how "
        "that time grows",
    ),
    Statement(
        "TaylorShift, equation 10",
        "the efficient form takes the fewest operations with heads of 0.52 channels",
        why="arithmetic: 8 d^3 + 10 d^2 = 4, not 9 d^3, gives 0.53; both mean the most heads",
    ),
    Statement(
        "TaylorShift, table 7",
        "training hours and memory on CIFAR, IMDB and ImageNet",
        why="full training takes days on this machine; only one training step of the ListOps model "
        "was measured",
    ),
    Statement(
        "TaylorShift, appendix C.3",
        "fused kernels are left out on both sides, as any attention can have one",
        why="a choice; our verdicts name both the best available softmax and the paper's",
    ),
)


class JudgedStatement(NamedTuple):
    """A statement and the verdict on it.

    Attributes:
        statement: of the paper.
        verdict: of our rows.
        by: the name of the results, or nothing.
        measured: when, and at which commit.
        early: whether that was before the rules were stated.
    """

    statement: Statement
    verdict: Verdict
    by: str = "-"
    measured: str = "-"
    early: bool = False


def judge_statements(experiments: Iterable[Experiment]) -> list[JudgedStatement]:
    """Every statement with its verdict and what measured it, paper by paper.

    An experiment that was run on a GPU as well is judged twice.
    """
    judged = []
    for experiment in experiments:
        if not isinstance(experiment, Measured) or not paper_statements(experiment):
            continue
        if experiment.folder.name in LEARNING:
            continue
        scales = [scale for scale in experiment.sizes if experiment.stored(scale).is_file()]
        for scale in scales:
            judged += _judged(experiment, experiment.stored(scale))
        if not scales:
            why = Verdict(NOT_RUN, f"`{experiment.command(experiment.usual_scale)}`")
            judged += [JudgedStatement(one, why) for one in paper_statements(experiment)]
    judged += [JudgedStatement(statement, statement.verdict()) for statement in NOT_MEASURED]
    return sorted(judged, key=lambda one: paper(one.statement))


def paper_statements(experiment: Measured) -> list[Statement]:
    """The statements that are a paper's, and not ours."""
    return [one for one in experiment.statements if one.where.startswith(PAPERS)]


def _judged(experiment: Measured, stored: Path) -> Iterator[JudgedStatement]:
    """By one file of results."""
    results = json.loads(stored.read_text())
    measured = f"{results['date']}, {results['commit']}"
    for statement in paper_statements(experiment):
        verdict = statement.verdict(results["rows"])
        before = early(get_rules(verdict.word), results)
        yield JudgedStatement(statement, verdict, f"`{stored.stem}`", measured, before)


def paper(statement: Statement) -> int:
    """The place of its paper among ``PAPERS``."""
    return next(i for i, name in enumerate(PAPERS) if statement.where.startswith(name))


def render(experiments: Iterable[Experiment], folder: Path = FOLDER) -> str:
    """Writes claims.md and returns its text."""
    judged = judge_statements(experiments)
    first = f"{len(judged)} claims. {SILENT}"
    if any(one.early for one in judged):
        first += (
            " Measurements older than the rules below do not test them: they are counted "
            "separately and marked *before the rules*."
        )
    lines = [
        [
            f"{one.statement.where}: {one.statement.says}",
            one.verdict.ours,
            f"**{one.verdict.word}**",
            one.by,
            one.measured + ", *before the rules*" * one.early,
        ]
        for one in judged
    ]
    table = markdown(["paper", "ours", "verdict", "measured by", "measured"], lines)
    rules = rules_text(rules_in(one.verdict for one in judged))
    return write_page(folder / "claims.md", [first, _counts(judged), table, rules])


def _counts(judged: list[JudgedStatement]) -> str:
    """How many claims of a paper have each verdict."""

    def line(name: str, of_paper: list[JudgedStatement]) -> list[str]:
        words = [one.verdict.word for one in of_paper if not one.early]
        early = sum(one.early for one in of_paper)
        return [name, *(str(words.count(word)) for word in VERDICTS), str(early)]

    lines = [
        line(paper, [one for one in judged if one.statement.where.startswith(paper)])
        for paper in PAPERS
    ]
    return markdown(["paper", *VERDICTS, "before the rules"], [*lines, line("all", judged)])
