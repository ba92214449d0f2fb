"""Inference memory and latency of EA-2, EA-6 and self-attention, by length and batch.

    python -m experiments.efficiency.elementwise_inference

Element-wise attention paper, figure 5. Every token is one compiled step. The key/value cache of SA
doubles when it is full. Memory is that of a step, including weights and state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax

from experiments.efficiency.elementwise_models import KINDS, build
from experiments.efficiency.streams import measure_streams
from experiments.measured import Measured, Rows
from experiments.rules import (
    EXPONENTIAL,
    Range,
    exponent,
    exponential_excess,
    grows,
    more,
    more_bytes,
    no_more,
    no_more_bytes,
    same,
    span,
)
from experiments.statements import Statement
from experiments.verdicts import NotMeasuredError, Verdict, combine
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure, plot_lines
from flax_linattn.bench.report import markdown, number

MODELS = ("EA-2", "EA-6", "SA")


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    num_layers: int = 2
    features: int = 768
    tokens: int = 1024
    batches: tuple[int, ...] = (1, 4, 16)


def measure(size: Size, journal: Journal) -> None:
    get_models = cache(partial(build_models, size))  # on first use: stored rows need no model
    for batch in size.batches:
        journal.row({"batch": batch}, partial(measure_batch, get_models, batch, size.tokens))


def build_models(size: Size) -> dict[str, Any]:
    return {name: build(KINDS[name], size.num_layers, size.features) for name in MODELS}


def measure_batch(
    get_models: Callable[[], dict[str, Any]], batch: int, tokens: int
) -> dict[str, Any]:
    streams = measure_streams(get_models(), batch, tokens)
    jax.clear_caches()
    return {"streams": streams}


SERIES = ("EA-2", "EA-6")


def stream_points(rows: Rows, names: Sequence[str]) -> list[list[dict[str, Any]]]:
    """What was measured of these models, for every batch, by ascending length."""
    return [row["streams"][name] for row in rows for name in names]


def step(point: dict[str, Any]) -> Range:
    """Milliseconds of a step, with their range."""
    return Range.of(point["milliseconds"])


def constant_memory(rows: Rows) -> Verdict:
    ratios = [m[-1]["total_bytes"] / m[0]["total_bytes"] for m in stream_points(rows, SERIES)]
    text = f"{max(ratios):.2f} times as much after the longest stream"
    return Verdict(no_more_bytes(ratios), text)


def little_by_batch(rows: Rows) -> Verdict:
    ends = [_by_batch(rows, name) for name in SERIES]
    ratios = [large["total_bytes"] / small["total_bytes"] for large, small in ends]
    text = f"{span(ratios)} times for {_batches(rows)}, weights included"
    return Verdict(no_more_bytes(ratios), text)


def _by_batch(rows: Rows, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The longest stream at the largest batch, and at the smallest."""
    if len(rows) < 2:
        raise NotMeasuredError("one batch alone was measured")
    return rows[-1]["streams"][name][-1], rows[0]["streams"][name][-1]


def _longer(ends: tuple[dict[str, Any], dict[str, Any]]) -> Range:
    return step(ends[0]).over(step(ends[1]))


def _batches(rows: Rows) -> str:
    return f"a batch of {rows[-1]['batch']} against {rows[0]['batch']}"


def sa_memory(rows: Rows) -> Verdict:
    """SA's state is linear in both."""
    points = [(m["tokens"], m["state_bytes"]) for m in rows[0]["streams"]["SA"]]
    by_batch = [(row["batch"], row["streams"]["SA"][-1]["state_bytes"]) for row in rows]
    text = f"its cache grows as L^{exponent(points):.2f} and batch^{exponent(by_batch):.2f}"
    return Verdict(combine([grows(points, 1), grows(by_batch, 1)]), text)


def linear_latency(rows: Rows) -> Verdict:
    curves = [
        [(m["tokens"], m["seconds"]) for m in points] for points in stream_points(rows, SERIES)
    ]
    text = f"the time of all tokens grows as L^p, p = {span(map(exponent, curves))}"
    return Verdict(combine(grows(curve, 1) for curve in curves), text)


def sa_latency(rows: Rows) -> Verdict:
    """The longer the stream the longer a step."""
    ratios = {row["batch"]: _longer((m[-1], m[0])) for row in rows if (m := row["streams"]["SA"])}
    ratios_text = ", ".join(f"{ratio.middle:.2g} times (batch {b})" for b, ratio in ratios.items())
    tokens = rows[0]["streams"]["SA"][-1]["tokens"]
    return Verdict(
        more(ratios.values()), f"a step after {tokens:,} tokens takes {ratios_text} as long"
    )


