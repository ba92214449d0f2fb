"""Time and memory of TaylorShift's two forms and of softmax against N, with N0 and N1.

    python -m experiments.efficiency.taylorshift_lengths

TaylorShift paper, figure 2 and table 2: one head, forward, float32. "As printed" are the paper's
equation 1 and algorithm 1 written plainly, which its N0 and N1 count. Ours differ: the direct form
works in blocks of rows, and the efficient one keeps the d (d + 1) / 2 different products.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax

from experiments.efficiency import peers
from experiments.efficiency.crossing import where
from experiments.measured import Measured, Rows
from flax_linattn import ops
from flax_linattn.bench import Journal, compare, normal, yardsticks
from flax_linattn.bench.comparisons import mechanism
from flax_linattn.bench.plots import draw_lines, import_figure
from flax_linattn.bench.report import markdown

PROGRAMS = {
    "direct, as printed": peers.taylorshift_equation_1,
    "efficient, as printed": peers.taylorshift_algorithm_1,
    "direct, ours": mechanism("taylorshift", form="direct"),
    "efficient, ours": mechanism("taylorshift", form="efficient"),
    "softmax": partial(yardsticks.softmax_xla, is_causal=False),
}
PAIRS = {
    "as printed": ("direct, as printed", "efficient, as printed"),
    "ours": ("direct, ours", "efficient, ours"),
    "efficient, ours, against softmax": ("softmax", "efficient, ours"),
}


@dataclasses.dataclass(frozen=True)
class Size:
    """What is measured."""

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
    lengths = []
    for slow, fast in PAIRS.values():
        points = [
            (row["length"], value(row, slow, quantity), value(row, fast, quantity))
            for row in rows
            if row["dim"] == dim
        ]
        lengths.append(where([point for point in points if None not in point]))
    return lengths


def value(row: dict[str, Any], program: str, quantity: str) -> float | None:
    result = row["results"][program]
    if quantity == "memory":
        return max(1, result["total_bytes"])
    return result["milliseconds"]["median"] if "milliseconds" in result else None


def table(rows: Rows, size: Size) -> str:
    heads = ["d", "what", "paper's formula", *PAIRS]
    lines = []
    for dim in size.dims:
        for quantity, formula in (("time", ops.taylorshift_n0), ("memory", ops.taylorshift_n1)):
            name = "N0" if quantity == "time" else "N1"
            lengths = crossings(rows, dim, quantity)
            lines.append([str(dim), f"{name}, {quantity}", f"{formula(dim):,}", *lengths])
    return markdown(heads, lines)


def draw(rows: Rows) -> Any:
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
            draw_lines(axes, lines, xlabel="N", ylabel=label)
            name = "N0" if quantity == "time" else "N1"
            axes.axvline(formula(dim), color="0.4", linestyle=":", label=name)
            axes.set_title(f"d = {dim}", fontsize=10)
        axes_row[0].legend(fontsize=7)
    return figure


EXPERIMENT = Measured(
    module="experiments.efficiency.taylorshift_lengths",
    about="TaylorShift, figure 2 and table 2: the measured crossing of time lies about 18 d above "
    "N0, that of memory within 0.6 % of N1",
    sizes={
        "cpu": Size(),
        "paper": Size(lengths=tuple(2**n for n in range(7, 17)), memory_limit_gb=60.0),
    },
    measure=measure,
    table=table,
    draw=draw,
    left_out={
        "cpu": "batches above 1; what needs more than 4 GB is compiled for its memory and not run",
        "paper": "batches above 1; what needs more than 60 GB is compiled for its memory and not "
        "run",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
