"""Precision that quadratic expressive attention loses in float32 if scores nearly vanish.

    python -m experiments.attention.conditioning

A query reads the state of a history of keys whose largest cosine with the query is given. The error
is that of the float32 output compared with the float64 reference, relative to the largest output:
the median over samples, compared with the prediction eps |q|^2 sum |k|^2 / sum z^2.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from experiments.measured import Measured, Rows
from flax_linattn import ops
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

KEY_DIM = 64
HISTORIES = {
    "1 key": (1, 1),
    "32 equal keys": (32, 1),
    "32 keys": (32, 32),
    "1,000 keys, any query": (1000, 1000),
}
"""Number of keys, and how many different ones."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    cosines: tuple[float, ...] = (1e-1, 1e-2, 1e-3, 1e-4)
    draws: int = 11


def measure(size: Size, journal: Journal) -> None:
    for name, (_, different) in HISTORIES.items():
        # Where keys span the space the query is any.
        for cosine in size.cosines if different < KEY_DIM else size.cosines[:1]:
            journal.row({"history": name, "cosine": cosine}, partial(median, size, name, cosine))


def median(size: Size, history: str, cosine: float) -> dict[str, Any]:
    """The error, and what is predicted."""
    rng = np.random.default_rng(0)
    pairs = [errors(*sample(rng, *HISTORIES[history], cosine)) for _ in range(size.draws)]
    error, predicted = np.median(pairs, axis=0)
    return {"error": float(error), "predicted": float(predicted)}


def sample(rng: np.random.Generator, keys: int, different: int, cosine: float) -> list[NDArray]:
    """A query, keys of length 1 and values [1, ., 1, K]; ``cosine`` is that with the first key.

    The rest of the query is orthogonal to all keys. Where they span the space it is any.
    """
    k, v = rng.normal(size=(2, different, KEY_DIM))
    q = rng.normal(size=(1, KEY_DIM))
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    if different < KEY_DIM:
        basis = np.linalg.qr(k.T)[0]
        q -= q @ basis @ basis.T
        q = cosine * k[:1] + np.sqrt(1 - cosine**2) * q / np.linalg.norm(q)
    k = np.tile(k, (keys // different, 1))
    v = rng.normal(size=(keys, KEY_DIM))
    return [x[None, :, None].astype(np.float32) for x in (q, k, v)]


def errors(q: NDArray, k: NDArray, v: NDArray) -> tuple[float, float]:
    """The error, and what is predicted."""
    mechanism: Any = ops.get_mechanism("expressive_quadratic")
    with jax.enable_x64(True):
        expected = mechanism.reference(*(jnp.asarray(x, jnp.float64) for x in (q, k, v)))
        expected = np.asarray(expected)[:, 0]
    _, state = mechanism.attend(*map(jnp.asarray, (k, k, v)), return_state=True)
    y = np.asarray(mechanism.read(jnp.asarray(q[:, 0]), state), np.float64)
    score = np.einsum("bthk,bshk->s", q.astype(np.float64), k)
    predicted = np.finfo(np.float32).eps * np.sum(q**2) * np.sum(k**2) / np.sum(score**2)
    return float(np.abs(y - expected).max() / np.abs(expected).max()), float(predicted)


def table(rows: Rows, size: Size) -> str:
    cells = {
        (row["history"], row["cosine"]): f"{row['error']:.0e} ({row['predicted']:.0e})"
        for row in rows
    }
    lines = [
        [name, *(cells.get((name, cosine), "-") for cosine in size.cosines)] for name in HISTORIES
    ]
    return markdown(["history", *(f"cosine {cosine:g}" for cosine in size.cosines)], lines)


EXPERIMENT = Measured(
    module="experiments.attention.conditioning",
    sizes={"": Size()},
    measure=measure,
    table=table,
    left_out={"": "nothing"},
    is_deterministic=True,
)

if __name__ == "__main__":
    EXPERIMENT.main()
