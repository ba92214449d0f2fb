"""TaylorShift, figure 8: accuracy on ListOps by length, beyond the training lengths.

    python -m experiments.sequences.figure8

Longer runs than in table 3, of the two mechanisms in the paper's figure.
"""

from __future__ import annotations

import dataclasses
import statistics
from functools import partial
from typing import Any

from experiments.experiment import data_folder
from experiments.intervals import interval, mean_text, paired_differences, text
from experiments.measured import Measured, Rows
from experiments.rules import below
from experiments.sequences.data_sets import LISTOPS, make_config
from experiments.sequences.rules import DECLINES, ahead, falls
from experiments.sequences.runs import train_and_test
from experiments.statements import Judge, Statement
from experiments.verdicts import NotMeasuredError, Verdict
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure
from flax_linattn.bench.report import markdown

TRAINED = (10, 40)
"""Shortest and longest of training; a fourth of the longest one that is tested."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the training at one scale."""

    mechanisms: tuple[str, ...] = ("softmax", "taylorshift")
    embeddings: tuple[str, ...] = ("linear", "conv")
    seeds: int = 3
    steps: int = 2000
    test_lengths: tuple[int, ...] = (10, 15, 20, 25, 30, 35, 40, 50, 60, 80, 100, 120, 140, 160)


def measure(size: Size, journal: Journal) -> None:
    for seed in range(size.seeds):
        for embedding in size.embeddings:
            for mechanism in size.mechanisms:
                config = make_config(
                    LISTOPS,
                    data_folder(),
                    mechanism=mechanism,
                    embedding=embedding,
                    seed=seed,
                    steps=size.steps,
                    test_lengths=size.test_lengths,
                )
                key = {"mechanism": mechanism, "embedding": embedding, "seed": seed}
                journal.row(key, partial(train_and_test, "sequence", config))


def find_rows(rows: Rows, mechanism: str, embedding: str) -> Rows:
    """The rows of a model, by seed.

    Raises:
        NotMeasuredError: it was not trained.
    """
    matching = [
        row
        for row in rows
        if (row["mechanism"], row["embedding"]) == (mechanism, embedding) and "lengths" in row
    ]
    if not matching:
        raise NotMeasuredError(f"{mechanism} with {embedding}, by a run that did not fail")
    return matching


def within(row: dict[str, Any]) -> float:
    """Mean accuracy at the lengths of training."""
    return statistics.mean(own["accuracy"] for own in row["lengths"] if own["trained_on"])


def at_longest(row: dict[str, Any]) -> float:
    """Accuracy at the longest length, over that at the lengths of training."""
    accuracy: float = max(row["lengths"], key=lambda own: own["length"])["accuracy"]
    return accuracy / within(row)


def falls_for(mechanism: str, embedding: str) -> Judge:
    """The verdict on a model beyond training."""

    def judge(rows: Rows) -> Verdict:
        fraction = statistics.mean(map(at_longest, find_rows(rows, mechanism, embedding)))
        longest = max(own["length"] for own in find_rows(rows, mechanism, embedding)[0]["lengths"])
        return Verdict(
            falls(fraction), f"{100 * fraction:.0f} % of it at {longest} tokens (paper: about 80 %)"
        )

    return judge


def declines_for(mechanism: str) -> Judge:
    """The verdict on whether accuracy declines within the training lengths."""

    def judge(rows: Rows) -> Verdict:
        gaps = []
        for row in find_rows(rows, mechanism, "linear"):
            inside = {own["length"]: own["accuracy"] for own in row["lengths"] if own["trained_on"]}
            gaps.append(100 * (inside[max(inside)] - inside[min(inside)]))
        over = interval(gaps)
        shortest, longest = TRAINED
        return Verdict(
            below(over, 0, DECLINES),
            f"{text(over, 1)} points from {shortest} to {longest} tokens over {len(gaps)} seeds",
        )

    return judge


def more_than_softmax(rows: Rows) -> Verdict:
    """The verdict on which of the two falls more."""
    theirs, ours = (
        {row["seed"]: at_longest(row) for row in find_rows(rows, mechanism, "linear")}
        for mechanism in ("softmax", "taylorshift")
    )
    gap = interval([100 * x for x in paired_differences(theirs, ours)])
    return Verdict(ahead(gap), f"softmax keeps {text(gap, 1)} points more of its accuracy")


def table(rows: Rows, size: Size) -> str:
    """Accuracies, a line for each length."""
    models = [(m, e) for e in size.embeddings for m in size.mechanisms]
    known = [
        model for model in models if any((r["mechanism"], r["embedding"]) == model for r in rows)
    ]
    header = ["tokens", *(f"`{m}`, {e}" for m, e in known)]
    lines = []
    for place, length in enumerate(size.test_lengths):
        cells = []
        for mechanism, embedding in known:
            values = [
                100 * row["lengths"][place]["accuracy"]
                for row in find_rows(rows, mechanism, embedding)
            ]
            cells.append(mean_text(values, 1))
        inside = TRAINED[0] <= length <= TRAINED[1]
        lines.append([f"{length}" if inside else f"{length}, beyond", *cells])
    return f"Accuracy, percent:\n\n{markdown(header, lines)}"


def plot(rows: Rows) -> Any:
    """Accuracy at each length, relative to the mean at the lengths of training."""
    figure = import_figure()(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    colors = {"softmax": "tab:gray", "taylorshift": "tab:blue"}
    for embedding, style in (("linear", "-"), ("conv", "--")):
        for mechanism, color in colors.items():
            try:
                own = find_rows(rows, mechanism, embedding)
            except NotMeasuredError:
                continue
            lengths = [point["length"] for point in own[0]["lengths"]]
            curves = [[p["accuracy"] / within(row) for p in row["lengths"]] for row in own]
            means = [statistics.mean(column) for column in zip(*curves, strict=True)]
            axes.plot(lengths, means, style, color=color, label=f"{mechanism}, {embedding}")
            if len(curves) > 1:
                low, high = ([f(c) for c in zip(*curves, strict=True)] for f in (min, max))
                axes.fill_between(lengths, low, high, color=color, alpha=0.15, linewidth=0)
    for length in TRAINED:
        axes.axvline(length, color="black", linestyle=":", linewidth=1)
    axes.set(xlabel="tokens", ylabel="accuracy over that at lengths of training", ylim=(0, None))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths], rotation=60, fontsize=8)
    axes.legend(fontsize=8)
    return figure


EXPERIMENT = Measured(
    module="experiments.sequences.figure8",
    needs_data=True,
    about="TaylorShift, figure 8, appendix D.3: accuracy on ListOps beyond the training lengths",
    sizes={"": Size()},
    smaller_scales=("",),
    measure=measure,
    table=table,
    plot=plot,
    statements=(
        *(
            Statement(
                "TaylorShift, figure 8",
                f"with {mechanism} accuracy declines gradually within the training lengths",
                declines_for(mechanism),
                stated=DECLINES.stated,
            )
            for mechanism in ("softmax", "taylorshift")
        ),
        *(
            Statement(
                "TaylorShift, figure 8",
                f"with {mechanism} accuracy falls beyond the training lengths",
                falls_for(mechanism, "linear"),
            )
            for mechanism in ("softmax", "taylorshift")
        ),
        Statement(
            "TaylorShift, figure 8", "TaylorShift falls more than softmax", more_than_softmax
        ),
    ),
    left_out={
        "": "the paper's model (4 layers of 512) and lengths (training 500 to 2,000), which take a "
        "GPU; ours trains on 10 to 40 tokens, 2 layers of 64, and is tested at up to four times "
        "the longest"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
