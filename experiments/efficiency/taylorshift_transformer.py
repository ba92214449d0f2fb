"""Inference time and memory of whole transformers by length: TaylorShift, softmax and others.

    python -m experiments.efficiency.taylorshift_transformer

TaylorShift paper, figure 3 (16 heads, d = 32) and figure 9 (other numbers of heads, and other
mechanisms with the 8 heads of its ListOps models). The paper's softmax attention computes all
weights at once. Softmax attention in blocks and XLA's own are also measured, and the best of the
three decides. Memory is that of the compiled program, including weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax

from experiments.efficiency.crossing import where
from experiments.efficiency.programs import Program, compare_programs, forward, observations
from experiments.efficiency.taylorshift_models import DEPARTURES, Classifier, Kind, softmaxes
from experiments.measured import Measured, Rows
from experiments.rules import (
    Points,
    Range,
    at,
    exponent,
    grows_less,
    more,
    more_bytes,
    no_more,
    no_more_bytes,
    span,
)
from experiments.statements import Judge, Statement
from experiments.verdicts import NotMeasuredError, Verdict, combine, with_note
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure, plot_lines
from flax_linattn.bench.report import markdown, number

IN_FEATURES = 17
"""Symbols of ListOps."""

PRINTED = "softmax, all weights"
"""The paper's."""
BEST = "the best softmax"
"""In time, and in memory, of those with 16 heads at each N."""
EFFICIENT, DIRECT = "TaylorShift, efficient", "TaylorShift, direct"

FIGURE_3 = {
    **{f"softmax, {name}": kind for name, kind in softmaxes(16).items()},
    DIRECT: Kind("taylorshift", 16, "direct"),
    EFFICIENT: Kind("taylorshift", 16, "efficient"),
}
OTHERS = ("Linformer", "RFA", "Performer", "Nystromformer", "Reformer", "EVA")
FIGURE_9 = {
    **{f"efficient, h = {h}": Kind("taylorshift", h, "efficient") for h in (8, 32, 64)},
    "softmax, h = 8": Kind("softmax", 8, "parallel"),
    **dict(
        zip(
            OTHERS,
            (
                Kind(name, 8)
                for name in ("linformer", "rfa", "performer", "nystrom", "reformer", "eva")
            ),
            strict=True,
        )
    ),
}
KINDS = FIGURE_3 | FIGURE_9
SOFTMAXES = tuple(name for name in FIGURE_3 if name.startswith("softmax"))


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    model: str = "taylorshift-listops"
    lengths: tuple[int, ...] = (256, 512, 900, 1500, 2000, 4000)
    """The lengths of the paper's statements are among them."""
    rounds: int = 5
    seconds: float = 20.0
    memory_limit_gb: float = 4.0


def measure(size: Size, journal: Journal) -> None:
    for length in size.lengths:
        journal.row({"length": length}, partial(measure_length, size, length))
        jax.clear_caches()


def measure_length(size: Size, length: int) -> dict[str, Any]:
    def program(kind: Kind) -> Program:
        return forward(Classifier(size.model, kind, IN_FEATURES, length), kind.form)

    programs = ((name, program(kind)) for name, kind in KINDS.items())
    x = observations(1, length, IN_FEATURES)
    limit = 1e9 * size.memory_limit_gb
    return {"results": compare_programs(programs, x, size.rounds, size.seconds, limit)}


def cost_range(row: dict[str, Any], name: str, quantity: str) -> Range | None:
    """Milliseconds or bytes; None of what was not run."""
    if name == BEST:
        softmax_costs = [cost_range(row, softmax, quantity) for softmax in SOFTMAXES]
        return min((v for v in softmax_costs if v is not None), default=None)
    result = row["results"].get(name)
    if result is None:
        return None
    if quantity == "memory":
        return Range.exact(result["total_bytes"])
    return Range.of(result["milliseconds"]) if "milliseconds" in result else None


def value(row: dict[str, Any], name: str, quantity: str) -> float | None:
    """The same without its spread."""
    cost = cost_range(row, name, quantity)
    return None if cost is None else cost.middle


def measured_names(rows: Rows, names: Iterable[str]) -> list[str]:
    """The names that have results in these rows."""
    return [name for name in names if any(name in row["results"] for row in rows)]


