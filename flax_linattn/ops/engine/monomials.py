"""Features of a polynomial of q . k: all products of coordinates, each different one once.

By the multinomial theorem (q . k)^n / n! is the sum of q^a k^a / a! over all exponents a of degree
n, with x^a = x_1^a_1 ... x_d^a_d and a! = a_1! ... a_d!. With a 1 beside the coordinates of x, the
products of degree p are those of all degrees up to p: C(d + p, p) instead of 1 + d + ... + d^p.
"""

from __future__ import annotations

import functools
import itertools
import math

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn.typing import Array


def num_monomials(dim: int, order: int) -> int:
    """C(dim + order, order), the number of ``monomials`` of so many coordinates.

    Example:
        >>> [num_monomials(dim, 4) for dim in (4, 8, 16, 32, 64)]
        [70, 495, 4845, 58905, 814385]
    """
    return math.comb(dim + order, order)


def monomials(x: Array, order: int, unit: Array | float = 1.0) -> Array:
    """All products x^a of degree up to ``order``, in lexical order of their factors.

    Those without the first i coordinates stand last, so that the products of one degree more are
    slices times a coordinate: a few operations for each, and no gather.

    Args:
        x: [..., d].
        order: the highest degree, at least 1.
        unit: u [..., 1], the 1 that x is measured by: x^a u^(order - |a|).

    Returns:
        [..., C(d + order, order)]; u^order comes first.

    Example:
        >>> import jax.numpy as jnp
        >>> monomials(jnp.array([2.0, 3.0]), 2).tolist()         # 1, x, y, x^2, x y, y^2
        [1.0, 2.0, 3.0, 4.0, 6.0, 9.0]
    """
    x = jnp.concatenate([jnp.ones_like(x[..., :1]) * unit, x], axis=-1)
    dim = x.shape[-1]
    products = x
    for degree in range(1, order):
        later = (num_monomials(dim - 1 - i, degree) for i in range(dim))
        parts = [x[..., i : i + 1] * products[..., -n:] for i, n in enumerate(later)]
        products = jnp.concatenate(parts, axis=-1)
    return products


@functools.cache
def taylor_weights(dim: int, order: int) -> NDArray[np.float64]:
    """1 / a! of each of the ``monomials``.

    Given to one of two factors, their product is the Taylor polynomial of exp(x . y).

    Args:
        dim: d.
        order: of the polynomial.

    Returns:
        [C(d + order, order)].

    Example:
        >>> import jax.numpy as jnp
        >>> x, y = jnp.array([1.0, 2.0]), jnp.array([3.0, -2.0])     # 1 - 1 + 1/2 - 1/6 + 1/24
        >>> round(float((monomials(x, 4) * taylor_weights(2, 4)) @ monomials(y, 4)), 4)
        0.375
    """
    factors = itertools.combinations_with_replacement(range(dim + 1), order)  # 0 is the unit
    return np.array(
        [1 / math.prod(math.factorial(a.count(i)) for i in {*a} - {0}) for a in factors]
    )
