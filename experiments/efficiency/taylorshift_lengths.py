"""Time and memory of TaylorShift's two forms and of softmax by length N, with N0 and N1.

    python -m experiments.efficiency.taylorshift_lengths

TaylorShift paper, figure 2 and table 2: one head, forward, float32. "As printed" are plain
implementations of the paper's equation 1 and algorithm 1, whose operations N0 and N1 count. Our
direct form works in blocks of rows, and our efficient form computes only the d (d + 1) / 2 distinct
products.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax

from experiments.efficiency import peers
from experiments.efficiency.crossing import Curves, crossing, crossing_text, spread_crossing, where
from experiments.measured import Measured, Rows
from experiments.rules import (
    BOUNDS,
    STATED,
    TIE,
    Points,
    Range,
    exponent,
    grows,
    more,
    span,
    within,
)
from experiments.statements import Statement
from experiments.verdicts import Rule, Verdict, combine, with_note
from flax_linattn import ops
from flax_linattn.bench import Journal, baselines, compare, normal
from flax_linattn.bench.comparison import mechanism
from flax_linattn.bench.plots import import_figure, plot_lines
from flax_linattn.bench.report import markdown

PROGRAMS = {
    "direct, as printed": peers.taylorshift_equation_1,
    "efficient, as printed": peers.taylorshift_algorithm_1,
    "direct, ours": mechanism("taylorshift", form="direct"),
    "efficient, ours": mechanism("taylorshift", form="efficient"),
    "softmax": partial(baselines.softmax_xla, is_causal=False),
}
PAIRS = {
    "as printed": ("direct, as printed", "efficient, as printed"),
    "ours": ("direct, ours", "efficient, ours"),
    "efficient, ours, against softmax": ("softmax", "efficient, ours"),
}


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    dims: tuple[int, ...] = (16, 32, 64, 128)
    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    rounds: int = 7
    seconds: float = 2.0
    memory_limit_gb: float = 4.0


def measure(size: Size, journal: Journal) -> None:
    for dim in size.dims:
        for length in size.lengths:
            journal.row({"dim": dim, "length": length}, partial(measure_length, size, dim, length))
            jax.clear_caches()


def measure_length(size: Size, dim: int, length: int) -> dict[str, Any]:
    results = compare(
        PROGRAMS,
        normal(*[(1, length, 1, dim)] * 3),
        size.rounds,
        seconds=size.seconds,
        memory_limit=1e9 * size.memory_limit_gb,
        tokens=length,
    )
    return {"results": results}


def crossings(rows: Rows, dim: int, quantity: str) -> list[str]:
    """Where the second of each pair overtakes the first, in time or memory."""
    return [where(curves(rows, dim, pair, quantity)) for pair in PAIRS.values()]


def curves(rows: Rows, dim: int, pair: tuple[str, str], quantity: str) -> Curves:
    """Milliseconds or bytes of two programs, at the lengths where both were measured."""
    slow, fast = (dict(curve(rows, dim, name, quantity)) for name in pair)
    return [(n, slow[n], fast[n]) for n in slow if n in fast]


def value(row: dict[str, Any], program: str, quantity: str) -> float | None:
    result = row["results"][program]
    if quantity == "memory":
        return max(1, result["total_bytes"])
    return result["milliseconds"]["median"] if "milliseconds" in result else None


PRINTED_DIRECT, PRINTED_EFFICIENT = PAIRS["as printed"]


def curve(rows: Rows, dim: int, program: str, quantity: str) -> Points:
    """Milliseconds or bytes of a program by length."""
    points = [(r["length"], value(r, program, quantity)) for r in rows if r["dim"] == dim]
    return [(length, y) for length, y in points if y is not None]


def measured_dims(rows: Rows) -> list[int]:
    return list(dict.fromkeys(row["dim"] for row in rows))


def crossings_by_dim(rows: Rows, pair: tuple[str, str], quantity: str) -> dict[int, Range]:
    """Where the second program overtakes the first, or the bound of that, by d."""
    curves_by_dim = {dim: curves(rows, dim, pair, quantity) for dim in measured_dims(rows)}
    return {dim: crossing(points) for dim, points in curves_by_dim.items() if points}


def close_to_n1(rows: Rows) -> Verdict:
    """As printed, within the paper's 0.6 %."""
    words, texts = [], []
    for dim, crossing_range in crossings_by_dim(rows, PAIRS["as printed"], "memory").items():
        ratio = crossing_range.per(ops.taylorshift_n1(dim))
        words.append(within(ratio, 0.994, 1.006, BOUNDS))
        off = (
            f"{100 * (ratio.middle - 1):+.0f} % or more"
            if ratio.high > ratio.middle
            else (f"{100 * (ratio.middle - 1):+.0f} %")
        )
        texts.append(f"{crossing_text(crossing_range)} ({off}, d = {dim})")
    return Verdict(combine(words), f"as printed at {', '.join(texts)}")


