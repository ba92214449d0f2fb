"""Features of a polynomial of q . k: all distinct products of coordinates.

By the multinomial theorem (q . k)^n / n! is the sum of q^a k^a / a! over all exponents a of degree
n, with x^a = x_1^a_1 ... x_d^a_d and a! = a_1! ... a_d!. Up to degree p these are C(d + p, p), of
the 1 + d + ... + d^p products of an outer product.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from flax_linattn.typing import Array


def num_monomials(dim: int, order: int) -> int:
    """Returns C(dim + order, order), the number of ``monomials``.

    Example:
        >>> [num_monomials(dim, 4) for dim in (4, 8, 16, 32, 64)]
        [70, 495, 4845, 58905, 814385]
    """
    return math.comb(dim + order, order)


def monomials(
    x: Array, order: int, unit: Array | float = 1.0, *, over_factorials: bool = False
) -> Array:
    """Computes all monomials x^a of degree up to ``order``, by ascending degree.

    Args:
        x: Vectors of shape [..., d].
        order: Maximum degree, at least 1.
        unit: Unit u [..., 1] in which x is measured: the monomials are x^a u^(order - |a|).
        over_factorials: Whether to compute x^a / a!. If one of two factors has them, the product is
            the Taylor polynomial of exp(x . y).

    Returns:
        Monomials of shape [..., C(d + order, order)]; u^order comes first.

    Example:
        >>> import jax.numpy as jnp
        >>> x, y = jnp.array([1.0, 2.0]), jnp.array([3.0, -2.0])
        >>> monomials(x, 2).tolist()                              # 1, the coordinates, products
        [1.0, 2.0, 1.0, 4.0, 2.0, 1.0]
        >>> products = monomials(x, 4, over_factorials=True) @ monomials(y, 4)
        >>> round(float(products), 4)                             # 1 - 1 + 1/2 - 1/6 + 1/24
        0.375
    """
    degrees = _by_degree(jnp.moveaxis(x, -1, 0), order, over_factorials)
    scale = jnp.moveaxis(unit, -1, 0) if isinstance(unit, jax.Array) else unit
    measured = [p * math.prod([scale] * (order - n)) for n, p in enumerate(degrees)]
    return jnp.moveaxis(jnp.concatenate(measured), 0, -1)


def _by_degree(x: Array, order: int, over_factorials: bool) -> list[Array]:
    """Computes the monomials [F, ...] of coordinates [d, ...], for each degree up to ``order``.

    Outer products of the monomials of two halves of the coordinates give all monomials, so a
    few large multiplications compute all of them. Gathering or slicing one coordinate after another
    was slower, forward and backward, or took longer to compile. Coordinates come first, as in
    ``engine.features``.
    """
    dim = x.shape[0]
    if dim == 1:
        powers = [jnp.ones_like(x)]
        for n in range(1, order + 1):
            powers.append(powers[-1] * x / (n if over_factorials else 1))
        return powers
    even = dim - dim % 2
    halves = jnp.moveaxis(x[:even].reshape(2, even // 2, *x.shape[1:]), 0, 1)
    both = _by_degree(halves, order, over_factorials)
    first, second = ([p[:, i] for p in both] for i in (0, 1))
    joined = _join(first, second)
    if even == dim:
        return joined
    return _join(joined, _by_degree(x[even:], order, over_factorials))


def _join(a: list[Array], b: list[Array]) -> list[Array]:
    """Multiplies monomials of degree m of ``a`` and n - m of ``b``, for each degree n."""

    def outer(a: Array, b: Array) -> Array:
        return (a[:, None] * b[None, :]).reshape(len(a) * len(b), *a.shape[1:])

    return [jnp.concatenate([outer(a[m], b[n - m]) for m in range(n + 1)]) for n in range(len(a))]
