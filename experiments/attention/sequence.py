"""One real sequence as queries, keys and values: the same for every figure and table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data

SEQUENCE = 158
"""Index into the JapaneseVowels test set: 24 observations of 12 cepstrum coefficients."""
HEADS = ("q, k by one projection", "q, k by two")
LEARNED = ("one random query", "another random query")


def observations() -> NDArray[np.float64]:
    """The sequence as a layer would see it: standardised, then normalised. [T, 12]."""
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
