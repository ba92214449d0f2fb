"""Inference time and memory of whole transformers against N: TaylorShift, softmax and others.

    python -m experiments.efficiency.taylorshift_transformer

TaylorShift paper, figure 3 (16 heads, d = 32) and figure 9 (other numbers of heads and other
mechanisms at the 8 heads of its ListOps models). Memory is what the compiled program needs,
weights included.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax

from experiments.efficiency.crossing import where
from experiments.efficiency.programs import Program, compare_programs, forward, observations
from experiments.efficiency.taylorshift_models import build
from experiments.measured import Measured, Rows
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import draw_lines, import_figure
from flax_linattn.bench.report import markdown, number

IN_FEATURES = 17
"""Symbols of ListOps."""


class Kind(NamedTuple):
    """One line of the figures."""

    mechanism: str
    num_heads: int
    form: str = "auto"


FIGURE_3 = {
    "softmax": Kind("softmax", 16, "parallel"),
    "TaylorShift, direct": Kind("taylorshift", 16, "direct"),
    "TaylorShift, efficient": Kind("taylorshift", 16, "efficient"),
}
FIGURE_9 = {
    **{f"efficient, h = {h}": Kind("taylorshift", h, "efficient") for h in (8, 32, 64)},
    "softmax, h = 8": Kind("softmax", 8, "parallel"),
    "Linformer": Kind("linformer", 8),
    "RFA": Kind("rfa", 8),
    "Performer": Kind("performer", 8),
    "Nystromformer": Kind("nystrom", 8),
}
KINDS = FIGURE_3 | FIGURE_9


@dataclasses.dataclass(frozen=True)
class Size:
    """What is measured."""

    model: str = "taylorshift-listops"
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096)
    rounds: int = 5
    seconds: float = 20.0
    memory_limit_gb: float = 4.0


def measure(size: Size, journal: Journal) -> None:
    for length in size.lengths:
        journal.row({"length": length}, partial(measure_length, size, length))
        jax.clear_caches()


def measure_length(size: Size, length: int) -> dict[str, Any]:
    def program(kind: Kind) -> Program:
        model = build(size.model, kind.mechanism, kind.num_heads, IN_FEATURES, length)
        return forward(model, kind.form)

    programs = ((name, program(kind)) for name, kind in KINDS.items())
    x = observations(1, length, IN_FEATURES)
    limit = 1e9 * size.memory_limit_gb
    return {"results": compare_programs(programs, x, size.rounds, size.seconds, limit)}


def value(row: dict[str, Any], name: str, quantity: str) -> float | None:
    result = row["results"][name]
    if quantity == "memory":
        return result["total_bytes"]
    return result["milliseconds"]["median"] if "milliseconds" in result else None


def overtaken(rows: Rows, quantity: str) -> str:
    """Where efficient TaylorShift overtakes softmax, both with 16 heads."""
    pair = ("softmax", "TaylorShift, efficient")
    points = [(row["length"], *(value(row, name, quantity) for name in pair)) for row in rows]
    return where([point for point in points if None not in point])


def table(rows: Rows, size: Size) -> str:
    lines = [
        ["needs less memory from N =", "900", overtaken(rows, "memory")],
        ["is faster from N =", "1,800", overtaken(rows, "time")],
    ]
    for row in rows:
        if row["length"] == 2048:
            share = value(row, "TaylorShift, efficient", "memory") / value(row, "softmax", "memory")
            lines.append(["share of its memory at N = 2,048", "35 %", f"{100 * share:.0f} %"])
    claims = markdown(["efficient against softmax, 16 heads", "paper", "ours"], lines)
    heads = ["model", *(f"N = {row['length']:,}: ms / MB" for row in rows)]
    lines = []
    for name in KINDS:
        cells = [name]
        for row in rows:
            time = value(row, name, "time")
            memory = number(value(row, name, "memory") / 1e6)
            cells.append(f"{'not run' if time is None else number(time)} / {memory}")
        lines.append(cells)
    return f"{claims}\n\n{markdown(heads, lines)}"


def draw(rows: Rows) -> Any:
    figure = import_figure()(figsize=(9.6, 6.4), layout="constrained")
    grid = figure.subplots(2, 2, sharey="row")
    columns = (("figure 3: 16 heads of 32", FIGURE_3), ("figure 9", FIGURE_9))
    for axes_row, (quantity, unit) in zip(grid, (("time", "ms"), ("memory", "MB")), strict=True):
        for axes, (title, kinds) in zip(axes_row, columns, strict=True):
            scale = 1e-6 if quantity == "memory" else 1
            lines = {}
            for name in kinds:
                points = [(row["length"], value(row, name, quantity)) for row in rows]
                lines[name] = [(x, scale * y) for x, y in points if y is not None]
            label = f"{quantity}, {unit}" if axes is axes_row[0] else ""
            draw_lines(axes, lines, xlabel="N", ylabel=label)
            axes.set_title(title, fontsize=10)
    grid[0][0].legend(fontsize=7)
    grid[0][1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


EXPERIMENT = Measured(
    module="experiments.efficiency.taylorshift_transformer",
    about="TaylorShift, figures 3 and 9: with 16 heads the efficient form needs less memory from "
    "900 tokens on and is faster from 1,800 on; at 2,000 tokens it needs 35 % of the memory",
    sizes={
        "cpu": Size(),
        "paper": Size(lengths=(256, 512, 1024, 2048, 4096, 8192, 16384), memory_limit_gb=60.0),
    },
    measure=measure,
    table=table,
    draw=draw,
    left_out={
        "cpu": "Reformer and EVA, which the library does not have; longer sequences",
        "paper": "Reformer and EVA, which the library does not have",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
