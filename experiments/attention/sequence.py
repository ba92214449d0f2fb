"""One real sequence as queries, keys and values, the same for every figure and table."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn import data, ops

SEQUENCE = 158
"""Index into the JapaneseVowels test set: 24 observations of 12 cepstrum coefficients."""
HEADS = ("q, k by one projection", "q, k by two")
LEARNED = ("one random query", "another random query")


def observations() -> NDArray[np.float64]:
    """The sequence standardized and layer-normalized, as a layer receives it. [T, 12]."""
    train, test = data.japanese_vowels()
    x = data.Standardizer.fit(train.series).apply(test.series)[SEQUENCE]
    x = x - x.mean(axis=1, keepdims=True)
    return x / np.sqrt(np.square(x).mean(axis=1, keepdims=True))


def project(x: NDArray[np.float64], key_dim: int) -> tuple[NDArray, NDArray, NDArray]:
    """Projects observations by fixed random matrices, whose entries keep the size of x.

    In head 0 queries and keys have the same matrix, so that like attends to like; in head 1
    each has its own.

    Returns:
        q, k, v, each [1, T, 2, key_dim].
    """
    rng = np.random.default_rng(0)
    shape = (x.shape[1], len(HEADS), key_dim)
    wq, wk, wv = rng.normal(size=(3, *shape)) / np.sqrt(x.shape[1])
    wk[:, 0] = wq[:, 0]
    q, k, v = (np.einsum("tc,chk->thk", x, w)[None] for w in (wq, wk, wv))
    return q, k, v


def first_gates(
    x: NDArray[np.float64], arguments: Sequence[ops.TokenArgument], key_dim: int
) -> dict[str, jax.Array]:
    """Arguments of tokens as an untrained layer makes them: activation(x W + b).

    W is a fixed random matrix whose entries keep the size of x, b the layer's first bias.

    Returns:
        Each by its name, float32 [1, T, ...].
    """
    rng, gates = np.random.default_rng(1), {}
    for argument in arguments:
        shape = argument.shape(len(HEADS), key_dim, key_dim)
        w = rng.normal(size=(x.shape[1], *shape)) / np.sqrt(x.shape[1])
        projected = jnp.asarray(np.tensordot(x, w, 1)[None], jnp.float32)
        bias = argument.bias_init(jax.random.key(0), shape, jnp.float32)
        gates[argument.name] = argument.activation(projected + bias)
    return gates