ABOUT = Rule(
    '"About 18 d" is 9 to 27 d, within a half of it, at the ends of the spread too.', STATED
)


def offset(rows: Rows) -> Verdict:
    """Time crosses 18 d above N0, as printed."""
    words, texts = [], []
    for dim, crossing_range in crossings_by_dim(rows, PAIRS["as printed"], "time").items():
        times = [
            (row["length"], *(time(row, name) for name in PAIRS["as printed"]))
            for row in rows
            if row["dim"] == dim
        ]
        between = spread_crossing([(n, slow, fast) for n, slow, fast in times if slow and fast])
        n0 = ops.taylorshift_n0(dim)
        above = Range(*((length - n0) / dim for length in between))
        words.append(within(above, 9, 27, ABOUT, BOUNDS))
        ends = " to ".join(f"{end:+.0f}" for end in above[1:])
        texts.append(f"{crossing_text(crossing_range)} (N0 {ends} d, d = {dim})")
    return Verdict(combine(words), f"as printed at {', '.join(texts)}")


def memory_first(rows: Rows) -> Verdict:
    """Memory crosses at shorter sequences than time: as printed, with ours as a note."""

    def judge(name: str) -> Verdict:
        time, memory = (crossings_by_dim(rows, PAIRS[name], what) for what in ("time", "memory"))
        ratios = {dim: time[dim].over(memory[dim]) for dim in time if dim in memory}
        texts = (
            f"{crossing_text(memory[dim])} against {crossing_text(time[dim])} (d = {dim})"
            for dim in ratios
        )
        return Verdict(more(ratios.values()).under(BOUNDS), f"{name} at {', '.join(texts)}")

    return with_note(judge("as printed"), judge("ours"))


def fast_growth(rows: Rows) -> Verdict:
    """Direct and softmax quadratic, efficient linear, at the paper's usual d = 64."""
    dim = 64 if 64 in measured_dims(rows) else measured_dims(rows)[-1]
    powers = {PRINTED_DIRECT: 2, "softmax": 2, PRINTED_EFFICIENT: 1}
    curves = {name: curve(rows, dim, name, "time") for name in powers}
    word = combine(grows(curves[name], power) for name, power in powers.items())
    powers_text = ", ".join(f"{name} N^{exponent(c):.2f}" for name, c in curves.items())
    return Verdict(word, f"d = {dim}: {powers_text}")


SLIGHTLY = Rule(
    f'"Slightly longer" is 1 to {TIE:g} times as long, at the ends of the spread too.', STATED
)


def time(row: dict[str, Any], program: str) -> Range | None:
    """Milliseconds with their spread; None of what was not run."""
    result = row["results"][program]
    return Range.of(result["milliseconds"]) if "milliseconds" in result else None


def slower_softmax(rows: Rows) -> Verdict:
    """Softmax takes slightly longer than the direct form."""
    long = [row for row in rows if row["length"] >= 1024]
    pairs = [(time(row, "softmax"), time(row, PRINTED_DIRECT)) for row in long]
    ratios = [softmax.over(direct) for softmax, direct in pairs if softmax and direct]
    word = combine(within(ratio, 1, TIE, SLIGHTLY) for ratio in ratios)
    return Verdict(word, f"{span(ratios)} times the time of direct as printed, N from 1,024")


