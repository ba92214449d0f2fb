"""All claims of the four papers, with our verdicts, in one list.

Each experiment states the claims that it measures (``Measured.statements``, ``Table.claims``). This
module adds claims that the rows of several experiments judge, claims that tests check, and claims
that nothing measures, with the reason, and writes the page of all claims (claims.md).
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
from experiments.measured import Measured
from experiments.pages import write_page
from experiments.statements import Statement, early, rules_in, rules_text
from experiments.synthetic import complexity
from experiments.tables import Table
from experiments.tables.claims import Outcome
from experiments.verdicts import (
    FAILS,
    HOLDS,
    IMPOSSIBLE,
    IN_PART,
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


def _fixed(word: str, where: str, says: str, ours: str) -> Statement:
    """A claim whose verdict needs no rows."""
    return Statement(where, says, lambda rows: Verdict(word, ours))


def _tested(where: str, says: str, *tests: str) -> Statement:
    """A claim on equations or arithmetic that tests check; each test is FILE::NAME in tests/."""
    return _fixed(HOLDS, where, says, "; ".join(f"`tests/{test}`" for test in tests))


EQUATION = "contract/test_reference.py::test_the_reference_is_the_equation"
FORMS = "contract/test_forms.py::test_forms_are_the_loop_of_step"
CYCLES = "data/generators/test_nt.py::test_the_paper_s_cycles"
SHIFT = "ops/mechanisms/test_taylorshift.py"

CHECKED = (
    _tested(
        "Aaren, section 3.1, figures 1 and 2",
        "attention for one query is a recurrent network over (a, c, m)",
        "ops/mechanisms/test_aaren.py::test_the_recurrence_of_section_3_1",
    ),
    _tested(
        "Aaren, section 3.2 and appendix B",
        "the operator on (m, u, w) is associative, so that a prefix scan gives all outputs",
        "contract/test_merge.py::test_merge_is_a_monoid",
    ),
    _fixed(
        FAILS,
        "Aaren, algorithm 1",
        "algorithm 1 as printed computes all prefixes",
        "arithmetic: its strides 2^1, 2^2, ... never merge a token with the previous one; with "
        "2^0, 2^1, ... they do",
    ),
    _tested(
        "Aaren, section 3.3, figures 3 and 4",
        "a stack of Aaren layers updates token by token, with the outputs of the parallel form",
        FORMS,
        "contract/test_merge.py::test_states_of_layers",
    ),
    _fixed(
        IN_PART,
        "Aaren, section 5",
        "RWKV, RetNet and the Linear Transformer bias tokens by their time stamp; Aaren does not",
        "by their equations: `rwkv` and `retention` decay with the distance, `linear` does not",
    ),
    _tested(
        "Element-wise attention, equations 1 to 6, figures 1 and 2",
        "the series is the listing of figure 2, with t terms and exponents up to t - 1",
        "ops/mechanisms/test_elementwise.py::test_terms_reproduce_the_listing",
        EQUATION,
    ),
    _tested(
        "Element-wise attention, equations 7 to 16",
        "causal EA-series is a recurrent network with a state of constant size",
        FORMS,
    ),
    _tested(
        "Element-wise attention, section 3.2",
        "Taylor polynomials of even order are positive everywhere",
        "ops/mechanisms/test_elementwise.py::test_even_orders_are_positive_and_odd_ones_are_not",
    ),
    _tested(
        "TaylorShift, equations 1 to 4, algorithm 1, figure 1",
        "the direct and the efficient form compute the same function",
        f"{SHIFT}::test_direct_efficient_and_algorithm_1_agree",
    ),
    _tested(
        "TaylorShift, section 3.1",
        "Taylor softmax of even order gives a probability distribution",
        "ops/mechanisms/test_taylorshift_order.py::test_weights_are_positive",
    ),
    _tested("TaylorShift, table 2", "N0 and N1 for d = 8 to 128", f"{SHIFT}::test_table_2"),
    _tested(
        "TaylorShift, equations 5 to 9",
        "N0 and N1 are where the counts of operations and of entries cross",
        f"{SHIFT}::test_the_switching_points_are_where_the_costs_cross",
    ),
    _fixed(
        IN_PART,
        "TaylorShift, equation 10",
        "the efficient form takes the fewest operations with heads of 0.52 channels",
        "arithmetic: 8 d^3 + 10 d^2 = 4, instead of 9 d^3, gives 0.53; both mean as many heads as "
        "possible "
        f"(`tests/{SHIFT}::test_the_optimal_dimension_of_heads`)",
    ),
    _tested(
        "TaylorShift, appendix B.3",
        "a factor of d^(-1/2) makes no difference before normalization",
        f"{SHIFT}::test_the_scale_of_queries_and_keys_cancels",
    ),
    _tested(
        "Expressive attention, equations 1 and 2, figure 1",
        "expressive and dot-product attention compute equations 1 and 2",
        EQUATION,
    ),
    _tested(
        "Expressive attention, equations 3 to 9, figure 2",
        "NT, NT-S and NT-R have the printed numbers of cycles, with mean lengths of 47.6 and 23.8",
        CYCLES,
        "data/generators/test_nt.py::test_the_paper_s_mean_length_of_a_rare_event",
    ),
)
"""Claims on equations and arithmetic."""

FILES = "the files are not available here, and nothing is downloaded"
GPUS = "these depend on the authors' GPUs"

NOT_MEASURED = (
    _fixed(IMPOSSIBLE, "Aaren, table 1", "scores on the data sets of D4RL", FILES),
    _fixed(IMPOSSIBLE, "Aaren, table 2", "MIMIC-II and MOOC", FILES),
    _fixed(IMPOSSIBLE, "Aaren, tables 3 and 5", "Weather, Traffic and ETTm1", FILES),
    _fixed(
        IMPOSSIBLE,
        "Aaren, table 4",
        "EthanolConcentration, FaceDetection, Handwriting, Heartbeat, PEMS-SF, SelfRegulationSCP1 "
        "and SelfRegulationSCP2",
        FILES,
    ),
    Statement(
        "Aaren, abstract and section 4",
        "Aaren is comparable on 38 data sets",
        why="26 of the 38, or substitutes for them, were run; each table has its own line",
    ),
    _fixed(IMPOSSIBLE, "Aaren, appendix F", "hours of training", GPUS),
    _fixed(
        FAILS,
        "Element-wise attention, section 3.4",
        "the Taylor polynomial keeps the monotonicity of the exponential function",
        "arithmetic: a polynomial of even order that is positive everywhere falls before it rises, "
        "1 + x + x^2 / 2 below x = -1",
    ),
    Statement(
        "Element-wise attention, section 3.2",
        "the arguments of the exponential function stay near the origin",
        why="arguments in trained models were not recorded",
    ),
    Statement(
        "Element-wise attention, table 1",
        "memory in training grows as t L D, in t and D, too",
        why="memory was measured at several L only",
    ),
    Statement(
        "Element-wise attention, table 1",
        "AFT costs O(D) per cached token in inference",
        why="the operations of a step were not counted, because its position biases have as many "
        "rows as its cache; `cache` measures the time of steps at one D only",
    ),
    _fixed(
        IMPOSSIBLE,
        "Element-wise attention, section 3.4",
        "a feature map per channel allows more comprehensive interactions",
        "the paper does not say what would show it",
    ),
    _fixed(
        IMPOSSIBLE,
        "Element-wise attention, tables 2 and 3",
        "SelfRegulationSCP1 and SelfRegulationSCP2",
        FILES,
    ),
    _fixed(
        IMPOSSIBLE,
        "Element-wise attention, table 4",
        "Traffic",
        f"{FILES}; one sensor of another data set replaces it",
    ),
    _fixed(
        IMPOSSIBLE,
        "TaylorShift, table 3 and section 5.3",
        "on ImageNet TaylorShift gains 4.3 points from size Ti to S, the Transformer gains 3.5",
        "ImageNet at size S takes days on GPUs",
    ),
    Statement(
        "TaylorShift, table 3 (stars)",
        "Performer, Reformer and Nyströmformer (S) train in full precision only",
        why="our runs of table 3 are in float32; our half precision sums in float32, so it would "
        "not show what theirs does",
    ),
    _fixed(
        IMPOSSIBLE,
        "TaylorShift, table 7",
        "training hours and memory on CIFAR, IMDB and ImageNet",
        f"{GPUS}; one training step of the ListOps model has lines of its own",
    ),
    _fixed(
        IMPOSSIBLE,
        "TaylorShift, table 8",
        "convolutions lose 0.8 points on ImageNet (S)",
        "ImageNet at size S takes days on GPUs",
    ),
    Statement(
        "Expressive attention, figure 5",
        "with a larger context dot-product attention reaches 0.44 on N16T5",
        why="longer contexts than 128 take too long here",
    ),
    Statement(
        "Expressive attention, discussion",
        "expressive attention may raise performance in language and reasoning",
        why="beyond the scope of the paper, and of this project",
    ),
)
"""Claims without a measurement, and why."""


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
            for scale in scales:
                judged += _judged(experiment, scale)
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
    is_smaller = scale in experiment.smaller
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
    by = ", ".join(f"`{name}`" for name in results)
    measured = "; ".join(dict.fromkeys(map(_origin, results.values())))
    untested = _untested(statement, verdict, results.values())
    return JudgedStatement(statement, verdict, by, measured, untested)


def _origin(results: dict[str, Any]) -> str:
    return f"{results['date']}, {results['commit']}"


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
                days = sorted({(made.get("commit_date") or made["date"])[:10] for made in one.made})
                measured = " to ".join(dict.fromkeys((days[0], days[-1])))
                untested = _untested(statement, verdict, one.made)
                is_smaller = of.scale in table.smaller
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
    if smaller := [one for one in judged if one.is_smaller and not one.untested]:
        hold = sum(one.verdict.word == HOLDS for one in smaller)
        first += (
            " *Smaller models* marks runs whose models, or their training, are smaller than the "
            f"paper's: {len(smaller)} lines that count, {hold} of which hold."
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
