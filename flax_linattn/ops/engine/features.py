"""Feature maps and normalizations that several mechanisms share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flax_linattn.typing import Array


def _distinct_pairs(dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists every pair of coordinates once, by distance: indices i and j, and a factor.

    The factor is 1 for squares and sqrt(2) for pairs that stand for both x_i x_j and x_j x_i.
    """
    distance, first = np.divmod(np.arange(dim * (dim + 1) // 2), dim)
    return first, (first + distance) % dim, np.where(distance == 0, 1.0, 2**0.5)


def _products(x: Array, first: np.ndarray, second: np.ndarray, factor: np.ndarray) -> Array:
    """Computes the products x_first x_second factor, [..., d] to [..., F].

    Coordinates are moved first meanwhile, so that one vector operation makes a product for many
    vectors: on a CPU this is many times as fast as products within a vector.
    """
    columns = jnp.moveaxis(x, -1, 0)
    left, right = (columns.at[index].get(mode="promise_in_bounds") for index in (first, second))
    factor = factor.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
    return jnp.moveaxis(left * right * factor, 0, -1)


def symmetric_square(x: Array) -> Array:
    """Computes features whose dot product is (x . y)^2, without duplicates.

    The d(d+1)/2 different products of coordinates, instead of all d^2: the squares, and the
    products x_i x_j of i != j once, times sqrt(2).

    Args:
        x: Vectors of shape [..., d].

    Returns:
        Features of shape [..., d (d + 1) / 2].

    Example:
        >>> import jax.numpy as jnp
        >>> x, y = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, -1.0, 2.0])
        >>> round(float(symmetric_square(x) @ symmetric_square(y)), 4), float((x @ y) ** 2)
        (20.25, 20.25)
    """
    return _products(x, *_distinct_pairs(x.shape[-1]))


def quadratic_features(
    x: Array,
    coefficients: tuple[float, float, float] = (1.0, 1.0, 1.0),
    unit: Array | float = 1.0,
) -> Array:
    """Computes [c, b x, a symmetric_square(x)], features of a quadratic polynomial of x . y.

    Args:
        x: Vectors of shape [..., d].
        coefficients: Coefficients (a, b, c). If one of the two factors has them, the product is a
            (x . y)^2 + b x . y + c.
        unit: Unit u [..., 1] in which x is measured: the features are [c u^2, b u x, a
            symmetric_square(x)], homogeneous of degree 2 in (x, u).

    Returns:
        Features of shape [..., 1 + d + d (d + 1) / 2].

    Example:
        >>> import jax.numpy as jnp
        >>> x, y = jnp.array([1.0, 2.0]), jnp.array([3.0, -1.0])         # x . y = 1
        >>> round(float(quadratic_features(x, (0.5, 1.0, 1.0)) @ quadratic_features(y)), 4)
        2.5
    """
    a, b, c = coefficients
    dim = x.shape[-1]
    first, second, factor = _distinct_pairs(dim)
    # With the unit as coordinate 0 the terms of lower degree are products, too.
    measured = jnp.concatenate([jnp.ones_like(x[..., :1]) * unit, x], axis=-1)
    return _products(
        measured,
        np.concatenate([np.zeros(dim + 1, first.dtype), first + 1]),
        np.concatenate([np.arange(dim + 1), second + 1]),
        np.concatenate([[c], np.full(dim, b), a * factor]),
    )


MAX_QUERY_EXPONENT, MAX_KEY_EXPONENT = 1 / 16, 9 / 32
"""Maximum coordinates of queries and keys at degree 2, as powers of the dtype's maximum: 256 and
7e10 in float32, so that sums of (q . k)^2 v are finite."""
MIN_UNIT_EXPONENT = -3 / 8
"""Minimum unit of queries, as a power of the dtype's maximum: unit^2 v must not underflow."""


def _power(dtype: DTypeLike, exponent: float) -> float:
    """Returns a power of the dtype's maximum, rounded down to a power of 2."""
    return 2.0 ** int(jnp.finfo(dtype).maxexp * exponent)


def _clip_factor(x: Array, exponent: float) -> Array:
    """Returns the factor [..., 1], at most 1, that brings a vector x [..., d] below a limit."""
    limit = _power(x.dtype, exponent)
    max_magnitude = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    return limit / jnp.maximum(max_magnitude, limit)


def clip_key(k: Array, order: int = 2) -> Array:
    """Clips keys [..., d] to coordinates of at most 2^36 (float64: 2^288).

    Then sums of squares of its features are finite. A clipped key keeps its direction; no bit of
    other keys changes. The factor is a constant to ``jax.grad``, so a clipped key still has a
    gradient, scaled by the factor. At ``order`` n the exponent is 2 / n times that of order 2: 2^18
    at order 4.

    Example:
        >>> import jax.numpy as jnp
        >>> k = clip_key(jnp.array([[4e30, -1e30], [3.0, 4.0]]))
        >>> (k[0] / 2.0**36).tolist(), k[1].tolist()
        ([1.0, -0.25], [3.0, 4.0])
    """
    return k * _clip_factor(k, 2 / order * MAX_KEY_EXPONENT)


def clip_query(q: Array, order: int = 2) -> tuple[Array, Array]:
    """Clips queries to coordinates of at most 2^8; returns (f q, f) with factors f [..., 1].

    A homogeneous polynomial in (f q . k, f) is f^n times the polynomial of q . k, and f depends
    only on the query, so it cancels from the output. The returned f is at least 2^-48 (float64:
    2^-384), so that keys that are 0 or orthogonal to the query keep a weight; for queries beyond
    2^56, keys shorter than about 2^-56 have that weight too. At ``order`` n the exponents are 2 / n
    times the exponents of order 2: 2^4, 2^-24 and 2^28 at order 4.

    Example:
        >>> import jax.numpy as jnp
        >>> [x.tolist() for x in clip_query(jnp.array([[2.0, 4.0], [0.0, 1024.0]]))]
        [[[2.0, 4.0], [0.0, 256.0]], [[1.0], [0.25]]]
    """
    factor = _clip_factor(q, 2 / order * MAX_QUERY_EXPONENT)
    return q * factor, jnp.maximum(factor, _power(q.dtype, 2 / order * MIN_UNIT_EXPONENT))


def clip_score_query(q: Array) -> Array:
    """Clips queries [..., d] to coordinates of at most 2^64 (float64: 2^512).

    Products with bounded keys are finite then.

    Example:
        >>> clip_score_query(jnp.array([[2.0**70, 2.0**66], [3.0, 4.0]])).tolist() == [
        ...     [2.0**64, 2.0**60], [3.0, 4.0]]
        True
    """
    return q * _clip_factor(q, 1 / 2)


def normalize_by_max(x: Array) -> Array:
    """Divides ``x`` [..., d] by its largest magnitude; 0 where x is 0.

    The factor is a constant to ``jax.grad``: where it cancels, its gradient does too.

    Example:
        >>> import jax.numpy as jnp
        >>> normalize_by_max(jnp.array([[1e30, -5e29], [0.0, 0.0]])).tolist()
        [[1.0, -0.5], [0.0, 0.0]]
    """
    max_magnitude = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    return x / jnp.where(max_magnitude == 0, jnp.ones_like(max_magnitude), max_magnitude)


def l2_normalize(x: Array) -> Array:
    """Divides ``x`` [..., d] by its Euclidean length; 0, with zero gradient, where x is 0.

    Accurate for every finite x, even if the squared length is 0 or infinite in floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> jnp.round(l2_normalize(jnp.array([[3e30, 4e30], [0.0, 0.0]])), 3).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    x = normalize_by_max(x)
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    zero = square == 0
    unit = x * jax.lax.rsqrt(jnp.where(zero, jnp.ones_like(square), square))
    return jnp.where(zero, jnp.zeros_like(unit), unit)
