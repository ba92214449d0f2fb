"""Inference time and memory of whole transformers against N: TaylorShift, softmax and others.

    python -m experiments.efficiency.taylorshift_transformer

TaylorShift paper, figure 3 (16 heads, d = 32) and figure 9 (other numbers of heads and other
mechanisms at the 8 heads of its ListOps models). The paper's softmax attention makes all its
weights at once; beside it stand softmax attention in blocks and XLA's, and the best of the three
decides. Memory is what the compiled program needs, weights included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from experiments.claims import (
    FAILS,
    HOLDS,
    OPEN,
    POWER,
    SAME_BYTES,
    TIE,
    Claim,
    NotMeasuredError,
    Points,
    Verdict,
    all_of,
    at,
    by_the_best,
    exponent,
    more,
    no_more,
    span,
)
from experiments.efficiency.crossing import where
from experiments.efficiency.programs import Program, compare_programs, forward, observations
from experiments.efficiency.taylorshift_models import DEPARTURES, Classifier, Kind, softmaxes
from experiments.measured import Measured, Rows
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import draw_lines, import_figure
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
OTHERS = ("Linformer", "RFA", "Performer", "Nystromformer")
FIGURE_9 = {
    **{f"efficient, h = {h}": Kind("taylorshift", h, "efficient") for h in (8, 32, 64)},
    "softmax, h = 8": Kind("softmax", 8, "parallel"),
    **dict(
        zip(
            OTHERS,
            (Kind(name, 8) for name in ("linformer", "rfa", "performer", "nystrom")),
            strict=True,
        )
    ),
}
KINDS = FIGURE_3 | FIGURE_9
SOFTMAXES = tuple(name for name in FIGURE_3 if name.startswith("softmax"))


@dataclasses.dataclass(frozen=True)
class Size:
    """What is measured."""

    model: str = "taylorshift-listops"
    lengths: tuple[int, ...] = (256, 512, 900, 1500, 2000, 4000)
    """Those of the paper's statements among them."""
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


def value(row: dict[str, Any], name: str, quantity: str) -> float | None:
    """Milliseconds or bytes; None of what was not run."""
    if name == BEST:
        found = [value(row, softmax, quantity) for softmax in SOFTMAXES]
        return min((v for v in found if v is not None), default=None)
    result = row["results"][name]
    if quantity == "memory":
        return result["total_bytes"]
    return result["milliseconds"]["median"] if "milliseconds" in result else None


def shares(rows: Rows, quantity: str, name: str, other: str) -> Points:
    """One's quantity over the other's by length, where both were measured."""
    points = [(r["length"], value(r, name, quantity), value(r, other, quantity)) for r in rows]
    return [(n, a / b) for n, a, b in points if a is not None and b is not None]


Judge = Callable[[Rows], Verdict]


def against_both(judge: Callable[[Rows, str], Verdict]) -> Judge:
    """Against the best softmax of all, which decides, and the paper's."""
    return lambda rows: by_the_best(judge(rows, BEST), judge(rows, PRINTED))


def overtakes(quantity: str, printed: int) -> Judge:
    """The judge of "from so many tokens on the efficient form needs less than softmax"."""
    tie = TIE if quantity == "time" else SAME_BYTES

    def judge(rows: Rows, other: str) -> Verdict:
        points = shares(rows, quantity, EFFICIENT, other)
        from_there = [share for n, share in points if n >= printed]
        if not from_there:
            raise NotMeasuredError(f"nothing was measured from {printed:,} tokens on")
        longest, last = points[-1]
        below = all(share < 1 / tie for share in from_there)
        crossed = where([(n, 1.0, share) for n, share in points])
        text = f"{other} is passed at N = {crossed}, {100 * last:.0f} % of its {quantity} at "
        text += f"{longest:,}"
        return Verdict(HOLDS if below else FAILS if last > 1 / tie else OPEN, text)

    return against_both(judge)


def memory_share(length: int, most: float) -> Judge:
    """The judge of "at so many tokens it needs at most this share of softmax's memory"."""

    def judge(rows: Rows, other: str) -> Verdict:
        share = at(shares(rows, "memory", EFFICIENT, other), length)
        word = HOLDS if share <= most * SAME_BYTES else FAILS
        return Verdict(word, f"{100 * share:.0f} % of that of {other}")

    return against_both(judge)


def faster_and_half(rows: Rows, other: str) -> Verdict:
    """From 2,000 tokens on: faster, with less than half the memory."""
    time, memory = (
        [share for n, share in shares(rows, what, EFFICIENT, other) if n >= 2000]
        for what in ("time", "memory")
    )
    word = all_of([more(1 / share for share in time), no_more(memory, 0.5)])
    text = f"{span(1 / share for share in time) if time else '-'} times faster, with "
    shown = span(100 * share for share in memory) if memory else "-"
    return Verdict(word, f"{text}{shown} % of the memory of {other}")