def cost_ratios(rows: Rows, quantity: str, name: str, other: str) -> list[tuple[int, Range]]:
    """One's quantity over the other's by length, where both were measured."""
    points = [
        (r["length"], cost_range(r, name, quantity), cost_range(r, other, quantity)) for r in rows
    ]
    return [(n, a.over(b)) for n, a, b in points if a is not None and b is not None]


def middles(points: Sequence[tuple[int, Range]]) -> Points:
    return [(n, ratio.middle) for n, ratio in points]


def against_both(judge: Callable[[Rows, str], Verdict]) -> Judge:
    """Against the best softmax of all, which decides, and the paper's."""
    return lambda rows: with_note(judge(rows, BEST), judge(rows, PRINTED))


def overtakes(quantity: str, printed: int) -> Judge:
    """The judge of "from N tokens on the efficient form needs less than softmax"."""

    def judge(rows: Rows, other: str) -> Verdict:
        points = cost_ratios(rows, quantity, other, EFFICIENT)
        leads = [lead for n, lead in points if n >= printed]
        if not leads:
            raise NotMeasuredError(f"nothing was measured from {printed:,} tokens on")
        longest, last = points[-1]
        word = more(leads) if quantity == "time" else more_bytes(lead.middle for lead in leads)
        crossed = where([(n, lead, 1.0) for n, lead in middles(points)])
        fraction = f"{100 / last.middle:.0f} % of its {quantity} at {longest:,}"
        return Verdict(word, f"N at the crossing with {other}: {crossed}, and {fraction}")

    return against_both(judge)


def memory_fraction(length: int, limit: float) -> Judge:
    """The judge of "at N tokens it needs at most this fraction of softmax's memory"."""

    def judge(rows: Rows, other: str) -> Verdict:
        ratio = at(middles(cost_ratios(rows, "memory", EFFICIENT, other)), length)
        return Verdict(no_more_bytes([ratio / limit]), f"{100 * ratio:.0f} % of that of {other}")

    return against_both(judge)


def faster_and_half(rows: Rows, other: str) -> Verdict:
    """From 2,000 tokens on: faster, with no more than half the memory."""
    lead = [ratio for n, ratio in cost_ratios(rows, "time", other, EFFICIENT) if n >= 2000]
    memory = [y for n, y in middles(cost_ratios(rows, "memory", EFFICIENT, other)) if n >= 2000]
    word = combine([more(lead), no_more_bytes(ratio / 0.5 for ratio in memory)])
    text = f"{span(lead)} times faster, with {span(100 * ratio for ratio in memory)} % of the"
    return Verdict(word, f"{text} memory of {other}")


def judge_short(rows: Rows, other: str) -> Verdict:
    """Below 1,000 tokens the direct form takes no more time nor memory than softmax."""
    time = [ratio for n, ratio in cost_ratios(rows, "time", DIRECT, other) if n < 1000]
    memory = [y for n, y in middles(cost_ratios(rows, "memory", DIRECT, other)) if n < 1000]
    word = combine([no_more(time), no_more_bytes(memory)])
    return Verdict(
        word, f"{span(time)} times the time and {span(memory)} times the memory of {other}"
    )


def against_others(names: Sequence[str], *, competitive: bool) -> Judge:
    """The judge of "it is (not) as fast as the other efficient mechanisms at the longest N"."""

    def judge(rows: Rows) -> Verdict:
        row = rows[-1]
        others = measured_names(rows, OTHERS)
        measured_times = {name: cost_range(row, name, "time") for name in (*names, *others)}
        times = {name: time for name, time in measured_times.items() if time is not None}
        if times.keys() != measured_times.keys():
            raise NotMeasuredError("not all of them were run")
        best = min(others, key=lambda name: times[name])
        ratios = [times[name].over(times[best]) for name in names]
        word = no_more(ratios) if competitive else more(ratios)
        texts = (f"{n}: {r.middle:.2g}" for n, r in zip(names, ratios, strict=True))
        ours = f"time over that of {best} at N = {row['length']:,}: {'; '.join(texts)}"
        return Verdict(word, ours)

    return judge


def judge_scaling(rows: Rows) -> Verdict:
    """With many heads its time grows more slowly than that of any other."""

    def power(name: str) -> float:
        return exponent([(r["length"], t) for r in rows if (t := value(r, name, "time"))])

    best = min(map(power, ("efficient, h = 32", "efficient, h = 64")))
    others = list(map(power, measured_names(rows, OTHERS)))
    word = grows_less(best, others)
    text = f"time grows as N^{best:.2f} at best, theirs as N^{min(others):.2f} to {max(others):.2f}"
    return Verdict(word, text)


