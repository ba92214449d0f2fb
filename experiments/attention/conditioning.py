"""What float32 loses of quadratic expressive attention where scores nearly vanish.

    python -m experiments.attention.conditioning

A query reads the state of a history of keys; its largest cosine with them is given. Writes
``conditioning.md`` here: the error of the output in float32 against the reference in float64,
relative to the largest output, the median over draws, beside what
eps |q|^2 sum |k|^2 / sum z^2 predicts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn import ops

KEY_DIM = 64
DRAWS = 11
COSINES = (1e-1, 1e-2, 1e-3, 1e-4)
HISTORIES = {
    "1 key": (1, 1),
    "32 equal keys": (32, 1),
    "32 keys": (32, 32),
    "1,000 keys, any query": (1000, 1000),
}
"""Number of keys, and how many different ones."""


def draw(rng: np.random.Generator, keys: int, different: int, cosine: float) -> list[NDArray]:
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


def measure(q: NDArray, k: NDArray, v: NDArray) -> tuple[float, float]:
    """The error, and what is predicted."""
    mechanism = ops.get_mechanism("expressive_quadratic")
    with jax.enable_x64(True):
        want = mechanism.reference(*(jnp.asarray(x, jnp.float64) for x in (q, k, v)))
        want = np.asarray(want)[:, 0]
    _, state = mechanism.attend(*map(jnp.asarray, (k, k, v)), return_state=True)
    got = np.asarray(mechanism.read(jnp.asarray(q[:, 0]), state), np.float64)
    score = np.einsum("bthk,bshk->s", q.astype(np.float64), k)
    predicted = np.finfo(np.float32).eps * np.sum(q**2) * np.sum(k**2) / np.sum(score**2)
    return float(np.abs(got - want).max() / np.abs(want).max()), float(predicted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    lines = [["history", *(f"cosine {cosine:g}" for cosine in COSINES)]]
    lines.append(["---"] * len(lines[0]))
    for name, (keys, different) in HISTORIES.items():
        cells = []
        for cosine in COSINES:
            rng = np.random.default_rng(0)
            pairs = [measure(*draw(rng, keys, different, cosine)) for _ in range(DRAWS)]
            error, predicted = np.median(pairs, axis=0)
            cells.append(f"{error:.0e} ({predicted:.0e})")
        if different >= KEY_DIM:
            cells[1:] = ["-"] * (len(COSINES) - 1)
        lines.append([name, *cells])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
    (options.folder / "conditioning.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
