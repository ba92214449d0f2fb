"""Cost of TaylorShift of orders 2 and 4, and the length from which the efficient form is faster.

    python -m experiments.efficiency.taylorshift_order

Forward, not causal, float32, 8 heads. Both forms of an order run in turns, the orders one after
another at each length, all in one process.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

from experiments.efficiency.crossing import where
from experiments.efficiency.suite import taylorshift_forms
from experiments.efficiency.taylorshift_crossover import measure_length, median
from experiments.measured import Measured, Rows
from flax_linattn import ops
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown, number
from flax_linattn.ops.mechanisms.taylorshift import taylorshift_crossover


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    dims: tuple[int, ...] = (4, 8, 16)
    orders: tuple[int, ...] = (2, 4)
    lengths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    rounds: int = 7
    seconds: float = 2.0


def measure(size: Size, journal: Journal) -> None:
    for dim in size.dims:
        for length in size.lengths:
            for order in size.orders:
                key = {"dim": dim, "order": order, "length": length}
                comparison = taylorshift_forms(dim, order=order)
                journal.row(key, partial(measure_length, size, comparison, length))


def numbers_cross(dim: int, order: int) -> int:
    """Tokens from which the efficient form holds fewer numbers at once, of a head.

    A chunk of c rows of N scores against the F features of a chunk of tokens and the state,
    F (d + 1).
    """
    mechanism = ops.TaylorShift(order=order)
    state = mechanism.init_state(1, 1, dim, dim)
    return math.ceil(state.normalizer.size + (state.value.size + state.normalizer.size) / _CHUNK)


_CHUNK = ops.TaylorShift().chunk_size


def curve(rows: Rows, quantity: str) -> list[tuple[float, float, float]]:
    """Lengths, and milliseconds or temporary bytes of both forms."""

    def of(row: dict[str, Any], form: str) -> float:
        return median(row, form) if quantity == "time" else row["results"][form]["temporary_bytes"]

    return [(row["length"], of(row, "direct"), of(row, "efficient")) for row in rows]


def table(rows: Rows, size: Size) -> str:
    """A line for each head dimension and order."""
    lines = []
    for dim in size.dims:
        for order in size.orders:
            chosen = [r for r in rows if (r["dim"], r["order"]) == (dim, order)]
            state = ops.TaylorShift(order=order).init_state(1, 1, dim, dim)
            lines.append(
                [
                    str(dim),
                    str(order),
                    f"{state.normalizer.size:,}",
                    f"{4 * (state.value.size + state.normalizer.size) / 1e3:,.1f}",
                    f"{taylorshift_crossover(dim, order):,}",
                    where(curve(chosen, "time")),
                    f"{numbers_cross(dim, order):,}",
                    where(curve(chosen, "memory")),
                    *(number(median(chosen[-1], form)) for form in ("direct", "efficient")),
                ]
            )
    last = f"at {size.lengths[-1]:,}, ms"
    heads = ["d", "order", "features", "state of a head, kB", "N0", "N0 measured", "N1"]
    heads += ["N1 measured", f"direct {last}", f"efficient {last}"]
    return markdown(heads, lines)


EXPERIMENT = Measured(
    module="experiments.efficiency.taylorshift_order",
    about="section 3.1: orders above 2, which the paper leaves out of its efficient form",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "causal attention, training, accelerators"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
