"""Peak memory bandwidth and peak matrix-product throughput of the device.

    python -m experiments.accelerator.floor

A copy reads and writes an array of float32. A product multiplies two square matrices. The default
precision of float32 products is TensorFloat-32 on a GPU and bfloat16 on a TPU; "highest" is full
precision, which this library requests.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.measured import Measured, Rows
from flax_linattn.bench import Journal, compile_program, memory_limit, run_in_turns, spread
from flax_linattn.bench.report import markdown, number
from flax_linattn.typing import Array

COPY = "copy"
FLOAT32, DEFAULT, BFLOAT16 = "float32, highest", "float32, default", "bfloat16"
PRODUCTS = {
    FLOAT32: ("float32", jax.lax.Precision.HIGHEST),
    DEFAULT: ("float32", jax.lax.Precision.DEFAULT),
    BFLOAT16: ("bfloat16", jax.lax.Precision.DEFAULT),
}


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        copy_bytes: of the array that is copied, or an eighth of the memory if that is less.
        matrix: rows and columns of the matrices.
        rounds: how often each is timed.
    """

    copy_bytes: int = 1 << 30
    matrix: int = 8192
    rounds: int = 20


def measure(size: Size, journal: Journal) -> None:
    journal.row({"what": COPY}, partial(copy, size))
    for name in PRODUCTS:
        journal.row({"what": name}, partial(product, size, name))


def copy(size: Size) -> dict[str, Any]:
    """Milliseconds of a copy, and bytes read and written a second by the median."""
    numbers = min(size.copy_bytes, int(memory_limit()) // 8) // 4
    times = time_program(lambda x: x + 1, [jnp.zeros(numbers, jnp.float32)], size.rounds)
    return {"milliseconds": times, "a_second": 2 * 4 * numbers / (1e-3 * times["median"])}


def product(size: Size, name: str) -> dict[str, Any]:
    """Milliseconds of a product of matrices, and floating point operations a second."""
    dtype, precision = PRODUCTS[name]
    n = size.matrix
    keys = jax.random.split(jax.random.key(0), 2)
    matrices = [jax.random.normal(key, (n, n), jnp.float32).astype(dtype) for key in keys]
    times = time_program(partial(jnp.matmul, precision=precision), matrices, size.rounds)
    return {"milliseconds": times, "a_second": 2 * n**3 / (1e-3 * times["median"])}


def time_program(program: Any, arguments: list[Array], rounds: int) -> dict[str, float]:
    compiled, _ = compile_program(program, arguments)
    return spread(run_in_turns({"": compiled}, arguments, rounds)[""])


def rates(size: Size) -> dict[str, float]:
    """Bytes and operations a second, by name."""
    measured = {COPY: copy(size), **{name: product(size, name) for name in PRODUCTS}}
    return {name: row["a_second"] for name, row in measured.items()}


def table(rows: Rows, size: Size) -> str:
    lines = []
    for row in rows:
        unit = "GB/s" if row["what"] == COPY else "GFLOP/s"
        times = (number(row["milliseconds"][name]) for name in ("median", "min", "max"))
        lines.append([row["what"], *times, f"{number(row['a_second'] / 1e9)} {unit}"])
    return markdown(["what", "ms", "least", "most", "rate"], lines)


EXPERIMENT = Measured(
    module="experiments.accelerator.floor",
    sizes={"paper": Size()},
    measure=measure,
    table=table,
    left_out={"paper": "float16, integers; more devices than one"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
