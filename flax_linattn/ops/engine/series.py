"""Sums of EA-series and their arithmetic, within the range of float32 for any keys.

"Element-wise Attention Is All You Need", 2025, equations 8-16: sums of k^n exp(-k^2) v and of
k^n exp(-k^2). These vanish in float32 beyond |k| = 10, so they are stored relative to the smallest
|k|, whose weight is then 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.ops.contract.numerics import safe_divide
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array


@register_state
class SeriesState(NamedTuple):
    """Sums over the tokens so far (equations 8 and 9), stored within the range of float32.

    With a the smallest ``|k_j|`` of the channel and r = max(1, a), for n = 0 ... order:

    Attributes:
        min_magnitude: Minimum magnitude a of the keys [B, H, K], inf when empty.
        s: Sum of (k_j / r)^n exp(a^2 - k_j^2) v_j [B, order + 1, H, K].
        z: Sum of (k_j / r)^n exp(a^2 - k_j^2) [B, order + 1, H, K].
    """

    min_magnitude: Float[Array, "B H K"]
    s: Float[Array, "B N H K"]
    z: Float[Array, "B N H K"]


def key_unit(min_magnitude: Array) -> Array:
    """Returns the unit r = max(1, a) of the keys; 1 if there is no key."""
    return jnp.where(jnp.isinf(min_magnitude), 1, jnp.maximum(min_magnitude, 1))


def relative_weight(k: Array, min_magnitude: Array) -> Array:
    """Computes exp(a^2 - k^2) as exp((a - |k|) (a + |k|)), without squares of large numbers."""
    magnitude = jnp.abs(k)
    return jnp.exp((min_magnitude - magnitude) * (min_magnitude + magnitude))


def geometric_terms(first: Array, ratio: Array, order: int) -> list[Array]:
    """Returns ``first`` times ratio^n for n = 0 ... order, with 0^0 = 1.

    Example:
        >>> import jax.numpy as jnp
        >>> [x.tolist() for x in geometric_terms(jnp.ones(2), jnp.array([0.0, 2.0]), 2)]
        [[1.0, 1.0], [0.0, 2.0], [0.0, 4.0]]
    """
    powers = [first]
    for _ in range(order):
        powers.append(powers[-1] * ratio)
    return powers


def rescaling(old: Array, new: Array) -> tuple[Array, Array]:
    """Returns (f, r) such that f r^n rescales the n-th sum from ``old`` to ``new``.

    ``new`` is not above ``old``; where ``old`` is infinite, of no token, f is 0. Constants to
    gradients, since they cancel from y.
    """
    old, new = jax.lax.stop_gradient((old, new))
    empty = jnp.isinf(old)
    old, new = jnp.where(empty, 1, old), jnp.where(empty, 1, new)
    factor = jnp.where(empty, 0, relative_weight(old, new))
    return factor, jnp.where(factor > 0, key_unit(old) / key_unit(new), 1)


def first_minimum(first: Array, second: Array) -> Array:
    """Returns the smaller of two; the first one gets the gradient of a tie."""
    return jnp.where(first <= second, first, second)


def merge(earlier: SeriesState, later: SeriesState) -> SeriesState:
    """Merges two states, relative to the smaller of their smallest |k|; on any leading axes."""
    min_magnitude = first_minimum(earlier.min_magnitude, later.min_magnitude)
    order = earlier.s.shape[-3] - 1

    def rescaled(state: SeriesState) -> tuple[Array, Array]:
        factor, ratio = rescaling(state.min_magnitude, min_magnitude)
        factors = stack(geometric_terms(factor, ratio, order))
        return factors * state.s, factors * state.z

    (s_a, z_a), (s_b, z_b) = rescaled(earlier), rescaled(later)
    return SeriesState(min_magnitude, s_a + s_b, z_a + z_b)


def weights_and_powers_base(
    k: Array, min_magnitude: Array, keep: Array | None
) -> tuple[Array, Array]:
    """Returns the weights of keys [..., H, K] relative to a smallest |k|, and k / r.

    The weights are 0 where ``keep``, which is Boolean and broadcasts, is False.
    """
    first = relative_weight(k, min_magnitude)
    if keep is not None:
        # Before any token the minimum is infinite, and 0 times infinity has a NaN gradient.
        first = jnp.where(keep, relative_weight(k, jnp.where(keep, min_magnitude, 0)), 0)
    # Powers of a key so large that its weight is 0 would overflow, and 0 times inf is NaN.
    return first, jnp.where(first > 0, k / key_unit(min_magnitude), 0)


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def total(k: Array, v: Array, keep: Array | None, order: int) -> SeriesState:
    """Computes the state of the tokens [B, T, H, K] that ``keep`` [B, T] selects.

    Its derivative is hand-derived: compilers would evaluate the chain of powers in JAX's own
    several times over.

    Example:
        >>> import jax.numpy as jnp
        >>> one = jnp.ones((1, 2, 1, 1))
        >>> total(one, 3 * one, None, 2).s.ravel().tolist()      # of weights relative to e^-1
        [6.0, 6.0, 6.0]
    """
    k, v = zero_padding(k, keep), zero_padding(v, keep)
    magnitude, valid = jnp.abs(k), None if keep is None else keep[..., None, None]
    magnitude = magnitude if valid is None else jnp.where(valid, magnitude, jnp.inf)
    min_magnitude = jnp.min(magnitude, axis=1)
    z = geometric_terms(*weights_and_powers_base(k, min_magnitude[:, None], valid), order)
    return SeriesState(min_magnitude, _sums(x * v for x in z), _sums(z))


@total.defjvp
def _total_jvp(order: int, primals: Any, tangents: Any) -> tuple[SeriesState, SeriesState]:
    """Derivative of ``total``; the smallest |k| cancels from outputs and is a constant."""
    k, v, keep = primals
    dk, dv = tangents[:2]
    state = total(k, v, keep, order)
    k, v = zero_padding(k, keep), zero_padding(v, keep)
    valid = None if keep is None else keep[..., None, None]
    base = state.min_magnitude[:, None]
    z = geometric_terms(*weights_and_powers_base(k, base, valid), order)
    # d/dk of (k / r)^n exp(a^2 - k^2): n / r times the term before, minus 2 k times the term.
    lower = [jnp.zeros_like(k), *(n * x / key_unit(base) for n, x in enumerate(z[:-1], 1))]
    slopes = [less - 2 * k * x for less, x in zip(lower, z, strict=True)]
    ds = _sums(slope * v * dk + x * dv for slope, x in zip(slopes, z, strict=True))
    dz = _sums(slope * dk for slope in slopes)
    return state, SeriesState(jnp.zeros_like(state.min_magnitude), ds, dz)


def _sums(terms: Iterable[Array]) -> Array:
    """Sums the terms [B, T, H, K] of each exponent over time, giving [B, N, H, K]."""
    return stack([jnp.sum(x, axis=1) for x in terms])


class SeriesOutputs(NamedTuple):
    """Outputs y of queries [..., H, K], with 1 / D and the slope dy/dq."""

    y: Array
    inverse: Array
    slope: Array


def read_sums(
    q: Array, min_magnitude: Array, s: Sequence[Array], z: Sequence[Array]
) -> SeriesOutputs:
    """Evaluates equations 14-16 for sums given as a list by exponent."""
    # x^n f^(N - n) stays in range for any query; its common factor cancels between s and z.
    x, f = scaled_argument(q, min_magnitude, len(s) - 1)
    inverse = reciprocal(polynomial(z, x, f))
    y = polynomial(s, x, f) * inverse
    slope = jnp.zeros_like(y)
    if len(s) > 1:
        # Center the sums before the polynomial: the difference of two polynomials would cancel.
        centered = [a - y * b for a, b in zip(s[1:], z[1:], strict=True)]
        slope = 2 * key_unit(min_magnitude) * f * inverse * polynomial(centered, x, f)
    return SeriesOutputs(y, inverse, slope)


@jax.custom_jvp
def read(q: Array, state: SeriesState) -> Array:
    """Returns y for queries [..., H, K] and states whose leading axes broadcast with theirs.

    Its derivative is hand-derived, as that of ``total``.

    Example:
        >>> import jax.numpy as jnp
        >>> one = jnp.ones((1, 2, 1, 1))
        >>> read(one[:, 0], total(one, 3 * one, None, 2)).item()
        3.0
    """
    return read_sums(q, state.min_magnitude, unstack(state.s), unstack(state.z)).y


@read.defjvp
def _read_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (q, state), (dq, dstate) = primals, tangents
    s, z = unstack(state.s), unstack(state.z)
    y, inverse, slope = read_sums(q, state.min_magnitude, s, z)
    x, f = scaled_argument(q, state.min_magnitude, len(s) - 1)
    ds, dz = (polynomial(unstack(sums), x, f) for sums in dstate[1:])
    return y, slope * dq + inverse * (ds - y * dz)


def stack(sums: Sequence[Array]) -> Array:
    """Stacks the arrays of all exponents to one array [..., N, H, K]."""
    return jnp.stack(sums, axis=-3)


def unstack(sums: Array) -> list[Array]:
    """Splits an array [..., N, H, K] into a list by exponent."""
    return [sums[..., n, :, :] for n in range(sums.shape[-3])]


def scaled_argument(q: Array, min_magnitude: Array, order: int) -> tuple[Array, Array]:
    """Returns (x, f) with (2 q r)^n / n! proportional to x^n f^(order - n) / n! for all n.

    The factor keeps all terms in the range of the dtype, and cancels from y.
    """
    x = 2 * q * key_unit(min_magnitude)
    max_term = 1e15 if x.dtype == jnp.float32 else 1e100
    limit = math.exp((math.log(max_term) + math.lgamma(order + 1)) / max(order, 1))
    f = limit / jnp.maximum(jnp.abs(x), limit)
    return x * f, f


def polynomial(sums: Sequence[Array], x: Array, f: Array) -> Array:
    """Evaluates the sum of sums[n] x^n f^(N - n) / n! over n = 0 ... N by Horner's rule.

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
    """Returns ``first`` times x^n f^(order - n) / n! for n = 0 ... order."""
    rising = [first]
    for n in range(1, order + 1):
        rising.append(rising[-1] * (x / n))
    falling = geometric_terms(jnp.ones_like(f), f, order)
    return [a * b for a, b in zip(rising, reversed(falling), strict=True)]


def reciprocal(denominator: Array) -> Array:
    """Returns 1 / D, and 0 where D is 0 or subnormal because no token is visible."""
    return safe_divide(jnp.ones_like(denominator), denominator)