def fewer_operations_a_second(rows: Rows) -> Verdict:
    """The efficient form as printed, by the paper's count, at the longest N of each d."""
    rates = []
    for dim in measured_dims(rows):
        pairs = [
            (row["length"], *(time(row, name) for name in PAIRS["as printed"]))
            for row in rows
            if row["dim"] == dim
        ]
        both = [(n, direct, efficient) for n, direct, efficient in pairs if direct and efficient]
        if both:
            n, direct, efficient = both[-1]
            work = n * (4 * dim + 6) / (4 * dim**3 + 10 * dim**2 + 9 * dim + 4)
            rates.append(efficient.over(direct).per(1 / work))
    return Verdict(more(rates), f"direct as printed does {span(rates)} times as many")


STATEMENTS = (
    Statement(
        "TaylorShift, figure 2",
        "direct and softmax take quadratic time, the efficient form linear",
        fast_growth,
    ),
    Statement(
        "TaylorShift, section 4.1",
        "softmax takes slightly longer than direct (the paper: more operations)",
        slower_softmax,
    ),
    Statement("TaylorShift, section 5.1", "time crosses about 18 d above N0", offset),
    Statement(
        "TaylorShift, section 5.1",
        "memory crosses within 0.6 % of N1",
        close_to_n1,
    ),
    Statement(
        "TaylorShift, section 5.1",
        "the efficient form saves memory at shorter sequences than time",
        memory_first,
    ),
    Statement(
        "TaylorShift, appendix D.2",
        "the efficient form does fewer operations per second than direct",
        fewer_operations_a_second,
    ),
)


def table(rows: Rows, size: Size) -> str:
    heads = ["d", "what", "paper's formula", *PAIRS]
    lines = []
    for dim in size.dims:
        for quantity, formula in (("time", ops.taylorshift_n0), ("memory", ops.taylorshift_n1)):
            name = "N0" if quantity == "time" else "N1"
            lengths = crossings(rows, dim, quantity)
            lines.append([str(dim), f"{name}, {quantity}", f"{formula(dim):,}", *lengths])
    return markdown(heads, lines)


def plot(rows: Rows) -> Any:
    dims = list(dict.fromkeys(row["dim"] for row in rows))
    figure = import_figure()(figsize=(3.5 * len(dims), 6.4), layout="constrained")
    grid = figure.subplots(2, len(dims), sharey="row", squeeze=False)
    rules = (("time", ops.taylorshift_n0, "ms"), ("memory", ops.taylorshift_n1, "MB"))
    for axes_row, (quantity, formula, unit) in zip(grid, rules, strict=True):
        for axes, dim in zip(axes_row, dims, strict=True):
            lines = {}
            for name in PROGRAMS:
                points = [
                    (row["length"], value(row, name, quantity)) for row in rows if row["dim"] == dim
                ]
                scale = 1e-6 if quantity == "memory" else 1
                lines[name] = [(x, scale * y) for x, y in points if y is not None]
            label = f"{quantity}, {unit}" if dim == dims[0] else ""
            plot_lines(axes, lines, xlabel="N", ylabel=label)
            name = "N0" if quantity == "time" else "N1"
            axes.axvline(formula(dim), color="0.4", linestyle=":", label=name)
            axes.set_title(f"d = {dim}", fontsize=10)
        axes_row[0].legend(fontsize=7)
    return figure


EXPERIMENT = Measured(
    module="experiments.efficiency.taylorshift_lengths",
    about="TaylorShift, figure 2 and table 2",
    sizes={
        "cpu": Size(),
        "paper": Size(lengths=tuple(2**n for n in range(7, 17)), memory_limit_gb=60.0),
    },
    measure=measure,
    table=table,
    plot=plot,
    statements=STATEMENTS,
    left_out={
        "cpu": "batches above 1; what needs more than 4 GB is compiled for its memory and not run",
        "paper": "batches above 1; what needs more than 60 GB is compiled for its memory and not "
        "run",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