STATEMENTS = (
    Statement(
        "TaylorShift, section 5.2 and figure 3 (the abstract says 800)",
        "with 16 heads the efficient form needs less memory than softmax from 900 tokens on",
        overtakes("memory", 900),
    ),
    Statement(
        "TaylorShift, section 5.2 and figure 3 (the abstract says 1,700)",
        "with 16 heads the efficient form is faster than softmax from 1,800 tokens on",
        overtakes("time", 1800),
    ),
    Statement(
        "TaylorShift, section 5.2",
        "at 1,500 tokens the efficient form needs half of softmax's memory",
        memory_fraction(1500, 0.5),
    ),
    Statement(
        "TaylorShift, section 5.2",
        "at 2,000 tokens the efficient form needs 35 % of softmax's memory",
        memory_fraction(2000, 0.35),
    ),
    Statement(
        "TaylorShift, conclusion",
        "beyond 2,000 tokens the efficient form is faster with less than half the memory",
        against_both(faster_and_half),
    ),
    Statement(
        "TaylorShift, section 5.2 and abstract",
        "for short sequences the direct form stays competitive in time and memory",
        against_both(judge_short),
    ),
    Statement(
        "TaylorShift, figure 9",
        "with 8 heads of 64 the efficient form is not competitive with Linformer and others",
        against_others(["efficient, h = 8"], competitive=False),
    ),
    Statement(
        "TaylorShift, figure 9",
        "with 32 or 64 heads the efficient form is very competitive with Linformer and others",
        against_others(["efficient, h = 32", "efficient, h = 64"], competitive=True),
    ),
    Statement(
        "TaylorShift, figure 9",
        "with 32 or 64 heads the efficient form scales better than Linformer and others",
        judge_scaling,
    ),
)


def table(rows: Rows, size: Size) -> str:
    heads = ["model", *(f"N = {row['length']:,}: ms / MB" for row in rows)]
    lines = [[name, *(_cell(row, name) for row in rows)] for name in measured_names(rows, KINDS)]
    best = ["the best softmax of 16 heads: time / memory"]
    best += [" / ".join(_best(row, what) for what in ("time", "memory")) for row in rows]
    return markdown(heads, [*lines, best])


def _cell(row: dict[str, Any], name: str) -> str:
    time, memory = value(row, name, "time"), value(row, name, "memory")
    return f"{'not run' if time is None else number(time)} / {number((memory or 0) / 1e6)}"


def _best(row: dict[str, Any], quantity: str) -> str:
    costs = {name: v for name in SOFTMAXES if (v := value(row, name, quantity)) is not None}
    return min(costs, key=lambda name: costs[name]).removeprefix("softmax, ") if costs else "-"


def plot(rows: Rows) -> Any:
    figure = import_figure()(figsize=(9.6, 6.4), layout="constrained")
    grid = figure.subplots(2, 2, sharey="row")
    columns = (("figure 3: 16 heads of 32", FIGURE_3), ("figure 9", FIGURE_9))
    for axes_row, (quantity, unit) in zip(grid, (("time", "ms"), ("memory", "MB")), strict=True):
        for axes, (title, kinds) in zip(axes_row, columns, strict=True):
            scale = 1e-6 if quantity == "memory" else 1
            lines = {}
            for name in measured_names(rows, kinds):
                points = [(row["length"], value(row, name, quantity)) for row in rows]
                lines[name] = [(x, scale * y) for x, y in points if y is not None]
            label = f"{quantity}, {unit}" if axes is axes_row[0] else ""
            plot_lines(axes, lines, xlabel="N", ylabel=label)
            axes.set_title(title, fontsize=10)
    grid[0][0].legend(fontsize=7)
    grid[0][1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


EXPERIMENT = Measured(
    module="experiments.efficiency.taylorshift_transformer",
    about="TaylorShift, figures 3 and 9: whole transformers of the ListOps size",
    sizes={
        "cpu": Size(),
        "paper": Size(lengths=(256, 512, 900, 1500, 2000, 4000, 8000, 16000), memory_limit_gb=60.0),
    },
    measure=measure,
    table=table,
    plot=plot,
    statements=STATEMENTS,
    left_out={
        "cpu": f"{DEPARTURES}; longer sequences",
        "paper": DEPARTURES,
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