def exponential_latency(rows: Rows) -> Verdict:
    """All tokens up to the longest stream take no less than an exponential growth gives."""
    curves = [
        [(m["tokens"], m["seconds"]) for m in points] for points in stream_points(rows, ["SA"])
    ]
    growth_ratios = [exponential_excess(curve) for curve in curves]
    text = f"exponential growth would reach {span(growth_ratios)} times what "
    text += f"{curves[0][-1][0]:,} tokens take"
    return Verdict(no_more(growth_ratios).under(EXPONENTIAL), text)


def latency_by_batch(rows: Rows) -> Verdict:
    ratios = [_longer(_by_batch(rows, name)) for name in SERIES]
    return Verdict(no_more(ratios), f"a step is {span(ratios)} times longer for {_batches(rows)}")


def sa_latency_by_batch(rows: Rows) -> Verdict:
    ratio = _longer(_by_batch(rows, "SA"))
    return Verdict(more([ratio]), f"a step is {ratio.middle:.2g} times longer for {_batches(rows)}")


def alike(rows: Rows) -> Verdict:
    pairs = [(row["streams"]["EA-6"][-1], row["streams"]["EA-2"][-1]) for row in rows]
    ratios = [_longer(pair) for pair in pairs]
    return Verdict(same(ratios), f"a step of EA-6 is {span(ratios)} times one of EA-2")


def more_efficient(rows: Rows) -> Verdict:
    """Than SA, at the longest stream."""
    pairs = [
        (row["streams"]["SA"][-1], row["streams"][name][-1]) for row in rows for name in SERIES
    ]
    time = [sa["seconds"] / ea["seconds"] for sa, ea in pairs]
    memory = [sa["total_bytes"] / ea["total_bytes"] for sa, ea in pairs]
    text = f"SA takes {span(time)} times as long and {span(memory)} times as much memory, more with"
    return Verdict(combine([more(time), more_bytes(memory)]), f"{text} a larger batch")


FIGURE = "Element-wise attention, figure 5"
STATEMENTS = (
    Statement(FIGURE, "the memory of EA-series is constant in L", constant_memory),
    Statement(FIGURE, "the memory of EA-series hardly grows with the batch", little_by_batch),
    Statement(FIGURE, "SA's memory grows linearly with L and batch", sa_memory),
    Statement(f"{FIGURE}, and table 1", "the latency of EA-series is linear in L", linear_latency),
    Statement(FIGURE, "SA's latency grows faster than linearly", sa_latency),
    Statement(
        FIGURE, "SA's latency grows exponentially, in the paper's words", exponential_latency
    ),
    Statement(FIGURE, "the batch hardly changes the latency of EA-series", latency_by_batch),
    Statement(FIGURE, "the batch changes SA's latency much", sa_latency_by_batch),
    Statement("Element-wise attention, section 4.3", "EA-2 and EA-6 hardly differ", alike),
    Statement(
        "Element-wise attention, section 4.3",
        "EA-series is much more efficient in inference than SA",
        more_efficient,
    ),
)


def table(rows: Rows, size: Size) -> str:
    heads = ["batch", "tokens"]
    for name in MODELS:
        heads += [f"{name}: memory, MB", "state, MB", "step, ms", "all, s"]
    lines = []
    for row in rows:
        for rows_at_length in zip(*(row["streams"][name] for name in MODELS), strict=True):
            cells = [str(row["batch"]), f"{rows_at_length[0]['tokens']:,}"]
            for point in rows_at_length:
                cells += [
                    number(point["total_bytes"] / 1e6),
                    number(point["state_bytes"] / 1e6),
                    number(point["milliseconds"]["median"]),
                    number(point["seconds"]),
                ]
            lines.append(cells)
    return markdown(heads, lines)


def plot(rows: Rows) -> Any:
    figure = import_figure()(figsize=(3.4 * len(rows), 6), layout="constrained")
    grid = figure.subplots(2, len(rows), sharey="row", squeeze=False)
    panels = {
        "memory, MB": lambda point: point["total_bytes"] / 1e6,
        "latency of all tokens, s": lambda point: point["seconds"],
    }
    for axes_row, (label, value) in zip(grid, panels.items(), strict=True):
        for axes, row in zip(axes_row, rows, strict=True):
            lines = {
                name: [(point["tokens"], value(point)) for point in points]
                for name, points in row["streams"].items()
            }
            plot_lines(axes, lines, xlabel="L", ylabel=label if axes is axes_row[0] else "")
            axes.set_title(f"batch {row['batch']}", fontsize=10)
    grid[0][0].legend()
    return figure


EXPERIMENT = Measured(
    module="experiments.efficiency.elementwise_inference",
    about="element-wise attention, figure 5",
    sizes={"cpu": Size(), "paper": Size(12, 768, 8192, (1, 16, 64))},
    measure=measure,
    table=table,
    plot=plot,
    statements=STATEMENTS,
    left_out={
        "cpu": "10 of BERT-base's 12 layers and longer streams, for lack of time",
        "paper": "nothing; the paper names neither its lengths nor its batches",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
