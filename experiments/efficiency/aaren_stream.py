"""Memory and cumulative time of a token stream: Aaren against key/value-cached softmax.

    python -m experiments.efficiency.aaren_stream

Aaren paper, figure 5, and its parameter count (section 4.5). The transformers have the sizes of
its offline reinforcement learning; the softmax cache doubles when it is full.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from flax import nnx

from experiments.efficiency.programs import num_parameters
from experiments.efficiency.streams import measure_streams
from experiments.measured import Measured, Rows
from flax_linattn import models
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import draw_lines, import_figure
from flax_linattn.bench.report import markdown, number
from flax_linattn.nn import TransformerBlock

MECHANISMS = ("aaren", "softmax")
PAPER_PARAMETERS = {"aaren": 3_152_896, "softmax": 3_152_384}


@dataclasses.dataclass(frozen=True)
class Size:
    """What is measured."""

    model: str = "decision-aaren"
    num_layers: int = 4
    features: int = 512
    tokens: int = 4096


def measure(size: Size, journal: Journal) -> None:
    journal.row({"what": "parameters"}, lambda: {"counts": count_parameters()})
    journal.row({"what": "streams"}, lambda: {"streams": streams(size)})


def count_parameters() -> dict[str, int]:
    """Of one block of width 512, the only count that gives the paper's numbers."""
    width = models.get_size("decision-aaren")
    return {
        name: num_parameters(
            TransformerBlock(
                width.features,
                width.num_heads,
                hidden_features=width.hidden_features,
                mechanism=name,
                rngs=nnx.Rngs(0),
            )
        )
        for name in MECHANISMS
    }


def streams(size: Size) -> dict[str, Any]:
    layers = dataclasses.replace(
        models.get_size(size.model),
        num_layers=size.num_layers,
        features=size.features,
        hidden_features=4 * size.features,
    )
    made = {
        name: models.Backbone(16, layers, mechanism=name, rngs=nnx.Rngs(0)) for name in MECHANISMS
    }
    return measure_streams(made, 1, size.tokens)


def table(rows: Rows, size: Size) -> str:
    by_what = {row["what"]: row for row in rows}
    lines = [
        [name, f"{PAPER_PARAMETERS[name]:,}", f"{by_what['parameters']['counts'][name]:,}"]
        for name in MECHANISMS
    ]
    counts = markdown(["parameters of a block", "paper", "ours"], lines)
    heads = ["tokens"]
    for name in MECHANISMS:
        heads += [f"{name}: state, kB", "a step, ms", "all so far, s"]
    by_name = by_what["streams"]["streams"]
    lines = []
    for marks in zip(*(by_name[name] for name in MECHANISMS), strict=True):
        cells = [f"{marks[0]['tokens']:,}"]
        for mark in marks:
            cells += [
                number(mark["state_bytes"] / 1e3),
                number(mark["milliseconds"]["median"]),
                number(mark["seconds"]),
            ]
        lines.append(cells)
    return f"{markdown(heads, lines)}\n\n{counts}"


def draw(rows: Rows) -> Any:
    by_name = next(row for row in rows if row["what"] == "streams")["streams"]
    figure = import_figure()(figsize=(9.6, 3.2), layout="constrained")
    panels = {
        "state, MB": lambda mark: mark["state_bytes"] / 1e6,
        "cumulative time, s": lambda mark: mark["seconds"],
        "a step, ms": lambda mark: mark["milliseconds"]["median"],
    }
    for axes, (label, value) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        lines = {n: [(m["tokens"], value(m)) for m in marks] for n, marks in by_name.items()}
        draw_lines(axes, lines, xlabel="tokens", ylabel=label)
    axes.legend()
    return figure


EXPERIMENT = Measured(
    module="experiments.efficiency.aaren_stream",
    about="Aaren, figure 5: memory constant against linear in the tokens, cumulative time linear "
    "against quadratic; section 4.5: 0.016 % more parameters",
    sizes={"cpu": Size(), "paper": Size(tokens=65536)},
    measure=measure,
    table=table,
    draw=draw,
    left_out={
        "cpu": "streams beyond 4,096 tokens, for want of time",
        "paper": "nothing; the paper names neither its model nor its lengths",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
