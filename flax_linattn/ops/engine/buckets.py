"""Softmax attention within hash buckets: tokens sorted by (bucket, position), in chunks.

A token attends to tokens of its bucket in its own chunk and in the previous one, so time and memory
per token are proportional to two chunks. Reformer (Kitaev et al., 2020) hashes tokens in several
rounds; a pair that meets in several rounds counts once.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.numerics import einsum, exp_difference, scores
from flax_linattn.ops.engine.features import l2_normalize
from flax_linattn.typing import Array

EMPTY_SLOT_LABEL = -2
"""Label of a free slot, to which no token attends."""


class SlotAssignment(NamedTuple):
    """Assignment of the tokens of a sequence to slots in one hash round, int32.

    Attributes:
        slot: Slot of each token [T], out of range for padding.
        token: Token in each slot [chunks * size], T in a free slot.
        label: Label of each token [T]; a token attends to tokens of its own label and of the
            previous one.
    """

    slot: Array
    token: Array
    label: Array


class Layout(NamedTuple):
    """Layout of chunks of tokens sorted by (bucket, position).

    Attributes:
        size: Slots per chunk.
        chunks: Number of chunks.
        per_bucket: Whether chunks restart in each bucket, whose last chunk may not be full.

    Example:
        >>> import jax.numpy as jnp
        >>> bucket, real = jnp.array([1, 0, 1, 1, 0]), jnp.ones(5, bool)
        >>> layouts = Layout(2, 3, False), Layout(2, 4, True)
        >>> [each.assign_slots(bucket, real, 2).token.tolist() for each in layouts]
        [[1, 4, 0, 2, 3, 5], [1, 4, 0, 2, 3, 5, 5, 5]]
    """

    size: int
    chunks: int
    per_bucket: bool

    def assign_slots(self, bucket: Array, real: Array, num_buckets: int) -> SlotAssignment:
        """Assigns slots to the valid tokens of these buckets, int32 [T]."""
        length, slots = len(bucket), self.chunks * self.size
        bucket = jnp.where(real, bucket, num_buckets)
        token = jnp.arange(length, dtype=jnp.int32)
        order = jax.lax.sort((bucket, token), num_keys=1, is_stable=True)[1]
        slot = jnp.zeros(length, jnp.int32).at[order].set(token, unique_indices=True)
        if self.per_bucket:
            count = jnp.zeros(num_buckets + 1, jnp.int32).at[bucket].add(1)
            filled = -(-count // self.size) * self.size
            added = filled - count
            slot = slot + (jnp.cumsum(added, dtype=jnp.int32) - added)[bucket]
        slot = jnp.where(real, slot, slots)
        at = jnp.full(slots, length, jnp.int32).at[slot].set(token, mode="drop")
        # Chunks of two buckets are never neighbors: there is a number between.
        return SlotAssignment(slot, at, bucket * (self.chunks + 1) + slot // self.size)

    def attend(
        self, x: Array, v: Array, scale: Array, own: SlotAssignment, labels: Array, is_causal: bool
    ) -> tuple[Array, Array, Array]:
        """Computes each token's softmax sums over the tokens visible in a round, itself excluded.

        Args:
            x: Queries of shape [T, K], which serve as keys when normalized.
            v: Values of shape [T, V].
            scale: Factor of the scores.
            own: Slots of the tokens in this round.
            labels: Labels of all rounds [num_hashes, T].
            is_causal: Whether only earlier tokens are visible.

        Returns:
            For each token the maximum score [T], -inf where no token is visible, and relative to it
            the sums of weights [T] and of weights times values [T, V].
        """
        token = own.token.reshape(self.chunks, self.size)

        def chunked(x: Array, fill: int = 0) -> Array:
            return jnp.take(x, token, axis=0, mode="fill", fill_value=fill)

        def with_before(x: Array, fill: int = 0) -> Array:
            """[chunks, 2 size, ...]: the chunk before, then the chunk."""
            before = jnp.concatenate([jnp.full_like(x[:1], fill), x[:-1]])
            return jnp.concatenate([before, x], axis=1)

        def is_visible(label: Array) -> Array:
            label = chunked(label, EMPTY_SLOT_LABEL)
            back = label[:, :, None] - with_before(label, EMPTY_SLOT_LABEL)[:, None]
            return (back == 0) | (back == 1)

        query = chunked(x)
        score = scores(query * scale, with_before(l2_normalize(query)), "cmk,cnk->cmn")
        other = with_before(token, len(x))[:, None]
        order = other < token[..., None] if is_causal else other != token[..., None]
        score = jnp.where(is_visible(own.label) & order, score, -jnp.inf)
        level = jax.lax.stop_gradient(jnp.max(score, axis=-1))
        rounds = sum(is_visible(label).astype(x.dtype) for label in labels)
        weight = exp_difference(score, level[..., None]) / jnp.maximum(rounds, 1)
        value = einsum("cmn,cnv->cmv", weight, with_before(chunked(v)))

        def by_token(x: Array, fill: float = 0) -> Array:
            x = x.reshape(-1, *x.shape[2:])
            return jnp.take(x, own.slot, axis=0, mode="fill", fill_value=fill)

        return by_token(level, -jnp.inf), by_token(jnp.sum(weight, axis=-1)), by_token(value)
