"""Throughput and memory of TaylorShift, by the number of heads.

    python -m experiments.efficiency.taylorshift_heads

TaylorShift paper, table 5: the CIFAR-pixel model (one layer, 256 features, 1,024 pixels as one-hot
vectors), direct and efficient, inference. Memory is that of the compiled program for 16 images. The
accuracies of the table are in ``experiments.sequences.table5``.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax

from experiments.efficiency.programs import compare_programs, forward, observations
from experiments.efficiency.taylorshift_models import DEPARTURES, Classifier, Kind
from experiments.measured import Measured, Rows
from experiments.rules import Range, more, more_bytes
from experiments.statements import Judge, Statement
from experiments.verdicts import NotMeasuredError, Verdict
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure, plot_lines
from flax_linattn.bench.report import markdown, number

FORMS = ("direct", "efficient")
PAPER = {
    4: {"direct": (12060, 596), "efficient": (2975, 840)},
    8: {"direct": (7657, 1111), "efficient": (5749, 585)},
    16: {"direct": (4341, 2135), "efficient": (9713, 459)},
    32: {"direct": (2528, 4187), "efficient": (14087, 397)},
    64: {"direct": (1235, 8291), "efficient": (13480, 125)},
}
"""Images a second, and MiB for 16 images, by heads and form."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    heads: tuple[int, ...] = (4, 8, 16, 32, 64)
    length: int = 1024
    images: int = 16
    rounds: int = 5
    seconds: float = 8.0


def measure(size: Size, journal: Journal) -> None:
    for heads in size.heads:
        journal.row({"heads": heads}, partial(measure_heads, size, heads))
        jax.clear_caches()


def measure_heads(size: Size, heads: int) -> dict[str, Any]:
    x = observations(size.images, size.length, 256)
    kind = Kind("taylorshift", heads)
    model = Classifier("taylorshift-pixel", kind, 256, size.length)
    forms = ((form, forward(model, form)) for form in FORMS)
    results = compare_programs(forms, x, size.rounds, size.seconds)
    for facts in results.values():
        facts["images_per_second"] = 1e3 * size.images / facts["milliseconds"]["median"]
    return {"results": results}


def table(rows: Rows, size: Size) -> str:
    heads = ["h", "d"]
    for form in FORMS:
        heads += [f"{form}: images/s, paper", "ours", "MiB, paper", "ours"]
    lines = []
    for row in rows:
        cells = [str(row["heads"]), str(256 // row["heads"])]
        for form in FORMS:
            speed, memory = PAPER[row["heads"]][form]
            ours = row["results"][form]
            cells += [f"{speed:,}", number(ours["images_per_second"])]
            cells += [f"{memory:,}", number(ours["total_bytes"] / 2**20)]
        lines.append(cells)
    return markdown(heads, lines)


def plot(rows: Rows) -> Any:
    figure = import_figure()(figsize=(8.6, 3.4), layout="constrained")
    panels = {
        "images/s": (0, lambda result: result["images_per_second"]),
        "MiB for 16 images": (1, lambda result: result["total_bytes"] / 2**20),
    }
    for axes, (label, (which, ours)) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        lines = {}
        for form in FORMS:
            paper = [(row["heads"], PAPER[row["heads"]][form][which]) for row in rows]
            lines[f"{form}, paper (A100)"] = paper
            lines[form] = [(row["heads"], ours(row["results"][form])) for row in rows]
        plot_lines(axes, lines, xlabel="heads", ylabel=label)
    axes.legend(fontsize=8)
    return figure


def trend(form: str, quantity: str, *, rises: bool) -> Judge:
    """The judge of "with more heads time or memory rises", or falls: most heads against least."""

    def judge(rows: Rows) -> Verdict:
        if len(rows) < 2:
            raise NotMeasuredError("one number of heads alone was measured")
        ends = (rows[-1], rows[0]) if rises else (rows[0], rows[-1])
        high, low = (row["results"][form] for row in ends)
        paper_high, paper_low = (PAPER[row["heads"]][form] for row in ends)
        if quantity == "memory":
            bytes_ = high["total_bytes"] / low["total_bytes"]
            word, ratio, theirs = more_bytes([bytes_]), bytes_, paper_high[1] / paper_low[1]
        else:
            times = Range.of(high["milliseconds"]).over(Range.of(low["milliseconds"]))
            word, ratio, theirs = more([times]), times.middle, paper_low[0] / paper_high[0]
        heads = f"{rows[-1]['heads']} heads against {rows[0]['heads']}"
        return Verdict(word, f"{ratio:.2g} times ({heads}; paper {theirs:.2g})")

    return judge


STATEMENTS = tuple(
    Statement("TaylorShift, table 5 and section 4.3", says, trend(form, quantity, rises=rises))
    for says, form, quantity, rises in (
        ("more heads make the efficient form faster", "efficient", "time", False),
        ("more heads make the efficient form smaller", "efficient", "memory", False),
        ("more heads make the direct form slower", "direct", "time", True),
        ("more heads make the direct form larger", "direct", "memory", True),
    )
)

EXPERIMENT = Measured(
    module="experiments.efficiency.taylorshift_heads",
    about="TaylorShift, table 5 (A100, mixed precision): more heads make the efficient form "
    "faster and smaller, and the direct one slower and larger",
    sizes={"cpu": Size(), "paper": Size(rounds=30)},
    measure=measure,
    table=table,
    plot=plot,
    statements=STATEMENTS,
    left_out={
        "cpu": f"{DEPARTURES}; half precision and an A100: compare the trend, not the numbers",
        "paper": f"{DEPARTURES}; half precision; the paper does not say whether its numbers are of "
        "training",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
