"""TaylorShift expanded around another point: effect of the expansion point.

    python -m experiments.attention.expansion_point

The TaylorShift paper expands the exponential around 0, because another point a "is just a shift
of the input and a scaling of the output", which training can adjust (appendix D.1). The factor
exp(a) cancels in the normalization. The shift subtracts a constant from all scores. A layer of unit
vectors can represent it with one more channel, in which all queries and all keys are constant.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
from numpy.typing import NDArray

from experiments.attention.taylor import sources
from experiments.measured import Measured, Rows
from experiments.statements import Statement
from experiments.verdicts import FAILS, HOLDS, Rule, Verdict, Word
from flax_linattn import ops
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

ROUNDING = 1e-12
EQUAL = Rule(
    "Attention weights are equal if their total variation distance, averaged over queries, is at "
    f"most {ROUNDING:g}, in float64.",
    "2026-11-29T21:40:00+00:00",
)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    points: tuple[float, ...] = (-1.0, -0.5, 0.5, 1.0, 2.0)
    temperature: float = 2.0


def measure(size: Size, journal: Journal) -> None:
    with jax.enable_x64(True):
        for source, (q, k, _) in sources().items():
            for point in size.points:
                key = {"source": source, "point": point}
                journal.row(key, partial(distances, q, k, size.temperature, point))


def distances(q: NDArray, k: NDArray, temperature: float, point: float) -> dict[str, float]:
    """Total variation distances to the weights of the expansion around ``point``, not causal.

    Returns:
        Means over queries, 0 to 1. ``around_0``: distance of the expansion around 0 of the same
        queries and keys; ``unscaled``: of the expansion around ``point`` without the factor
        exp(point); ``shifted``: of the expansion around 0 with one more channel.
    """
    q, k = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in map(jnp.asarray, (q, k)))
    around = (0.5, 1 - point, 1 - point + point**2 / 2)
    factor = math.exp(point)
    expected = weights(q, k, temperature, tuple(factor * c for c in around))
    # tau' (s (q . k) - (1 - s)) = tau q . k - a by one more channel, for tau' = tau + |a|.
    total = temperature + abs(point)
    own, rest = (math.sqrt(part / total) for part in (temperature, abs(point)))
    sign = -math.copysign(1.0, point)
    wide_q, wide_k = (
        jnp.concatenate([own * x, jnp.full((*x.shape[:-1], 1), last * rest)], axis=-1)
        for x, last in ((q, 1.0), (k, sign))
    )
    others = {
        "around_0": weights(q, k, temperature, (0.5, 1.0, 1.0)),
        "unscaled": weights(q, k, temperature, around),
        "shifted": weights(wide_q, wide_k, total, (0.5, 1.0, 1.0)),
    }
    return {
        name: float(jnp.mean(jnp.sum(jnp.abs(other - expected), axis=-1)) / 2)
        for name, other in others.items()
    }


def weights(
    q: jax.Array, k: jax.Array, temperature: float, coefficients: tuple[float, ...]
) -> jax.Array:
    """The weights of TaylorShift with a polynomial a x^2 + b x + c."""
    mechanism = ops.get_mechanism("taylorshift", coefficients=coefficients, normalize_output=False)
    return ops.weights(mechanism, q, k, temperature=jnp.full(q.shape[2], temperature))


def judge_scaling(rows: Rows) -> Verdict:
    """The verdict on "the factor exp(a) changes nothing"."""
    return equal(rows, "unscaled")


def judge_shift(rows: Rows) -> Verdict:
    """The verdict on "the rest is a shift of the input"; without it weights differ."""
    word, ours = equal(rows, "shifted")
    apart = [row["around_0"] for row in rows]
    return Verdict(
        word,
        f"{ours} with one more channel, {min(apart):.2g} to {max(apart):.2g} without it",
    )


def equal(rows: Rows, name: str) -> Verdict:
    """The verdict on "these weights are equal"."""
    error = max(row[name] for row in rows)
    return Verdict(
        Word(HOLDS if error <= ROUNDING else FAILS, EQUAL), f"distance at most {error:.1g}"
    )


def table(rows: Rows, size: Size) -> str:
    """One line per expansion point, with the distances for both sources."""
    names = list(dict.fromkeys(row["source"] for row in rows))
    parts = {
        "around_0": "expansion around 0",
        "unscaled": "without exp(a)",
        "shifted": "around 0, one more channel",
    }
    by = {(row["source"], row["point"]): row for row in rows}
    heads = ["a", *(f"{text}, {name}" for name in names for text in parts.values())]
    lines = [
        [f"{point:g}", *(f"{by[name, point][part]:.1g}" for name in names for part in parts)]
        for point in size.points
    ]
    caption = "Total variation distance to the weights of the expansion around a:"
    return f"{caption}\n\n{markdown(heads, lines)}"


WHERE = "TaylorShift, appendix D.1"

EXPERIMENT = Measured(
    module="experiments.attention.expansion_point",
    about="TaylorShift, appendix D.1: the point of the Taylor expansion",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=(
        Statement(
            WHERE,
            "expanding around another point a scales the output by a factor that cancels",
            judge_scaling,
        ),
        Statement(
            WHERE,
            "expanding around another point a shifts the input, which a layer can represent",
            judge_shift,
        ),
    ),
    left_out={"": "whether training learns the shift"},
    is_deterministic=True,
)

if __name__ == "__main__":
    EXPERIMENT.main()
