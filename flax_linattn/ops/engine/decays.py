"""Sums of log-decays between tokens, none of them computed as a difference.

The weight of token j at a later token i decays by a_l at every l with j < l <= i. Differences of
running sums would cancel where decays are strong, and be NaN where one is -inf; here every exponent
is a sum of numbers <= 0. So nothing overflows, what underflows has no weight, and -inf is a token
that forgets everything before it: the start of a packed segment.

Spans of one token are joined to spans of two, of four, and so on. For the pairs across the middle
of a span, the decay splits at the middle into a factor of the query (decay since the middle) and a
factor of the key (decay until the middle), so one matrix product gives all of these pairs. On a CPU
this took a third of the time of ``jnp.cumsum``.

Arrays have time on axis -2 and channels last: one, or K.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.numerics import einsum
from flax_linattn.ops.engine.tiles import swap_heads
from flax_linattn.typing import Array


def prefix_sums(a: Array) -> Array:
    """Sums a_l over l <= i for each i: the decay of a state from before the first token.

    Example:
        >>> import jax.numpy as jnp
        >>> prefix_sums(jnp.array([[-1.0], [-2.0], [-4.0]])).ravel().tolist()
        [-1.0, -3.0, -7.0]
    """
    sums = _single_token_spans(a)
    while sums.shape[-3] > 1:
        sums = _join_prefix_sums(*_halves(sums))
    return sums[..., 0, : a.shape[-2], :]


def exclusive_suffix_sums(a: Array) -> Array:
    """Sums a_l over l > j for each j: the decay of a token until the last one.

    Example:
        >>> import jax.numpy as jnp
        >>> exclusive_suffix_sums(jnp.array([[-1.0], [-2.0], [-4.0]])).ravel().tolist()
        [-6.0, -4.0, 0.0]
    """
    return suffix_sums(jnp.concatenate([a[..., 1:, :], jnp.zeros_like(a[..., :1, :])], axis=-2))


def exclusive_prefix_sums(a: Array) -> Array:
    """Sums a_l over l < i for each i.

    Example:
        >>> import jax.numpy as jnp
        >>> exclusive_prefix_sums(jnp.array([[-1.0], [-2.0], [-4.0]])).ravel().tolist()
        [0.0, -1.0, -3.0]
    """
    return prefix_sums(jnp.concatenate([jnp.zeros_like(a[..., :1, :]), a[..., :-1, :]], axis=-2))


def suffix_sums(a: Array) -> Array:
    """Sums a_l over l >= i for each i.

    Example:
        >>> import jax.numpy as jnp
        >>> suffix_sums(jnp.array([[-1.0], [-2.0], [-4.0]])).ravel().tolist()
        [-7.0, -6.0, -4.0]
    """
    return jnp.flip(prefix_sums(jnp.flip(a, axis=-2)), axis=-2)


def add_to_total(total: Array, a: Array) -> Array:
    """Adds log-decays to the total of earlier chunks, which is None if a state is not mergeable."""
    result: Array = jax.tree.map(lambda before: before + a, total)
    return result


def pairwise_sums(a: Array) -> Array:
    """Sums a_l over j < l <= i for each i and j <= i, [..., T, T]; -inf for j > i.

    Example:
        >>> import jax.numpy as jnp
        >>> pairwise_sums(jnp.array([[-1.0], [-2.0], [-4.0]])).tolist()
        [[0.0, -inf, -inf], [-2.0, 0.0, -inf], [-6.0, -4.0, 0.0]]
    """
    length = a.shape[-2]
    sums = jnp.zeros_like(_single_token_spans(a))
    for since, to in _half_sums(a):
        sums = _join_halves(sums, since + jnp.swapaxes(to, -1, -2), above=-jnp.inf)
    return sums[..., 0, :length, :length]


def decayed_products(q: Array, k: Array, a: Array) -> Array:
    """Computes the products of queries and keys, decayed by the tokens between them.

    Args:
        q: Queries of shape [..., T, K].
        k: Keys of shape [..., T, K].
        a: Log-decays of shape [..., T, 1] or [..., T, K].

    Returns:
        Products of shape [..., T, T]: the sum over channels of q_i k_j exp(sum of a_l over j < l <=
        i), 0 for j > i.

    Example:
        >>> import jax.numpy as jnp
        >>> one = jnp.ones((2, 1))
        >>> decayed_products(one, 3 * one, jnp.log(jnp.array([[0.5], [0.5]]))).tolist()
        [[3.0, 0.0], [1.5, 3.0]]
    """
    length = q.shape[-2]
    if a.shape[-1] == 1:  # a factor of q . k
        return einsum("...ik,...jk->...ij", q, k) * jnp.exp(pairwise_sums(a))
    q, k = _single_token_spans(q), _single_token_spans(k)
    weight = jnp.sum(q * k, axis=-1, keepdims=True)
    for since, to in _half_sums(a):
        later, earlier = (
            _halves_like(q, since)[1] * jnp.exp(since),
            _halves_like(k, to)[0] * jnp.exp(to),
        )
        weight = _join_halves(weight, einsum("...ik,...jk->...ij", later, earlier), above=0.0)
    return weight[..., 0, :length, :length]


def _single_token_spans(x: Array) -> Array:
    """Converts [..., T, K] to [..., P, 1, K], filled with zeros to a power of 2."""
    length = x.shape[-2]
    filler = (1 << (max(length, 1) - 1).bit_length()) - length
    if filler:
        x = jnp.pad(x, ((0, 0),) * (x.ndim - 2) + ((0, filler), (0, 0)))
    return x[..., None, :]


def _halves(x: Array) -> tuple[Array, Array]:
    """Splits spans [..., N, C, K] into the earlier and the later ones of each pair."""
    return x[..., 0::2, :, :], x[..., 1::2, :, :]


def _halves_like(x: Array, like: Array) -> tuple[Array, Array]:
    """Splits tokens [..., P, 1, K] into halves of spans, each as long as a span of ``like``."""
    size = like.shape[-2]
    return _halves(x.reshape(*x.shape[:-3], x.shape[-3] // size, size, x.shape[-1]))


def _join_prefix_sums(earlier: Array, later: Array) -> Array:
    """Returns the prefix sums of a span, given the prefix sums of its two halves."""
    return jnp.concatenate([earlier, later + earlier[..., -1:, :]], axis=-2)


def _half_sums(a: Array) -> Iterator[tuple[Array, Array]]:
    """Yields the decays since and until the middle, for spans of 2, 4, ... tokens.

    Yields:
        For each token of the later half the sum since the middle, itself included; for each token
        of the earlier half the sum over those after it: both [..., N, C, K].
    """
    since = _single_token_spans(a)
    to = jnp.zeros_like(since)
    while since.shape[-3] > 1:
        (earlier, later), (left, right) = _halves(since), _halves(to)
        yield later, left
        to = jnp.concatenate([left + later[..., -1:, :], right], axis=-2)
        since = _join_prefix_sums(earlier, later)


def _join_halves(own: Array, across: Array, *, above: float) -> Array:
    """Joins the blocks of the halves of spans with the blocks across them."""
    earlier, later = _halves(own)
    top = jnp.concatenate([earlier, jnp.full_like(across, above)], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([across, later], axis=-1)], axis=-2)


def by_head(x: Array) -> Array:
    """Moves heads before time: [B, C, H, ...] to [B, H, C, ...], [B, C, H] to [B, H, C, 1]."""
    return swap_heads(x[..., None] if x.ndim == 3 else x)
