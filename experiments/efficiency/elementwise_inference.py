"""Inference memory and latency of EA-2, EA-6 and self-attention, by length and batch.

    python -m experiments.efficiency.elementwise_inference

Element-wise attention paper, figure 5. Every token is one compiled step; SA's key/value cache
doubles when it is full. Memory is what a step needs, weights and state included.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax

from experiments.efficiency.elementwise_models import KINDS, build
from experiments.efficiency.streams import measure_streams
from experiments.measured import Measured, Rows
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import draw_lines, import_figure
from flax_linattn.bench.report import markdown, number

MODELS = ("EA-2", "EA-6", "SA")


@dataclasses.dataclass(frozen=True)
class Size:
    """What is measured."""

    num_layers: int = 2
    features: int = 768
    tokens: int = 1024
    batches: tuple[int, ...] = (1, 4, 16)


def measure(size: Size, journal: Journal) -> None:
    models = {name: build(KINDS[name], size.num_layers, size.features) for name in MODELS}
    for batch in size.batches:
        streams = partial(measure_streams, models, batch, size.tokens)
        journal.row({"batch": batch}, lambda streams=streams: {"streams": streams()})
        jax.clear_caches()


def table(rows: Rows, size: Size) -> str:
    heads = ["batch", "tokens"]
    for name in MODELS:
        heads += [f"{name}: memory, MB", "state, MB", "a step, ms", "all, s"]
    lines = []
    for row in rows:
        for marks in zip(*(row["streams"][name] for name in MODELS), strict=True):
            cells = [str(row["batch"]), f"{marks[0]['tokens']:,}"]
            for mark in marks:
                cells += [
                    number(mark["total_bytes"] / 1e6),
                    number(mark["state_bytes"] / 1e6),
                    number(mark["milliseconds"]["median"]),
                    number(mark["seconds"]),
                ]
            lines.append(cells)
    return markdown(heads, lines)


def draw(rows: Rows) -> Any:
    figure = import_figure()(figsize=(3.4 * len(rows), 6), layout="constrained")
    grid = figure.subplots(2, len(rows), sharey="row", squeeze=False)
    panels = {
        "memory, MB": lambda mark: mark["total_bytes"] / 1e6,
        "latency of all tokens, s": lambda mark: mark["seconds"],
    }
    for axes_row, (label, value) in zip(grid, panels.items(), strict=True):
        for axes, row in zip(axes_row, rows, strict=True):
            lines = {
                name: [(mark["tokens"], value(mark)) for mark in marks]
                for name, marks in row["streams"].items()
            }
            draw_lines(axes, lines, xlabel="L", ylabel=label if axes is axes_row[0] else "")
            axes.set_title(f"batch {row['batch']}", fontsize=10)
    grid[0][0].legend()
    return figure


EXPERIMENT = Measured(
    module="experiments.efficiency.elementwise_inference",
    about="element-wise attention, figure 5: memory and the latency of a token constant in L for "
    "EA-2 and EA-6, which hardly differ; both grow with L and the batch for SA",
    sizes={"cpu": Size(), "paper": Size(12, 768, 8192, (1, 16, 64))},
    measure=measure,
    table=table,
    draw=draw,
    left_out={
        "cpu": "10 of BERT-base's 12 layers and longer streams, for want of time",
        "paper": "nothing; the paper names neither its lengths nor its batches",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
