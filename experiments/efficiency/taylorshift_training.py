"""Time and memory of a training step of the TaylorShift paper's ListOps model.

    python -m experiments.efficiency.taylorshift_training

TaylorShift paper, table 7, which lists GPU hours and memory of whole training runs with the default
heads (8 of 64 for ListOps). This experiment measures loss and gradients of one batch, without an
optimizer: it shows the ranking of the models, not their hours. Memory is that of the compiled step,
including weights and gradients.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from experiments.efficiency.programs import Program, compare_programs, observations, training_step
from experiments.efficiency.taylorshift_models import DEPARTURES, Classifier, Kind, softmaxes
from experiments.measured import Measured, Rows
from experiments.rules import Range, more, more_bytes
from experiments.statements import Judge, Statement
from experiments.verdicts import NotMeasuredError, Verdict, with_note
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown, number

IN_FEATURES = 17
"""Symbols of ListOps."""

PRINTED, DIRECT, EFFICIENT = "softmax, all weights", "TaylorShift, direct", "TaylorShift, efficient"
KINDS = {
    **{f"softmax, {name}": kind for name, kind in softmaxes(8).items()},
    DIRECT: Kind("taylorshift", 8, "direct"),
    EFFICIENT: Kind("taylorshift", 8, "efficient"),
    "Performer": Kind("performer", 8),
    "Nystromformer": Kind("nystrom", 8),
    "Reformer": Kind("reformer", 8),
    "EVA": Kind("eva", 8),
}
SOFTMAXES = tuple(name for name in KINDS if name.startswith("softmax"))
PAPER = {
    PRINTED: (48.50, 273.19),
    DIRECT: (161.99, 545.22),
    EFFICIENT: (208.67, 401.87),
    "Performer": (46.17, 66.14),
    "Nystromformer": (40.66, 30.92),
    "Reformer": (103.11, 173.67),
    "EVA": (52.57, 58.87),
}
"""GPU hours and GiB for ListOps; Performer in full precision."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    model: str = "taylorshift-listops"
    length: int = 1000
    """ListOps has 500 to 2,000."""
    batch: int = 1
    rounds: int = 3
    seconds: float = 30.0


def measure(size: Size, journal: Journal) -> None:
    journal.row({"length": size.length, "batch": size.batch}, partial(measure_step, size))


def measure_step(size: Size) -> dict[str, Any]:
    def program(kind: Kind) -> Program:
        return training_step(Classifier(size.model, kind, IN_FEATURES, size.length), kind.form)

    programs = ((name, program(kind)) for name, kind in KINDS.items())
    x = observations(size.batch, size.length, IN_FEATURES)
    return {"results": compare_programs(programs, x, size.rounds, size.seconds)}


def facts(rows: Rows) -> dict[str, tuple[Range, Range]]:
    """Milliseconds and bytes by model."""
    if not rows:
        raise NotMeasuredError("nothing was measured")
    results = rows[0]["results"]
    return {
        name: (
            Range.of(results[name]["milliseconds"]),
            Range.exact(results[name]["total_bytes"]),
        )
        for name in KINDS
        if name in results
    }


def above(name: str, quantity: int) -> Judge:
    """The judge of "it needs more time (0) or memory (1) to train than softmax"."""

    def judge(rows: Rows) -> Verdict:
        ours = facts(rows)
        best = min(ours[softmax][quantity] for softmax in SOFTMAXES)
        theirs = PAPER[name][quantity] / PAPER[PRINTED][quantity]
        verdicts = []
        for other, baseline in (("the best softmax", best), (PRINTED, ours[PRINTED][quantity])):
            ratio = ours[name][quantity].over(baseline)
            word = more_bytes([ratio.middle]) if quantity else more([ratio])
            verdicts.append(Verdict(word, f"{ratio.middle:.2g} times {other}"))
        word, text = with_note(*verdicts)
        return Verdict(word, f"{text}; paper {theirs:.2g}")

    return judge


STATEMENTS = tuple(
    Statement("TaylorShift, table 7, ListOps", says, judge)
    for says, judge in (
        ("the direct form trains more slowly than softmax", above(DIRECT, 0)),
        ("the direct form needs more memory in training than softmax", above(DIRECT, 1)),
        ("the efficient form with 8 heads trains more slowly than softmax", above(EFFICIENT, 0)),
        ("the efficient form with 8 heads needs more memory in training", above(EFFICIENT, 1)),
    )
)


def table(rows: Rows, size: Size) -> str:
    ours = facts(rows)
    heads = ["model", "paper: GPU hours", "GiB", "ours: ms per step", "MB"]
    lines = []
    for name, (milliseconds, needed) in ours.items():
        paper = [f"{value:.2f}" for value in PAPER[name]] if name in PAPER else ["-", "-"]
        lines.append([name, *paper, number(milliseconds.middle), number(needed.middle / 1e6)])
    return markdown(heads, lines)


EXPERIMENT = Measured(
    module="experiments.efficiency.taylorshift_training",
    about="TaylorShift, table 7 (A100, mixed precision, batch 256): hours and memory of training",
    sizes={"cpu": Size(), "paper": Size(length=2000, batch=32, rounds=30)},
    measure=measure,
    table=table,
    statements=STATEMENTS,
    left_out={
        "cpu": f"{DEPARTURES}; whole trainings, mixed precision, batch 256, the other data sets",
        "paper": f"{DEPARTURES}; whole trainings, mixed precision, batch 256, the other data sets",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
