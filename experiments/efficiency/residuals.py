"""Memory held by attention between the forward and the backward pass.

    python -m experiments.efficiency.residuals

Bytes of the arrays that ``jax.vjp`` holds, each counted once, in the traced program. A compiler may
recompute some of them, such as a number that is broadcast over channels. The minimum is the bytes
of the inputs, the outputs, and the initial and final states. Nothing is run, so the load of the
machine has no effect.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from experiments.measured import Measured, Rows
from flax_linattn import ops
from flax_linattn.bench import Journal, inputs
from flax_linattn.bench.comparison import mechanism
from flax_linattn.bench.report import markdown, number


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the count at one scale.

    Attributes:
        mechanisms: their specs.
        lengths: T, of one row.
        num_heads: H.
        dim: K and V.
    """

    mechanisms: tuple[str, ...] = (
        "aaren",
        "elementwise_series:order=2",
        "elementwise_series:order=6",
        "taylorshift",
        "linear",
    )
    lengths: tuple[int, ...] = (1024, 4096, 16384)
    num_heads: int = 8
    dim: int = 64


def measure(size: Size, journal: Journal) -> None:
    for spec in size.mechanisms:
        for length in size.lengths:
            key = {"mechanism": spec, "tokens": length}
            journal.row(key, partial(count, size, spec, length))


def count(size: Size, spec: str, length: int) -> dict[str, Any]:
    """Bytes of the least, of what is kept, and of what is kept where a layer is made again."""
    one, run = ops.get_mechanism(spec), mechanism(spec, is_causal=True)
    make = partial(inputs, one, length, num_heads=size.num_heads, dim=size.dim)
    arrays = jax.eval_shape(make)
    y = jax.eval_shape(run, *arrays)
    state = jax.eval_shape(partial(one.init_state, 1, size.num_heads, size.dim, size.dim))
    held = saved_residuals(run, arrays)
    shapes = Counter("x".join(map(str, x.shape)) or "1" for x in held)
    return {
        "min_bytes": num_bytes((arrays, y, state, state)),
        "saved_bytes": num_bytes(held),
        "checkpoint_bytes": num_bytes(saved_residuals(jax.checkpoint(run), arrays)),
        "token_bytes": num_bytes(y),
        "shapes": dict(shapes),
    }


def saved_residuals(run: Callable[..., Any], arrays: Sequence[Any]) -> list[Any]:
    """Shapes and dtypes of the arrays that the backward pass is given."""
    made = jax.make_jaxpr(lambda *arrays: jax.tree.leaves(jax.vjp(run, *arrays)[1]))(*arrays)
    once = {id(x): x.aval for x in made.jaxpr.outvars}
    return list(once.values())


def num_bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def table(rows: Rows, size: Size) -> str:
    heads = [
        "mechanism",
        "T",
        "held, MB",
        "relative to the minimum",
        "in outputs",
        "under jax.checkpoint: relative to the minimum",
    ]
    lines = [
        [
            row["mechanism"],
            f"{row['tokens']:,}",
            number(row["saved_bytes"] / 1e6),
            number(row["saved_bytes"] / row["min_bytes"]),
            number(row["saved_bytes"] / row["token_bytes"]),
            number(row["checkpoint_bytes"] / row["min_bytes"]),
        ]
        for row in rows
    ]
    return markdown(heads, lines)


EXPERIMENT = Measured(
    module="experiments.efficiency.residuals",
    about="the papers do not mention memory held for the backward pass",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "what a compiler makes of it (see memory_analysis)"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
