"""Unrolled layers, as in the backbone, compared with one scan over stacked layers.

    python -m experiments.efficiency.stacked_blocks

Measures compile time, run time and memory of the gradient of several blocks, with and without
dropout. For the scan, the parameters of all blocks are stacked within the program, and one block is
compiled. Both programs run in turns in one process; the unrolled layers run twice, which shows the
noise of the machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.measured import Measured, Rows
from flax_linattn import models, nn
from flax_linattn.bench import Journal, compare, compile_program
from flax_linattn.bench.report import markdown, number
from flax_linattn.typing import Array

LOOP, AGAIN, SCAN = "one after another", "the same again", "scan"


@dataclasses.dataclass(frozen=True)
class Size:
    """What is measured: mechanisms, depths, and [B, T, features] with ``num_heads`` heads."""

    mechanisms: tuple[str, ...] = ("aaren", "softmax")
    depths: tuple[int, ...] = (3, 6, 12)
    dropout_rates: tuple[float, ...] = (0.0, 0.1)
    batch_size: int = 8
    length: int = 128
    features: int = 128
    num_heads: int = 8
    rounds: int = 9


def measure(size: Size, journal: Journal) -> None:
    for mechanism in size.mechanisms:
        for depth in size.depths:
            for rate in size.dropout_rates:
                key = {"mechanism": mechanism, "blocks": depth, "dropout_rate": rate}
                journal.row(key, partial(measured, size, mechanism, depth, rate))


def measured(size: Size, mechanism: str, depth: int, rate: float) -> dict[str, Any]:
    """Seconds to trace and compile, milliseconds and bytes of a gradient."""
    backbone = models.Backbone(
        1,
        size.features,
        num_layers=depth,
        num_heads=size.num_heads,
        mechanism=mechanism,
        dropout_rate=rate,
        rngs=nnx.Rngs(0),
    )
    graphs, states = zip(*(nnx.split(block) for block in backbone.blocks), strict=True)
    keys = jax.random.split(jax.random.key(0), depth) if rate else None
    x = jnp.ones((size.batch_size, size.length, size.features))

    def gradient(run: Callable[..., Array]) -> Callable[..., Any]:
        return lambda states, keys, x: jax.value_and_grad(
            lambda states: jnp.mean(jnp.square(run(graphs, states, keys, x)))
        )(states)

    programs = {LOOP: gradient(apply_loop), AGAIN: gradient(apply_loop), SCAN: gradient(apply_scan)}
    arguments = (list(states), keys, x)
    compile_program(lambda x: x + 1, (x,))  # what the first program of a process pays
    return compare(programs, arguments, size.rounds)


def apply_loop(graphs: Sequence[Any], states: Sequence[Any], keys: Array | None, h: Array) -> Array:
    """h [B, T, C] through all blocks."""
    for index, (graph, state) in enumerate(zip(graphs, states, strict=True)):
        h = apply_block(graph, state, None if keys is None else keys[index], h)
    return h


def apply_scan(graphs: Sequence[Any], states: Sequence[Any], keys: Array | None, h: Array) -> Array:
    """The same, by a scan over their stacked parameters."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    return jax.lax.scan(
        lambda h, block: (apply_block(graphs[0], block[0], block[1], h), None), h, (stacked, keys)
    )[0]


def apply_block(graph: Any, state: Any, key: Array | None, h: Array) -> Array:
    block: nn.TransformerBlock = nnx.merge(graph, state)
    return block(h, is_causal=True, dropout_key=key)


def table(rows: Rows, size: Size) -> str:
    heads = ["mechanism", "blocks", "dropout rate", "compile, s", "compile, s, scan"]
    heads += ["ms per gradient", "scan, relative", "repeat, relative", "temporary MB"]
    heads += ["temporary MB, scan"]
    lines = []
    for row in rows:
        loop, again, scan = (row[name] for name in (LOOP, AGAIN, SCAN))
        ms = [one["milliseconds"]["median"] for one in (loop, scan, again)]
        lines.append(
            [
                row["mechanism"],
                str(row["blocks"]),
                number(row["dropout_rate"]),
                number(loop["compile_seconds"]),
                number(scan["compile_seconds"]),
                number(ms[0]),
                number(ms[1] / ms[0]),
                number(ms[2] / ms[0]),
                number(loop["temporary_bytes"] / 1e6),
                number(scan["temporary_bytes"] / 1e6),
            ]
        )
    return markdown(heads, lines)


EXPERIMENT = Measured(
    module="experiments.efficiency.stacked_blocks",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "an accelerator"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
