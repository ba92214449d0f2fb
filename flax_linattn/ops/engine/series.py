"""The sums of EA-series and their arithmetic, in the range of float32 for any keys.

"Element-wise Attention Is All You Need", 2025, equations 8-16: sums of k^n exp(-k^2) v and of
k^n exp(-k^2), which vanish in float32 beyond |k| = 10, are kept relative to the smallest |k|.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.ops.contract.numerics import safe_divide
from flax_linattn.ops.contract.state import exportable
from flax_linattn.typing import Array


@exportable
class SeriesState(NamedTuple):
    """Sums over the tokens taken in (equations 8 and 9), kept in the range of float32.

    With a the smallest ``|k_j|`` of the channel and r = max(1, a), for n = 0 ... order:

    Attributes:
        smallest: a [B, H, K], inf when empty.
        s: sum of (k_j / r)^n exp(a^2 - k_j^2) v_j [B, order + 1, H, K].
        z: sum of (k_j / r)^n exp(a^2 - k_j^2) [B, order + 1, H, K].
    """

    smallest: Float[Array, "B H K"]
    s: Float[Array, "B N H K"]
    z: Float[Array, "B N H K"]


def unit(smallest: Array) -> Array:
    """r = max(1, a), in which keys are measured; 1 where there is no key."""
    return jnp.where(jnp.isinf(smallest), 1, jnp.maximum(smallest, 1))


def weight(k: Array, smallest: Array) -> Array:
    """exp(a^2 - k^2), without the squares of large numbers."""
    size = jnp.abs(k)
    return jnp.exp((smallest - size) * (smallest + size))


def geometric(first: Array, ratio: Array, order: int) -> list[Array]:
    """``first`` times ratio^n, n = 0 ... order; 0^0 = 1.

    Example:
        >>> import jax.numpy as jnp
        >>> [x.tolist() for x in geometric(jnp.ones(2), jnp.array([0.0, 2.0]), 2)]
        [[1.0, 1.0], [0.0, 2.0], [0.0, 4.0]]
    """
    powers = [first]
    for _ in range(order):
        powers.append(powers[-1] * ratio)
    return powers


def passage(old: Array, new: Array) -> tuple[Array, Array]:
    """(f, r): the n-th sum relative to ``old`` is f r^n times the one relative to ``new``.

    ``new`` is not above ``old``; where ``old`` is infinite, of no token, f is 0. Constants to
    gradients, since they cancel from y.
    """
    old, new = jax.lax.stop_gradient((old, new))
    empty = jnp.isinf(old)
    old, new = jnp.where(empty, 1, old), jnp.where(empty, 1, new)
    factor = jnp.where(empty, 0, weight(old, new))
    return factor, jnp.where(factor > 0, unit(old) / unit(new), 1)


def smaller(first: Array, second: Array) -> Array:
    """The smaller of two, the first if they are equal: gradients, too, are its alone then."""
    return jnp.where(first <= second, first, second)


def merge(earlier: SeriesState, later: SeriesState) -> SeriesState:
    """Sums add up, relative to the smaller of the two smallest |k|; on any leading axes."""
    smallest = smaller(earlier.smallest, later.smallest)
    order = earlier.s.shape[-3] - 1

    def moved(state: SeriesState) -> tuple[Array, Array]:
        factor, ratio = passage(state.smallest, smallest)
        factors = stack(geometric(factor, ratio, order))
        return factors * state.s, factors * state.z

    (s_a, z_a), (s_b, z_b) = moved(earlier), moved(later)
    return SeriesState(smallest, s_a + s_b, z_a + z_b)


def total(k: Array, v: Array, keep: Array | None, order: int) -> SeriesState:
    """The state of tokens [B, T, H, K], of those that bool [B, T] keeps, by one sum over all.

    Example:
        >>> import jax.numpy as jnp
        >>> one = jnp.ones((1, 2, 1, 1))
        >>> total(one, 3 * one, None, order=2).s.ravel().tolist()      # of weights relative to e^-1
        [6.0, 6.0, 6.0]
    """
    k, v = zero_padding(k, keep), zero_padding(v, keep)
    size = jnp.abs(k)
    if keep is not None:
        size = jnp.where(keep[..., None, None], size, jnp.inf)
    smallest = jax.lax.stop_gradient(jnp.min(size, axis=1))
    nearest = jnp.where(jnp.isinf(smallest), 0, smallest)[:, None]
    first = zero_padding(weight(k, nearest), keep)
    # Where a weight is 0, powers of a large key would be an infinite factor of its gradient.
    z = geometric(first, jnp.where(first > 0, k / unit(nearest), 0), order)
    return SeriesState(
        smallest,
        stack([jnp.sum(x * v, axis=1) for x in z]),
        stack([jnp.sum(x, axis=1) for x in z]),
    )


def stack(sums: Sequence[Array]) -> Array:
    """One array [..., N, H, K] of those for each exponent."""
    return jnp.stack(sums, axis=-3)


def unstack(sums: Array) -> list[Array]:
    """``stack`` undone."""
    return [sums[..., n, :, :] for n in range(sums.shape[-3])]


def argument(q: Array, smallest: Array, order: int) -> tuple[Array, Array]:
    """(x, f) such that (2 q r)^n / n! is x^n f^(order - n) / n! but for a common factor.

    The factor keeps all terms in the range of the dtype, and cancels from y.
    """
    x = 2 * q * unit(smallest)
    room = 1e15 if x.dtype == jnp.float32 else 1e100
    largest = math.exp((math.log(room) + math.lgamma(order + 1)) / max(order, 1))
    f = largest / jnp.maximum(jnp.abs(x), largest)
    return x * f, f


def polynomial(sums: Sequence[Array], x: Array, f: Array) -> Array:
    """sum_n sums[n] x^n f^(N - n) / n!, n = 0 ... N, by Horner's rule.

    Example:
        >>> import jax.numpy as jnp
        >>> one = jnp.ones(())
        >>> float(polynomial([one, one, one], 2 * one, one))           # 1 + 2 + 4 / 2
        5.0
    """
    highest = len(sums) - 1
    total, power = sums[highest] * jnp.ones_like(x), f
    for n in range(highest, 0, -1):
        total, power = total * (x / n) + sums[n - 1] * power, power * f
    return total


def polynomial_terms(first: Array, x: Array, f: Array, order: int) -> list[Array]:
    """``first`` times x^n f^(order - n) / n!, n = 0 ... order."""
    rising = [first]
    for n in range(1, order + 1):
        rising.append(rising[-1] * (x / n))
    falling = geometric(jnp.ones_like(f), f, order)
    return [a * b for a, b in zip(rising, reversed(falling), strict=True)]


def reciprocal(denominator: Array) -> Array:
    """1 / D, and 0 where D is 0 or subnormal: where nothing is seen."""
    return safe_divide(jnp.ones_like(denominator), denominator)
