"""Sums of log-decays between tokens, none of them a difference.

What token j weighs at a later token i falls by a_l at every l with j < l <= i. Differences of
running sums would lose digits where decays are strong, and be NaN where one is -inf; here every
exponent is a sum of numbers <= 0. So nothing overflows, what underflows weighs nothing, and -inf is
a token that forgets all that came before: where a packed segment begins.

Arrays have time on axis -2 and channels last: one, or K.
"""

from __future__ import annotations

import jax.numpy as jnp

from flax_linattn.ops.contract.numerics import einsum
from flax_linattn.typing import Array


def until(a: Array) -> Array:
    """For each i the sum of a_l over l <= i: what a state before the first token has lost.

    Example:
        >>> import jax.numpy as jnp
        >>> until(jnp.array([[-1.0], [-2.0], [-4.0]])).ravel().tolist()
        [-1.0, -3.0, -7.0]
    """
    return jnp.cumsum(a, axis=-2)


def after(a: Array) -> Array:
    """For each j the sum of a_l over l > j: what a token has lost at the last one.

    Example:
        >>> import jax.numpy as jnp
        >>> after(jnp.array([[-1.0], [-2.0], [-4.0]])).ravel().tolist()
        [-6.0, -4.0, 0.0]
    """
    later = jnp.concatenate([a[..., 1:, :], jnp.zeros_like(a[..., :1, :])], axis=-2)
    return jnp.flip(jnp.cumsum(jnp.flip(later, axis=-2), axis=-2), axis=-2)


def between(a: Array) -> Array:
    """[..., T, 1] -> [..., T, T]: for each i and j <= i the sum of a_l over j < l <= i, else -inf.

    Example:
        >>> import jax.numpy as jnp
        >>> between(jnp.array([[-1.0], [-2.0], [-4.0]])).tolist()
        [[0.0, -inf, -inf], [-2.0, 0.0, -inf], [-6.0, -4.0, 0.0]]
    """
    index = jnp.arange(a.shape[-2])
    later = index[:, None] > index
    sums = jnp.cumsum(jnp.where(later, a, jnp.zeros_like(a)), axis=-2)
    return jnp.where(index[:, None] >= index, sums, -jnp.inf)


def products(q: Array, k: Array, a: Array) -> Array:
    """Decayed products of queries and keys.

    Args:
        q: [..., T, K].
        k: [..., T, K].
        a: log-decays [..., T, 1] or [..., T, K].

    Returns:
        [..., T, T]: sum over channels of q_i k_j exp(sum of a_l over j < l <= i), 0 for j > i.

    Decays of channels of their own are no factor of q . k. Halves are joined: a query of the later
    half has lost what came since its middle, a key of the earlier one what came until it, each by
    itself, so that the products of the two are a matrix product, and so on within each half.

    Example:
        >>> import jax.numpy as jnp
        >>> one = jnp.ones((2, 1))
        >>> products(one, 3 * one, jnp.log(jnp.array([[0.5], [0.5]]))).tolist()
        [[3.0, 0.0], [1.5, 3.0]]
    """
    length = q.shape[-2]
    if a.shape[-1] == 1:
        return einsum("...ik,...jk->...ij", q, k) * jnp.exp(between(a))
    filler = (1 << (length - 1).bit_length()) - length if length else 0
    if filler:
        q, k, a = (jnp.pad(x, ((0, 0),) * (x.ndim - 2) + ((0, filler), (0, 0))) for x in (q, k, a))
    return _halves(q, k, a)[..., :length, :length]


def _halves(q: Array, k: Array, a: Array) -> Array:
    *lead, length, channels = q.shape
    if length <= 1:
        return jnp.sum(q * k, axis=-1, keepdims=True)
    half = length // 2
    q, k, a = (x.reshape(*lead, 2, half, channels) for x in (q, k, a))
    own = _halves(q, k, a)  # [..., 2, T / 2, T / 2]
    later = q[..., 1, :, :] * jnp.exp(until(a[..., 1, :, :]))
    earlier = k[..., 0, :, :] * jnp.exp(after(a[..., 0, :, :]))
    across = einsum("...ik,...jk->...ij", later, earlier)
    top = jnp.concatenate([own[..., 0, :, :], jnp.zeros_like(across)], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([across, own[..., 1, :, :]], axis=-1)], axis=-2)


def by_head(x: Array) -> Array:
    """[B, C, H, ...] -> [B, H, C, ...], log-decays [B, C, H] -> [B, H, C, 1]."""
    x = x[..., None] if x.ndim == 3 else x
    return jnp.swapaxes(x, 1, 2)
