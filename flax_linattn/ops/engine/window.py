"""Ring of the last W tokens of each sequence: a cache of constant size.

Masked tokens take no slot, so a window counts valid tokens.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from flax_linattn.ops.contract.call import Call
from flax_linattn.ops.contract.masks import Segments
from flax_linattn.ops.contract.pair_inputs import permute_tokens
from flax_linattn.ops.contract.state import register_state
from flax_linattn.ops.engine.cache import KVCache, forget
from flax_linattn.ops.engine.tiles import gather_time
from flax_linattn.typing import Array, Parameters


@register_state
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WindowCache:
    """Cache of keys and values of the last W valid tokens.

    Attributes:
        key: Keys of shape [B, W, H, K]; slots from ``length`` on are unused.
        value: Values of shape [B, W, H, V].
        length: Integer array of shape [B], number of cached tokens, at most W.
        end: Integer array of shape [B], slot of the next token: that of the oldest token once all
            slots are used.
    """

    key: Float[Array, "B W H K"]
    value: Float[Array, "B W H V"]
    length: Int[Array, "B"]
    end: Int[Array, "B"]

    @property
    def capacity(self) -> int:
        """Number of slots W in the ring."""
        return self.key.shape[1]

    @property
    def per_token(self) -> Parameters:
        """Per-token inputs of the cached tokens: none."""
        return {}

    @property
    def is_used(self) -> Array:
        """Boolean array [B, W]; True marks slots that hold a token."""
        return jnp.arange(self.capacity, dtype=jnp.int32) < self.length[:, None]

    @property
    def has_overflowed(self) -> Array:
        """Boolean array [B], all False: tokens outside the window are not needed."""
        return jnp.zeros_like(self.length, bool)

    @property
    def time_ordered(self) -> KVCache:
        """Cache of the same tokens, the oldest first and the newest in the last slot."""
        places = jnp.arange(self.capacity, dtype=jnp.int32)
        slots = (self.end[:, None] + places) % self.capacity
        key, value = (gather_time(x, slots) for x in (self.key, self.value))
        return _RightAlignedCache(key, value, self.length, growable=False)

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
        last = keep & (total[:, None] - count < self.capacity)
        slots = (end[:, None] + count - 1) % self.capacity
        slots = jnp.where(last, slots, self.capacity)  # out of range: dropped
        rows = jnp.arange(k.shape[0], dtype=jnp.int32)[:, None]

        def write(old: Array, new: Array) -> Array:
            old = forget(old, restart)
            return old.at[rows, slots].set(new.astype(old.dtype), mode="drop")

        return WindowCache(
            key=write(self.key, k),
            value=write(self.value, v),
            length=jnp.minimum(length + total, self.capacity),
            end=(end + total) % self.capacity,
        )


class _RightAlignedCache(KVCache):
    """Cache whose used slots are the last ones."""

    @property
    def is_used(self) -> Array:
        before = self.capacity - self.length[:, None]
        return jnp.arange(self.capacity, dtype=jnp.int32) >= before


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
