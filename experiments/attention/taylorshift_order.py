"""Difference between TaylorShift of each order and softmax of the same scores, by temperature.

    python -m experiments.attention.taylorshift_order

Scores are tau cos(q, k), without the factor sqrt(N / d), on normal numbers and on a real sequence
(``taylor.py``).
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from numpy.typing import NDArray

from experiments.attention.taylor import sources
from experiments.measured import Measured, Rows
from flax_linattn import ops
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    orders: tuple[int, ...] = (2, 4, 6, 8)
    temperatures: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0)


def measure(size: Size, journal: Journal) -> None:
    with jax.enable_x64(True):
        for source, (q, k, _) in sources().items():
            for temperature in size.temperatures:
                for order in size.orders:
                    key = {"source": source, "temperature": temperature, "order": order}
                    journal.row(key, partial(distance, q, k, temperature, order))


def distance(q: NDArray, k: NDArray, temperature: float, order: int) -> dict[str, float]:
    """How much weight lies on the wrong tokens, not causal, in float64.

    Returns:
        ``weights``: half the sum of differences, the mean over queries (0 to 1).
    """
    q, k = (jnp.asarray(x) for x in (q, k))
    unit_q, unit_k = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    softmax = ops.weights(ops.get_mechanism("softmax"), unit_q, unit_k, scale=temperature)
    mechanism = ops.get_mechanism("taylorshift", order=order, normalize_output=False)
    weights = ops.weights(mechanism, q, k, temperature=jnp.full(q.shape[2], temperature))
    return {"weights": float(jnp.mean(jnp.sum(jnp.abs(weights - softmax), axis=-1)) / 2)}


def table(rows: Rows, size: Size) -> str:
    """One line per temperature; for both sources a column an order."""
    names = list(dict.fromkeys(row["source"] for row in rows))
    weights: dict[Any, float] = {
        (row["source"], row["temperature"], row["order"]): row["weights"] for row in rows
    }
    heads = ["temperature", *(f"order {order}, {name}" for name in names for order in size.orders)]
    lines = [
        [
            f"{temperature:g}",
            *(
                f"{weights[name, temperature, order]:.1g}"
                for name in names
                for order in size.orders
            ),
        ]
        for temperature in size.temperatures
    ]
    return markdown(heads, lines)


EXPERIMENT = Measured(
    module="experiments.attention.taylorshift_order",
    about="section 3.1: the Taylor softmax of every order, which the paper measures for none",
    sizes={"": Size()},
    measure=measure,
    table=table,
    left_out={"": "nothing"},
    is_deterministic=True,
)

if __name__ == "__main__":
    EXPERIMENT.main()
