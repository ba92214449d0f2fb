"""Cache mechanisms: no finite state, so keys and values are kept.

They are computed in blocks of queries, so that memory grows with T and not with T * S, and
their ``step`` writes into a preallocated cache.
"""

from __future__ import annotations

import abc
import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from flax_linattn.ops.forms import choose_form
from flax_linattn.ops.mechanism import Call, Mechanism, check_state_like
from flax_linattn.ops.numerics import accumulation_dtype
from flax_linattn.typing import Array, KeyStep, Outputs, OutputStep, State, ValueStep, Visible


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("key", "value", "length"),
    meta_fields=("growable",),
)
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys and values of the real tokens seen so far, without gaps.

    Attributes:
        key: [B, L, H, K]; slots from ``length`` on are unused.
        value: [B, L, H, V].
        length: int32 [B], number of tokens taken in. Beyond L the row has overflowed.
        growable: static; the cache was made without ``max_length`` and is enlarged by every
            call that appends (a new shape, hence a new compilation).
    """

    key: Float[Array, "B L H K"]
    value: Float[Array, "B L H V"]
    length: Int[Array, "B"]
    growable: bool

    @property
    def capacity(self) -> int:
        """L, the number of slots."""
        return self.key.shape[1]

    def append(self, k: Array, v: Array, keep: Array, restart: Array) -> KVCache:
        """Writes tokens behind those that are there.

        Args:
            k: [B, S, H, K].
            v: [B, S, H, V].
            keep: bool [B, S], False = leave this token out.
            restart: bool [B], forget the earlier tokens of this row.

        Returns:
            The new cache. Tokens for which there is no room are lost, which ``length`` tells.
        """
        length = jnp.where(restart, 0, self.length)
        key, value = self.key, self.value
        if self.growable:
            room = ((0, 0), (0, k.shape[1]), (0, 0), (0, 0))
            key, value = jnp.pad(key, room), jnp.pad(value, room)
        slots = length[:, None] + jnp.cumsum(keep, axis=1, dtype=jnp.int32) - 1
        slots = jnp.where(keep, slots, key.shape[1])  # out of range: dropped
        rows = jnp.arange(k.shape[0], dtype=jnp.int32)[:, None]
        length = length + jnp.sum(keep, axis=1, dtype=jnp.int32)
        return KVCache(
            key=key.at[rows, slots].set(k.astype(key.dtype), mode="drop"),
            value=value.at[rows, slots].set(v.astype(value.dtype), mode="drop"),
            length=length,
            growable=self.growable,
        )

    @property
    def used(self) -> Array:
        """bool [B, L], True = the slot holds a token."""
        return jnp.arange(self.capacity, dtype=jnp.int32) < self.length[:, None]

    @property
    def overflowed(self) -> Array:
        """bool [B], True = tokens were lost because the cache was full."""
        return self.length > self.capacity


@dataclasses.dataclass(frozen=True)
class CacheMechanism(Mechanism):
    """A mechanism given by its ``weigh`` over the visible tokens.

    Attributes:
        chunk_size: queries a block in the chunked form.
        cache_dtype: dtype of the cache; None = the accumulation dtype of the inputs.
    """

    chunk_size: int = 256
    cache_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {self.chunk_size}.")

    @abc.abstractmethod
    def weigh(
        self, q: Array, k: Array, v: Array, visible: Visible | None, **parameters: Any
    ) -> Outputs:
        """Outputs [B, T, H, V] over the visible tokens; rows that see nothing may be anything.

        ``visible`` is bool [B or 1, T, S]; None = causal attention without padding, T = S.
        """

    def init_state(
        self,
        batch_size: int,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        max_length: int | None = None,
        *,
        dtype: DTypeLike = jnp.float32,
    ) -> KVCache:
        dtype = accumulation_dtype(dtype) if self.cache_dtype is None else self.cache_dtype
        slots = 0 if max_length is None else max_length
        return KVCache(
            key=jnp.zeros((batch_size, slots, num_heads, key_dim), dtype),
            value=jnp.zeros((batch_size, slots, num_heads, value_dim), dtype),
            length=jnp.zeros((batch_size,), jnp.int32),
            growable=max_length is None,
        )

    def _attend(self, call: Call) -> tuple[Outputs, State]:
        batch, length, heads, key_dim = call.k.shape
        cache = call.state
        new = jnp.ones((batch, length), bool) if call.mask is None else call.mask
        run = jnp.zeros((batch, length), jnp.int32) if call.runs is None else call.runs.index

        if cache is None:
            cache = self.init_state(batch, heads, key_dim, call.v.shape[-1], dtype=call.v.dtype)
        # An empty cache adds no keys: its slots would only be masked away.
        cached = 0 if call.state is None else cache.capacity
        k, v = call.k, call.v
        if cached:
            k = jnp.concatenate([cache.key.astype(k.dtype), k], axis=1)
            v = jnp.concatenate([cache.value.astype(v.dtype), v], axis=1)

        def visible(index: Array) -> Array:
            """Who sees whom, for the queries ``index`` [T'] of this call: [B, T', L + S]."""
            there = new[:, None, :]
            if call.is_causal:
                there = there & (index[:, None] >= jnp.arange(length))
            if call.runs is None:
                before = jnp.ones((1, index.shape[0], 1), bool)
            else:
                mine = jnp.take(run, index, axis=1, mode="clip")[:, :, None]
                there = there & (mine == run[:, None, :])
                before = mine == 0
            there = jnp.broadcast_to(there, (batch, index.shape[0], length))
            if not cached:
                return there
            return jnp.concatenate([before & cache.used[:, None, :], there], axis=2)

        form = call.form
        if form == "auto":
            form = choose_form("cache", call.num_queries, k.shape[1], batch * heads)
        chunk_size = {"parallel": None, "chunked": self.chunk_size, "recurrent": 1}[form]
        plain = call.is_causal and not cached and call.mask is None and call.runs is None
        y = self._in_blocks(call.q, k, v, None if plain else visible, chunk_size, call.parameters)
        if cached:
            y = jnp.where(cache.overflowed[:, None, None, None], jnp.nan, y)
        last = run[:, -1:] if length else run
        state = cache.append(call.k, call.v, new & (run == last), jnp.any(last > 0, axis=1))
        return y, state

    def _in_blocks(
        self, q: Array, k: Array, v: Array, visible: Any, chunk_size: int | None, parameters: Any
    ) -> Array:
        """Applies ``weigh`` to blocks of queries, so that few scores exist at a time."""
        batch, length = q.shape[:2]
        if length == 0 or k.shape[1] == 0:
            return jnp.zeros((batch, length, *v.shape[2:]), v.dtype)

        def block(q: Array, index: Array) -> Array:
            if visible is None and index.shape[0] == length:
                return self.weigh(q, k, v, None, **parameters)
            seen = index[None, :, None] >= jnp.arange(length) if visible is None else visible(index)
            y = self.weigh(q, k, v, seen, **parameters)
            return jnp.where(jnp.any(seen, axis=2)[:, :, None, None], y, jnp.zeros_like(y))

        if chunk_size is None or chunk_size >= length:
            return block(q, jnp.arange(length))
        blocks = -(-length // chunk_size)
        filler = blocks * chunk_size - length
        q = jnp.pad(q, ((0, 0), (0, filler), (0, 0), (0, 0)))
        q = jnp.moveaxis(q.reshape(batch, blocks, chunk_size, *q.shape[2:]), 1, 0)
        index = jnp.arange(blocks * chunk_size).reshape(blocks, chunk_size)
        recomputed = jax.checkpoint(lambda args: block(*args), prevent_cse=False)
        y = jnp.moveaxis(jax.lax.map(recomputed, (q, index)), 0, 1)
        return y.reshape(batch, blocks * chunk_size, *y.shape[3:])[:, :length]

    def _step(
        self,
        q: Array,
        k: KeyStep,
        v: ValueStep,
        state: KVCache,
        mask: Array | None,
        parameters: dict[str, Any],
    ) -> tuple[OutputStep, State]:
        batch = k.shape[0]
        new = jnp.ones((batch, 1), bool) if mask is None else mask[:, None]
        state = state.append(k[:, None], v[:, None], new, jnp.zeros((batch,), bool))
        dtype = accumulation_dtype(q.dtype)
        y = self.weigh(
            q[:, None].astype(dtype),
            state.key.astype(dtype),
            state.value.astype(dtype),
            state.used[:, None, :],
            **parameters,
        )[:, 0]
        y = jnp.where((state.length == 0)[:, None, None], jnp.zeros_like(y), y)
        return jnp.where(state.overflowed[:, None, None], jnp.nan, y), state

    def _check_room(self, state: KVCache) -> None:
        if isinstance(state.length, jax.core.Tracer) or state.length.size == 0:
            return  # under jit the overflow shows as NaN in every output from then on
        longest = int(jnp.max(state.length))
        if longest > state.capacity:
            raise ValueError(
                f"the key/value cache holds {state.capacity} tokens, got token number {longest}; "
                "make it larger with init_state(..., max_length=...)."
            )

    def _check_state(self, state: KVCache, q: Array, k: Array, v: Array) -> None:
        if isinstance(state, KVCache):
            expected = jax.eval_shape(
                lambda: self.init_state(
                    k.shape[0], k.shape[-2], k.shape[-1], v.shape[-1], state.capacity
                )
            )
            expected = dataclasses.replace(expected, growable=state.growable)
        else:
            expected = KVCache(k, v, k, True)
        check_state_like(self, state, expected)
