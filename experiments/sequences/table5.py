"""TaylorShift, table 5: accuracy with more heads of a smaller dimension, on gray pixels.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.sequences.table5

Throughput and memory of the table are in ``experiments.efficiency.taylorshift_heads``.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from experiments.experiment import data_folder
from experiments.intervals import interval, mean_text, paired_differences, text
from experiments.measured import Measured, Rows
from experiments.sequences import runs
from experiments.sequences.data_sets import PIXELS, make_config
from experiments.sequences.rules import ahead
from experiments.statements import Statement
from experiments.verdicts import NotMeasuredError, Verdict
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

PAPER = {64: 47.1, 32: 47.5, 16: 47.3, 8: 46.9, 4: 45.9}
"""Accuracy by the dimension of a head, of 256 features; that of 64 is table 8's."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the training at one scale."""

    mechanisms: tuple[str, ...] = ("taylorshift",)
    heads: tuple[int, ...] = (1, 2, 4, 8, 16)
    seeds: int = 3
    features: int = 64


def measure(size: Size, journal: Journal) -> None:
    for seed in range(size.seeds):
        for mechanism in size.mechanisms:
            for heads in size.heads:
                config = make_config(
                    PIXELS,
                    data_folder(),
                    mechanism=mechanism,
                    num_heads=heads,
                    seed=seed,
                    features=size.features,
                )
                if config is not None:
                    key = {"mechanism": mechanism, "heads": heads, "seed": seed}
                    journal.row(key, partial(runs.train_and_test, "sequence", config))


def accuracies(rows: Rows, mechanism: str, heads: int) -> dict[int, float]:
    """Accuracies in percent, by seed.

    Raises:
        NotMeasuredError: nothing of it was trained.
    """
    what = f"{mechanism} with {heads} heads"
    return runs.accuracies(rows, what, mechanism=mechanism, heads=heads)


def more_heads(rows: Rows) -> Verdict:
    """The verdict on four heads against one: dimension 16 against 64."""
    few, many = (accuracies(rows, "taylorshift", heads) for heads in (1, 4))
    gap = interval(paired_differences(many, few))
    ours = f"{text(gap, 1)} points (heads of 16 against 64; paper +0.2)"
    return Verdict(ahead(gap, PAPER[16] - PAPER[64]), ours)


def too_many(rows: Rows) -> Verdict:
    """The verdict on the smallest heads against medium ones."""
    middle, many = (accuracies(rows, "taylorshift", heads) for heads in (4, 16))
    gap = interval(paired_differences(middle, many))
    ours = f"{text(gap, 1)} points (heads of 16 against 4; paper +1.4)"
    return Verdict(ahead(gap, PAPER[16] - PAPER[4]), ours)


def table(rows: Rows, size: Size) -> str:
    """One line per number of heads."""
    header = ["heads", "head dimension", "paper (of 256 features)"]
    header += [f"ours: `{mechanism}`" for mechanism in size.mechanisms]
    lines = []
    for heads in size.heads:
        dim = size.features // heads
        cells = []
        for mechanism in size.mechanisms:
            try:
                cells.append(mean_text([*accuracies(rows, mechanism, heads).values()], 1))
            except NotMeasuredError:
                cells.append("not run")
        printed = PAPER.get(dim)
        lines.append([str(heads), str(dim), "-" if printed is None else f"{printed:.1f}", *cells])
    return f"Accuracy, percent:\n\n{markdown(header, lines)}"


EXPERIMENT = Measured(
    module="experiments.sequences.table5",
    needs_data=True,
    extras="plots,images",
    about="TaylorShift, table 5: accuracy on CIFAR-10 pixels with more heads",
    sizes={"": Size()},
    smaller_scales=("",),
    measure=measure,
    table=table,
    statements=(
        Statement("TaylorShift, table 5", "more heads increase accuracy", more_heads),
        Statement("TaylorShift, table 5", "very many heads lose accuracy again", too_many),
    ),
    left_out={
        "": "the paper's width of 256 and 1,024 pixels; the heads here have the paper's dimensions "
        "64 to 4, so that there are fewer of them"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
