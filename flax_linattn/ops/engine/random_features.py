"""Fixed random matrices for random features: determined by a seed alone, not by the program."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


@functools.lru_cache(maxsize=32)
def gaussian(rows: int, columns: int, seed: int) -> Matrix:
    """Samples independent standard normal numbers, float64 [rows, columns].

    Example:
        >>> gaussian(2, 3, seed=0).shape
        (2, 3)
    """
    return _fixed(np.random.default_rng(seed).normal(size=(rows, columns)))


@functools.lru_cache(maxsize=32)
def orthogonal_gaussian(rows: int, columns: int, seed: int) -> Matrix:
    """Samples Gaussian rows, orthogonal within blocks of ``columns``, float64 [rows, columns].

    They have the lengths of Gaussian vectors (Choromanski et al., "Rethinking Attention with
    Performers", 2021, section 2.4).

    Example:
        >>> import numpy as np
        >>> w = orthogonal_gaussian(3, 3, seed=0)
        >>> bool(np.allclose(w @ w.T, np.diag(np.sum(w * w, axis=1))))
        True
    """
    rng = np.random.default_rng(seed)
    blocks = []
    for _ in range(-(-rows // columns)):
        q, r = np.linalg.qr(rng.normal(size=(columns, columns)))
        blocks.append((q * np.sign(np.diag(r))).T)  # uniform over rotations only with these signs
    lengths = np.linalg.norm(rng.normal(size=(rows, columns)), axis=1)
    return _fixed(np.concatenate(blocks)[:rows] * lengths[:, None])


@functools.lru_cache(maxsize=32)
def uniform(rows: int, columns: int, limit: float, seed: int) -> Matrix:
    """Samples uniform numbers between -limit and limit, float64 [rows, columns].

    Example:
        >>> bool(abs(uniform(2, 3, 0.5, seed=0)).max() < 0.5)
        True
    """
    return _fixed(np.random.default_rng(seed).uniform(-limit, limit, size=(rows, columns)))


def _fixed(matrix: Matrix) -> Matrix:
    matrix.setflags(write=False)  # all callers share it
    return matrix