def short(rows: Rows, other: str) -> Verdict:
    """Below 1,000 tokens the direct form takes no more than softmax, within a tie."""
    time, memory = (
        [share for n, share in shares(rows, what, DIRECT, other) if n < 1000]
        for what in ("time", "memory")
    )
    word = all_of([no_more(time), no_more(memory)])
    return Verdict(word, f"{span(time)} times the time, {span(memory)} the memory of {other}")


def against_others(names: Sequence[str], *, competitive: bool) -> Judge:
    """The judge of "it is (not) as fast as the other efficient mechanisms at the longest N"."""

    def judge(rows: Rows) -> Verdict:
        row = rows[-1]
        found = {name: value(row, name, "time") for name in (*names, *OTHERS)}
        times = {name: time for name, time in found.items() if time is not None}
        if times.keys() != found.keys():
            raise NotMeasuredError("not all of them were run")
        best = min(OTHERS, key=lambda name: times[name])
        ratios = [times[name] / times[best] for name in names]
        words = [HOLDS if (ratio < TIE) == competitive else FAILS for ratio in ratios]
        shown = ", ".join(f"{n} {r:.2g}" for n, r in zip(names, ratios, strict=True))
        return Verdict(all_of(words), f"times the time of {best} at {row['length']:,}: {shown}")

    return judge


def scaling(rows: Rows) -> Verdict:
    """With many heads its time grows more slowly than that of any other."""

    def power(name: str) -> float:
        return exponent([(r["length"], t) for r in rows if (t := value(r, name, "time"))])

    best = min(map(power, ("efficient, h = 32", "efficient, h = 64")))
    others = list(map(power, OTHERS))
    word = HOLDS if best < min(others) - POWER else FAILS
    text = f"time grows as N^{best:.2f} at best, theirs as N^{min(others):.2f} to {max(others):.2f}"
    return Verdict(word, text)


CLAIMS = (
    Claim(
        "TaylorShift, section 5.2 (its abstract says 800)",
        "with 16 heads the efficient form needs less memory than softmax from 900 tokens on",
        overtakes("memory", 900),
    ),
    Claim(
        "TaylorShift, section 5.2 (its abstract says 1,700)",
        "with 16 heads the efficient form is faster than softmax from 1,800 tokens on",
        overtakes("time", 1800),
    ),
    Claim(
        "TaylorShift, section 5.2",
        "at 1,500 tokens the efficient form needs half of softmax's memory",
        memory_share(1500, 0.5),
    ),
    Claim("TaylorShift, section 5.2", "at 2,000 tokens only 35 % of it", memory_share(2000, 0.35)),
    Claim(
        "TaylorShift, conclusion",
        "beyond 2,000 tokens the efficient form is faster with less than half the memory",
        against_both(faster_and_half),
    ),
    Claim(
        "TaylorShift, section 5.2 and abstract",
        "for short sequences the direct form stays competitive in time and memory",
        against_both(short),
    ),
    Claim(
        "TaylorShift, figure 9",
        "with 8 heads of 64 the efficient form is not competitive with Linformer and others",
        against_others(["efficient, h = 8"], competitive=False),
    ),
    Claim(
        "TaylorShift, figure 9",
        "with 32 or 64 heads it is very competitive with them",
        against_others(["efficient, h = 32", "efficient, h = 64"], competitive=True),
    ),
    Claim("TaylorShift, figure 9", "with 32 or 64 heads it scales better than they do", scaling),
)


def table(rows: Rows, size: Size) -> str:
    heads = ["model", *(f"N = {row['length']:,}: ms / MB" for row in rows)]
    lines = [[name, *(_cell(row, name) for row in rows)] for name in KINDS]
    best = ["the best softmax of 16 heads: time / memory"]
    best += [" / ".join(_best(row, what) for what in ("time", "memory")) for row in rows]
    return markdown(heads, [*lines, best])


def _cell(row: dict[str, Any], name: str) -> str:
    time, memory = value(row, name, "time"), value(row, name, "memory")
    return f"{'not run' if time is None else number(time)} / {number((memory or 0) / 1e6)}"


def _best(row: dict[str, Any], quantity: str) -> str:
    found = {name: v for name in SOFTMAXES if (v := value(row, name, quantity)) is not None}
    return min(found, key=lambda name: found[name]).removeprefix("softmax, ") if found else "-"


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
    about="TaylorShift, figures 3 and 9: whole transformers of the ListOps size",
    sizes={
        "cpu": Size(),
        "paper": Size(lengths=(256, 512, 900, 1500, 2000, 4000, 8000, 16000), memory_limit_gb=60.0),
    },
    measure=measure,
    table=table,
    draw=draw,
    claims=CLAIMS,
    left_out={
        "cpu": f"{DEPARTURES}; Reformer and EVA, which the library does not have; longer sequences",
        "paper": f"{DEPARTURES}; Reformer and EVA, which the library does not have",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
