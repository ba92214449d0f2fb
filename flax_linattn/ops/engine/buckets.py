"""Softmax attention within buckets: tokens in the order of (bucket, position), in chunks.

A token sees those of its bucket that stand in its chunk or in the one before, so that time and
memory are those of two chunks a token. Reformer (Kitaev et al., 2020) hashes tokens into buckets in
several rounds; what it sees in any of them has a weight once.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.numerics import einsum, exp_difference, scores
from flax_linattn.ops.engine.features import l2_normalize
from flax_linattn.typing import Array

FREE = -2
"""The label of a free slot, which no token sees."""


class Places(NamedTuple):
    """Where the tokens of a sequence stand in one round, int32.

    Attributes:
        slot: of each token [T]; behind the last one for padding.
        token: in each slot [chunks * size]; T in a free one.
        label: of each token [T]: a token sees those of its own label and of the one before.
    """

    slot: Array
    token: Array
    label: Array


class Layout(NamedTuple):
    """Chunks of tokens in the order of (bucket, position).

    Attributes:
        size: slots of a chunk.
        chunks: their number.
        anew: they begin anew in each bucket, whose last chunk may not be full.

    Example:
        >>> import jax.numpy as jnp
        >>> bucket, real = jnp.array([1, 0, 1, 1, 0]), jnp.ones(5, bool)
        >>> [Layout(2, n, anew).place(bucket, real, 2).token.tolist() for n, anew in
        ...     ((3, False), (4, True))]                                     # 5 is a free slot
        [[1, 4, 0, 2, 3, 5], [1, 4, 0, 2, 3, 5, 5, 5]]
    """

    size: int
    chunks: int
    anew: bool

    def place(self, bucket: Array, real: Array, num_buckets: int) -> Places:
        """Places of tokens of these buckets, int32 [T], where ``real`` [T]."""
        length, slots = len(bucket), self.chunks * self.size
        bucket = jnp.where(real, bucket, num_buckets)
        token = jnp.arange(length, dtype=jnp.int32)
        order = jax.lax.sort((bucket, token), num_keys=1, is_stable=True)[1]
        slot = jnp.zeros(length, jnp.int32).at[order].set(token, unique_indices=True)
        if self.anew:
            count = jnp.zeros(num_buckets + 1, jnp.int32).at[bucket].add(1)
            filled = -(-count // self.size) * self.size
            added = filled - count
            slot = slot + (jnp.cumsum(added, dtype=jnp.int32) - added)[bucket]
        slot = jnp.where(real, slot, slots)
        at = jnp.full(slots, length, jnp.int32).at[slot].set(token, mode="drop")
        # Chunks of two buckets are never neighbours: there is a number between.
        return Places(slot, at, bucket * (self.chunks + 1) + slot // self.size)

    def attend(
        self, x: Array, v: Array, scale: Array, own: Places, labels: Array, is_causal: bool
    ) -> tuple[Array, Array, Array]:
        """Sums over what each token sees in a round, itself left out.

        Args:
            x: queries and, by their direction, keys [T, K].
            v: values [T, V].
            scale: factor of the scores.
            own: the places in this round.
            labels: those of all rounds [num_hashes, T].
            is_causal: only earlier tokens are seen.

        Returns:
            Of each token the largest score [T], -inf where nothing is seen, and relative to it the
            sum of weights [T] and of weights times values [T, V].
        """
        token = own.token.reshape(self.chunks, self.size)

        def chunked(x: Array, fill: int = 0) -> Array:
            return jnp.take(x, token, axis=0, mode="fill", fill_value=fill)

        def with_before(x: Array, fill: int = 0) -> Array:
            """[chunks, 2 size, ...]: the chunk before, then the chunk."""
            before = jnp.concatenate([jnp.full_like(x[:1], fill), x[:-1]])
            return jnp.concatenate([before, x], axis=1)

        def near(label: Array) -> Array:
            label = chunked(label, FREE)
            back = label[:, :, None] - with_before(label, FREE)[:, None]
            return (back == 0) | (back == 1)

        query = chunked(x)
        score = scores(query * scale, with_before(l2_normalize(query)), "cmk,cnk->cmn")
        other = with_before(token, len(x))[:, None]
        order = other < token[..., None] if is_causal else other != token[..., None]
        score = jnp.where(near(own.label) & order, score, -jnp.inf)
        level = jax.lax.stop_gradient(jnp.max(score, axis=-1))
        rounds = sum(near(label).astype(x.dtype) for label in labels)
        weight = exp_difference(score, level[..., None]) / jnp.maximum(rounds, 1)
        value = einsum("cmn,cnv->cmv", weight, with_before(chunked(v)))

        def by_token(x: Array, fill: float = 0) -> Array:
            x = x.reshape(-1, *x.shape[2:])
            return jnp.take(x, own.slot, axis=0, mode="fill", fill_value=fill)

        return by_token(level, -jnp.inf), by_token(jnp.sum(weight, axis=-1)), by_token(value)
