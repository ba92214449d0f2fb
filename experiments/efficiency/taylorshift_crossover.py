"""The length from which TaylorShift's efficient form is faster than its direct form.

    python -m experiments.efficiency.taylorshift_crossover

Both forms, and the form that ``auto`` chooses, are timed in turns in one process: forward, float32,
8 heads. The paper's N0 counts operations with all d^2 products; our features are the d (d + 1) / 2
distinct products.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from experiments.efficiency.crossing import crossing, crossing_text, where
from experiments.efficiency.suite import taylorshift_forms
from experiments.measured import Measured, Rows
from experiments.rules import BOUNDS, STATED, TIE, within
from experiments.statements import Statement
from experiments.verdicts import Rule, Verdict, combine
from flax_linattn import ops
from flax_linattn.bench import Comparison, Journal
from flax_linattn.bench.comparison import FORWARD, OURS
from flax_linattn.bench.report import markdown, number


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    dims: tuple[int, ...] = (16, 32, 64)
    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192)
    rounds: int = 9
    seconds: float = 3.0


def measure(size: Size, journal: Journal) -> None:
    for dim in size.dims:
        for is_causal in (False, True):
            comparison = taylorshift_forms(dim, is_causal=is_causal)
            for length in size.lengths:
                key = {"dim": dim, "causal": is_causal, "length": length}
                journal.row(key, partial(measure_length, size, comparison, length))


def measure_length(size: Size, comparison: Comparison, length: int) -> dict[str, Any]:
    prepared = comparison.prepare(length, FORWARD, memory_limit=8e9)
    return comparison.measure(prepared, length, size.rounds, size.seconds)


def median(row: dict, program: str) -> float:
    return row["results"][program]["milliseconds"]["median"]


def curves(rows: Rows, dim: int, *, is_causal: bool) -> list[tuple[int, float, float]]:
    """Lengths, and milliseconds of both forms."""
    chosen = [row for row in rows if (row["dim"], row["causal"]) == (dim, is_causal)]
    return [(row["length"], median(row, "direct"), median(row, "efficient")) for row in chosen]


NEAR = Rule(
    f"A crossing in time agrees with the paper if it is within a factor of {TIE:g} of the stated "
    "length, because the ratio of the times grows as N.",
    STATED,
)


def crosses_at_n0(rows: Rows) -> Verdict:
    """Not causal, in our forms, within the factor of a tie."""
    words, texts = [], []
    for dim in dict.fromkeys(row["dim"] for row in rows):
        crossing_range = crossing(curves(rows, dim, is_causal=False))
        fraction = crossing_range.per(ops.taylorshift_n0(dim))
        words.append(within(fraction, 1 / TIE, TIE, NEAR, BOUNDS))
        texts.append(f"{crossing_text(crossing_range)} ({fraction.middle:.2g} N0, d = {dim})")
    return Verdict(combine(words), f"our forms cross at {', '.join(texts)}")


STATEMENTS = (
    Statement(
        "TaylorShift, equation 7",
        "the efficient form becomes faster than direct at N0 tokens",
        crosses_at_n0,
    ),
)


def table(rows: Rows, size: Size) -> str:
    lines = []
    for dim in size.dims:
        cells, slow = [], []
        for is_causal in (False, True):
            chosen = [r for r in rows if (r["dim"], r["causal"]) == (dim, is_causal)]
            cells.append(where(curves(rows, dim, is_causal=is_causal)))
            best = (min(median(r, "direct"), median(r, "efficient")) for r in chosen)
            slow.append(max(median(r, OURS) / b for r, b in zip(chosen, best, strict=True)))
        n0 = ops.taylorshift_n0(dim)
        lines.append([str(dim), f"{n0:,}", *cells, " / ".join(map(number, slow))])
    heads = ["d", "N0 (paper)", "not causal", "causal", "`auto` over the better form, at worst"]
    return markdown(heads, lines)


EXPERIMENT = Measured(
    module="experiments.efficiency.taylorshift_crossover",
    about="equation 7: N0, from which the efficient form takes fewer operations",
    sizes={"cpu": Size(), "paper": Size(lengths=(*Size.lengths, 16384, 32768))},
    measure=measure,
    table=table,
    statements=STATEMENTS,
    left_out={"cpu": "nothing", "paper": "nothing"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
