"""Feature maps and normalisations that several mechanisms share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flax_linattn.typing import Array


def _different_pairs(dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(i, j, factor): every pair of coordinates once, by the distance j - i (mod dim).

    The factor is 1 for squares and sqrt(2) for what stands for both x_i x_j and x_j x_i.
    """
    distance, first = np.divmod(np.arange(dim * (dim + 1) // 2), dim)
    return first, (first + distance) % dim, np.where(distance == 0, 1.0, 2**0.5)


def _products(x: Array, first: np.ndarray, second: np.ndarray, factor: np.ndarray) -> Array:
    """x_first x_second factor: [..., d] -> [..., F].

    The vectors lie side by side meanwhile, so that all have a product made at once, and none moves
    to another place in a register: on a CPU many times as fast as products within a vector.
    """
    columns = jnp.moveaxis(x, -1, 0)
    left, right = (columns.at[index].get(mode="promise_in_bounds") for index in (first, second))
    factor = factor.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
    return jnp.moveaxis(left * right * factor, 0, -1)


def symmetric_square(x: Array) -> Array:
    """Features of the squared dot product: those of x and of y have the product (x . y)^2.

    The d(d+1)/2 different products of coordinates, instead of all d^2: the squares, and the
    products x_i x_j of i != j once, times sqrt(2).

    Args:
        x: [..., d].

    Returns:
        [..., d (d + 1) / 2].

    Example:
        >>> import jax.numpy as jnp
        >>> x, y = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, -1.0, 2.0])
        >>> round(float(symmetric_square(x) @ symmetric_square(y)), 4), float((x @ y) ** 2)
        (20.25, 20.25)
    """
    return _products(x, *_different_pairs(x.shape[-1]))


def quadratic_features(
    x: Array,
    coefficients: tuple[float, float, float] = (1.0, 1.0, 1.0),
    unit: Array | float = 1.0,
) -> Array:
    """[c, b x, a symmetric_square(x)] for (a, b, c): products give polynomials of x . y.

    Args:
        x: [..., d].
        coefficients: (a, b, c); given to one of the two factors, their product is
            a (x . y)^2 + b x . y + c.
        unit: u [..., 1], the 1 that x is measured by: [c u^2, b u x, a symmetric_square(x)],
            for x and u times a number the features times its square.

    Returns:
        [..., 1 + d + d (d + 1) / 2].

    Example:
        >>> import jax.numpy as jnp
        >>> x, y = jnp.array([1.0, 2.0]), jnp.array([3.0, -1.0])         # x . y = 1
        >>> round(float(quadratic_features(x, (0.5, 1.0, 1.0)) @ quadratic_features(y)), 4)
        2.5
    """
    a, b, c = coefficients
    dim = x.shape[-1]
    first, second, factor = _different_pairs(dim)
    # With the unit as coordinate 0 the terms of lower degree are products, too.
    measured = jnp.concatenate([jnp.ones_like(x[..., :1]) * unit, x], axis=-1)
    return _products(
        measured,
        np.concatenate([np.zeros(dim + 1, first.dtype), first + 1]),
        np.concatenate([np.arange(dim + 1), second + 1]),
        np.concatenate([[c], np.full(dim, b), a * factor]),
    )


LARGEST_QUERY, LARGEST_KEY = 1 / 16, 9 / 32
"""Exponents of the largest query and key of weights of degree 2, over that of the dtype's largest
number: 256 and 7e10 in float32, so that sums of (q . k)^2 v are finite."""
SMALLEST_UNIT = -3 / 8
"""Likewise of the smallest 1 that queries are measured by, whose square times v must not vanish."""


def _power(dtype: DTypeLike, exponent: float) -> float:
    """2 to the power of a part of the exponent of the dtype's largest number."""
    return 2.0 ** int(jnp.finfo(dtype).maxexp * exponent)


def _fit(x: Array, exponent: float) -> Array:
    """[..., 1]: 1, or less where a vector x [..., d] is too large."""
    limit = _power(x.dtype, exponent)
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    return limit / jnp.maximum(largest, limit)


def bounded_key(k: Array, order: int = 2) -> Array:
    """``k`` [..., d]; one whose coordinates exceed 2^36 (float64: 2^288) counts as of that size.

    Squares of its features are finite then, in sums, too. Its direction stays; of others no bit
    changes. The factor is a constant to ``jax.grad``: a clipped key has its gradient, that much
    smaller, and may leave the bound along it. For polynomials of ``order`` n the exponent is 2 / n
    of that of squares: 2^18 at order 4.

    Example:
        >>> import jax.numpy as jnp
        >>> k = bounded_key(jnp.array([[4e30, -1e30], [3.0, 4.0]]))
        >>> (k[0] / 2.0**36).tolist(), k[1].tolist()
        ([1.0, -0.25], [3.0, 4.0])
    """
    return k * _fit(k, 2 / order * LARGEST_KEY)


def bounded_query(q: Array, order: int = 2) -> tuple[Array, Array]:
    """(f q, f) for ``q`` [..., d]: f [..., 1] is 1, or less where coordinates exceed 2^8.

    Polynomials of q . k in terms of f q . k and f have the factor f^n, of a query alone, which
    cancels from its output. What is returned for f is never below 2^-48 (float64: 2^-384), so that
    keys at right angles to a query, or 0, keep a weight: beside queries beyond 2^56, keys shorter
    than about 2^-56 weigh as those do. For polynomials of ``order`` n the exponents are 2 / n of
    those of squares: 2^4, 2^-24 and 2^28 at order 4.

    Example:
        >>> import jax.numpy as jnp
        >>> [x.tolist() for x in bounded_query(jnp.array([[2.0, 4.0], [0.0, 1024.0]]))]
        [[[2.0, 4.0], [0.0, 256.0]], [[1.0], [0.25]]]
    """
    factor = _fit(q, 2 / order * LARGEST_QUERY)
    return q * factor, jnp.maximum(factor, _power(q.dtype, 2 / order * SMALLEST_UNIT))


def bounded_score_query(q: Array) -> Array:
    """``q`` [..., d]; one whose coordinates exceed 2^64 (float64: 2^512) counts as of that size.

    Products with bounded keys are finite then.

    Example:
        >>> bounded_score_query(jnp.array([[2.0**70, 2.0**66], [3.0, 4.0]])).tolist() == [
        ...     [2.0**64, 2.0**60], [3.0, 4.0]]
        True
    """
    return q * _fit(q, 1 / 2)


def scale_free(x: Array) -> Array:
    """``x`` [..., d] over its largest magnitude, 0 where x is 0: for what its size cancels from.

    The factor is a constant to ``jax.grad``: where the size cancels, its gradient does too.

    Example:
        >>> import jax.numpy as jnp
        >>> scale_free(jnp.array([[1e30, -5e29], [0.0, 0.0]])).tolist()
        [[1.0, -0.5], [0.0, 0.0]]
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    return x / jnp.where(largest == 0, jnp.ones_like(largest), largest)


def l2_normalize(x: Array) -> Array:
    """``x`` [..., d] over its Euclidean length; 0, with zero gradient, where x is 0.

    Right for every finite x: lengths that square to 0 or to infinity as well.

    Example:
        >>> import jax.numpy as jnp
        >>> jnp.round(l2_normalize(jnp.array([[3e30, 4e30], [0.0, 0.0]])), 3).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    x = scale_free(x)
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    zero = square == 0
    unit = x * jax.lax.rsqrt(jnp.where(zero, jnp.ones_like(square), square))
    return jnp.where(zero, jnp.zeros_like(unit), unit)
