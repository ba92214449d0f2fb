"""Memory and cumulative time of a token stream: Aaren compared with key/value-cached softmax.

    python -m experiments.efficiency.aaren_stream

Aaren paper, figure 5, and its parameter count (section 4.5). The transformers have the width of the
paper's offline reinforcement learning and one block, as in its parameter count. The softmax cache
doubles when it is full.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from flax import nnx

from experiments.efficiency.programs import num_parameters
from experiments.efficiency.streams import measure_streams
from experiments.measured import Measured, Rows
from experiments.rules import (
    Points,
    Range,
    exponent,
    grows,
    more,
    more_bytes,
    no_more,
    no_more_bytes,
)
from experiments.statements import Judge, Statement
from experiments.verdicts import FAILS, HOLDS, NotMeasuredError, Verdict, combine
from flax_linattn import models
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure, plot_lines
from flax_linattn.bench.report import markdown, number
from flax_linattn.nn import TransformerBlock

MECHANISMS = ("aaren", "softmax")
PAPER_PARAMETERS = {"aaren": 3_152_896, "softmax": 3_152_384}


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    model: str = "decision-aaren"
    num_layers: int = 1
    features: int = 512
    tokens: int = 16384


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


def stream_points(rows: Rows, name: str) -> list[dict[str, Any]]:
    """What was measured of a stream, by ascending length."""
    streams = [row["streams"][name] for row in rows if row["what"] == "streams"]
    if not streams:
        raise NotMeasuredError("no stream was measured")
    return streams[0]


def growth(name: str, quantity: str, power: int) -> Judge:
    """The judge of "it grows as N^power"."""

    def judge(rows: Rows) -> Verdict:
        points: Points = [(m["tokens"], m[quantity]) for m in stream_points(rows, name)]
        text = f"N^{exponent(points):.2f} up to {points[-1][0]:,} tokens"
        return Verdict(grows(points, power), text)

    return judge


def constant_state(rows: Rows) -> Verdict:
    """The state of Aaren has as many bytes at every mark as at the first."""
    sizes = [point["state_bytes"] for point in stream_points(rows, "aaren")]
    first, last = (stream_points(rows, "softmax")[i]["state_bytes"] for i in (0, -1))
    text = (
        f"{number(sizes[-1] / 1e3)} kB throughout; softmax's cache grows {last / first:.3g} times"
    )
    return Verdict(no_more_bytes(size / sizes[0] for size in sizes[1:]), text)


def constant_time(rows: Rows) -> Verdict:
    """A step takes as long after all tokens as after the first."""
    points = stream_points(rows, "aaren")
    first, last = (Range.of(points[i]["milliseconds"]) for i in (0, -1))
    ratio = last.over(first)
    text = f"{ratio.middle:.2f} times as long after {points[-1]['tokens']:,} tokens"
    return Verdict(no_more([ratio]), text)


def more_efficient(rows: Rows) -> Verdict:
    """Less time and memory than the Transformer with a cache, at the longest stream."""
    aaren, softmax = (stream_points(rows, name)[-1] for name in MECHANISMS)
    time, memory = (softmax[what] / aaren[what] for what in ("seconds", "state_bytes"))
    text = f"softmax takes {time:.2g} times as long and holds {memory:,.0f} times as much state at "
    return Verdict(
        combine([more([time]), more_bytes([memory])]), f"{text}{aaren['tokens']:,} tokens"
    )


def parameters(rows: Rows) -> Verdict:
    """Both counts are the paper's."""
    counts = next((row["counts"] for row in rows if row["what"] == "parameters"), None)
    if counts is None:
        raise NotMeasuredError("no parameters were counted")
    excess = 100 * (counts["aaren"] / counts["softmax"] - 1)
    word = HOLDS if counts == PAPER_PARAMETERS else FAILS
    return Verdict(word, f"{counts['softmax']:,} and {counts['aaren']:,}, {excess:.3f} % more")


STATEMENTS = (
    Statement("Aaren, abstract and figure 5", "constant memory in inference", constant_state),
    Statement(
        "Aaren, figure 5",
        "the memory of a Transformer with a key/value cache grows linearly",
        growth("softmax", "state_bytes", 1),
    ),
    Statement(
        "Aaren, figure 5", "Aaren's cumulative time grows linearly", growth("aaren", "seconds", 1)
    ),
    Statement(
        "Aaren, figure 5",
        "the cumulative time of a Transformer with a cache grows quadratically",
        growth("softmax", "seconds", 2),
    ),
    Statement("Aaren, section 3.3", "an update takes constant computation", constant_time),
    Statement(
        "Aaren, abstract", "Aaren takes less time and memory than a Transformer", more_efficient
    ),
    Statement(
        "Aaren, section 4.5",
        "3,152,384 parameters for a Transformer, 3,152,896 for Aaren, 0.016 % more",
        parameters,
    ),
)


def table(rows: Rows, size: Size) -> str:
    by_what = {row["what"]: row for row in rows}
    lines = [
        [name, f"{PAPER_PARAMETERS[name]:,}", f"{by_what['parameters']['counts'][name]:,}"]
        for name in MECHANISMS
    ]
    counts = markdown(["parameters of a block", "paper", "ours"], lines)
    heads = ["tokens"]
    for name in MECHANISMS:
        heads += [f"{name}: state, kB", "step, ms", "total so far, s"]
    by_name = by_what["streams"]["streams"]
    lines = []
    for points in zip(*(by_name[name] for name in MECHANISMS), strict=True):
        cells = [f"{points[0]['tokens']:,}"]
        for point in points:
            cells += [
                number(point["state_bytes"] / 1e3),
                number(point["milliseconds"]["median"]),
                number(point["seconds"]),
            ]
        lines.append(cells)
    return f"{markdown(heads, lines)}\n\n{counts}"


def plot(rows: Rows) -> Any:
    by_name = next(row for row in rows if row["what"] == "streams")["streams"]
    figure = import_figure()(figsize=(9.6, 3.2), layout="constrained")
    panels = {
        "state, MB": lambda point: point["state_bytes"] / 1e6,
        "cumulative time, s": lambda point: point["seconds"],
        "step, ms": lambda point: point["milliseconds"]["median"],
    }
    for axes, (label, value) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        lines = {n: [(m["tokens"], value(m)) for m in points] for n, points in by_name.items()}
        plot_lines(axes, lines, xlabel="tokens", ylabel=label)
    axes.legend()
    return figure


EXPERIMENT = Measured(
    module="experiments.efficiency.aaren_stream",
    about="Aaren, figure 5 and section 4.5",
    sizes={"cpu": Size(), "paper": Size(tokens=65536)},
    measure=measure,
    table=table,
    plot=plot,
    statements=STATEMENTS,
    left_out={
        "cpu": "streams beyond 16,384 tokens, for lack of time",
        "paper": "nothing; the paper names neither its model nor its lengths",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
