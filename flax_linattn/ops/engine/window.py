"""Ring of the last W tokens of each sequence, and of its first N: a cache of constant size.

Masked tokens take no slot, so a window counts valid tokens.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from flax_linattn.ops.contract.call import Call
from flax_linattn.ops.contract.masks import Segments
from flax_linattn.ops.contract.pair_inputs import permute_tokens
from flax_linattn.ops.contract.state import register_state
from flax_linattn.ops.engine.cache import KVCache, forget, write_slots
from flax_linattn.ops.engine.tiles import gather_time
from flax_linattn.typing import Array, Parameters


@register_state
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WindowCache:
    """Cache of keys and values of the first N valid tokens and of the last W others.

    Attributes:
        key: Keys of shape [B, H, N + W, K]: N slots of the first tokens (attention sinks), then the
            ring; slots from ``length`` on are unused.
        value: Values of shape [B, H, N + W, V].
        length: Integer array of shape [B], number of cached tokens, at most N + W.
        end: Integer array of shape [B], slot in the ring of the next token: that of the oldest
            token once all slots are used.
        sinks: Static; number N of first tokens, by default 0.
    """

    key: Float[Array, "B H L K"]
    value: Float[Array, "B H L V"]
    length: Int[Array, "B"]
    end: Int[Array, "B"]
    sinks: int = dataclasses.field(default=0, metadata={"static": True})

    @property
    def capacity(self) -> int:
        """Number of slots N + W."""
        return self.key.shape[2]

    @property
    def window(self) -> int:
        """Number of slots W in the ring."""
        return self.capacity - self.sinks

    @property
    def per_token(self) -> Parameters:
        """Per-token inputs of the cached tokens: none."""
        return {}

    @property
    def is_used(self) -> Array:
        """Boolean array [B, N + W]; True marks slots that hold a token."""
        return jnp.arange(self.capacity, dtype=jnp.int32) < self.length[:, None]

    @property
    def has_overflowed(self) -> Array:
        """Boolean array [B], all False: tokens outside the window are not needed."""
        return jnp.zeros_like(self.length, bool)

    @property
    def next_position(self) -> Array:
        """Positions [B] of the next token, where slots in the order of time have 0, 1, ..."""
        return jnp.full_like(self.length, self.capacity)

    @property
    def next_slots(self) -> Array:
        """Positions [L] of the slots once a step has appended the next token."""
        return 1 + jnp.arange(self.capacity, dtype=jnp.int32)

    @property
    def time_ordered(self) -> KVCache:
        """Cache of the same tokens, the oldest first and the newest in the last slot."""
        first, ring = (jnp.arange(n, dtype=jnp.int32) for n in (self.sinks, self.window))
        slots = self.sinks + (self.end[:, None] + ring) % self.window
        first = jnp.broadcast_to(first, (slots.shape[0], self.sinks))
        slots = jnp.concatenate([first, slots], axis=1)
        at = slots[:, None, :, None]
        key, value = (jnp.take_along_axis(x, at, axis=2) for x in (self.key, self.value))
        used = jnp.take_along_axis(self.is_used, slots, axis=1)
        return _OrderedCache(key, value, self.length, growable=False, used=used)

    def append(
        self,
        k: Array,
        v: Array,
        keep: Array,
        restart: Array | None,
        per_token: Parameters | None = None,
    ) -> WindowCache:
        """Writes tokens over the oldest ones; arguments as in ``KVCache.append``."""
        length, end = (forget(x, restart) for x in (self.length, self.end))
        count = jnp.cumsum(keep, axis=1, dtype=jnp.int32)
        total = jnp.sum(keep, axis=1, dtype=jnp.int32)
        # Once all slots are used, ``length`` is no longer the number of tokens, and at least N.
        number = length[:, None] + count - 1
        before = jnp.maximum(self.sinks - length, 0)  # new tokens that are among the first
        is_first = number < self.sinks
        ring = self.sinks + (end[:, None] + count - 1 - before[:, None]) % self.window
        slots = jnp.where(is_first, number, ring)
        stored = keep & (is_first | (total[:, None] - count < self.window))
        slots = jnp.where(stored, slots, self.capacity)  # out of range: dropped
        return WindowCache(
            key=write_slots(forget(self.key, restart), slots, k),
            value=write_slots(forget(self.value, restart), slots, v),
            length=jnp.minimum(length + total, self.capacity),
            end=(end + jnp.maximum(total - before, 0)) % self.window,
            sinks=self.sinks,
        )


@dataclasses.dataclass(frozen=True)
class _OrderedCache(KVCache):
    """Cache whose used slots are given."""

    used: Bool[Array, "B L"] | None = None

    @property
    def is_used(self) -> Array:
        return super().is_used if self.used is None else self.used


def compact_tokens(call: Call) -> tuple[Call, Any]:
    """Moves valid tokens to the front, and returns the inverse for outputs.

    The distance of two tokens is then the number of valid tokens between them.

    Args:
        call: Call of self-attention with a mask.

    Returns:
        The call, and a function that moves outputs [B, T, ...] back to the positions of their
        tokens; outputs at padding are arbitrary.
    """
    mask = jnp.ones(call.k.shape[:2], bool) if call.mask is None else call.mask
    order = jnp.argsort(~mask, axis=1, stable=True)
    segments = call.segments
    if segments is not None:
        starts = jnp.take_along_axis(segments.starts & mask, order, axis=1)
        segments = Segments(starts, segments.last)
    gathered = dataclasses.replace(
        call,
        q=gather_time(call.q, order),
        k=gather_time(call.k, order),
        v=gather_time(call.v, order),
        mask=jnp.take_along_axis(mask, order, axis=1),
        query_mask=None,
        segments=segments,
        parameters=permute_tokens(call.parameters, order),
    )
    place = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
    return gathered, lambda y: gather_time(y, place)
