"""Cache mechanisms, which have no finite state: keys and values are stored.

They are computed in blocks of queries, so memory grows with T and not with T * S, and their
``step`` writes into a preallocated cache.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from flax_linattn.checks import check_integers
from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.call import Call, StepCall
from flax_linattn.ops.contract.checks import check_state_like
from flax_linattn.ops.contract.mechanism import Mechanism
from flax_linattn.ops.contract.non_finite import attends_to_marked
from flax_linattn.ops.contract.numerics import accumulation_dtype, match_varying_axes
from flax_linattn.ops.contract.pair_inputs import PairInputs
from flax_linattn.ops.contract.state import StateSizes, register_state, unpack_state
from flax_linattn.ops.engine.chunks import scan_chunks
from flax_linattn.ops.engine.forms import choose_form
from flax_linattn.ops.engine.primal_only import primal_only
from flax_linattn.ops.engine.tiles import gather_time, swap_heads
from flax_linattn.typing import Array, Outputs, OutputStep, Parameters, State, Visible

CACHE_DTYPES = ("bfloat16", "float16", "float32", "float64")


@register_state
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Cache of keys and values of the valid tokens so far, without gaps.

    The slots of a head are contiguous, so that a step multiplies them in place.

    Attributes:
        key: Keys of shape [B, H, L, K]; slots from ``length`` on are unused.
        value: Values of shape [B, H, L, V].
        length: Integer array of shape [B], number of tokens appended. A length above L marks an
            overflow.
        growable: Static; whether the cache was made without ``max_length``, so that every call that
            appends enlarges it (a new shape, hence a new compilation).
        per_token: Per-token inputs (``token_arguments``) by name, [B, H, L, ...] in the
            accumulation dtype; empty if the mechanism has none.
    """

    key: Float[Array, "B H L K"]
    value: Float[Array, "B H L V"]
    length: Int[Array, "B"]
    growable: bool = dataclasses.field(metadata={"static": True})
    per_token: Parameters = dataclasses.field(default_factory=dict)

    @property
    def capacity(self) -> int:
        """Number of slots L in the cache."""
        return self.key.shape[2]

    def append(
        self,
        k: Array,
        v: Array,
        keep: Array,
        restart: Array | None,
        per_token: Parameters | None = None,
    ) -> KVCache:
        """Appends tokens after those in the cache.

        Args:
            k: Keys of shape [B, S, H, K].
            v: Values of shape [B, S, H, V].
            keep: Boolean array of shape [B, S]; False skips the token.
            restart: Boolean array of shape [B]; True empties the cache of this sequence first. None
                means that none is emptied.
            per_token: Per-token inputs of shape [B, S, ...], by the names of ``self.per_token``;
                None means there are none.

        Returns:
            New cache. Tokens that do not fit are lost, and ``length`` then exceeds the capacity.
        """
        length = forget(self.length, restart)
        room = k.shape[1] if self.growable else 0
        slots = length[:, None] + jnp.cumsum(keep, axis=1, dtype=jnp.int32) - 1
        slots = jnp.where(keep, slots, self.capacity + room)  # out of range: dropped

        def write(old: Array, new: Array) -> Array:
            old = forget(old, restart)
            if self.growable:
                old = jnp.pad(old, ((0, 0), (0, 0), (0, room), *((0, 0),) * (old.ndim - 3)))
            return write_slots(old, slots, new)

        return KVCache(
            key=write(self.key, k),
            value=write(self.value, v),
            length=length + jnp.sum(keep, axis=1, dtype=jnp.int32),
            growable=self.growable,
            per_token=jax.tree.map(write, self.per_token, per_token or {}),
        )

    @property
    def time_ordered(self) -> KVCache:
        """Cache with its tokens in the order of time, which is how they are stored."""
        return self

    @property
    def next_position(self) -> Array:
        """Positions [B] of the next token, where slots in the order of time have 0, 1, ..."""
        return self.length

    @property
    def next_slots(self) -> Array:
        """Positions [L] of the slots once a step has appended the next token."""
        return jnp.arange(self.capacity + self.growable, dtype=jnp.int32)

    @property
    def is_used(self) -> Array:
        """Boolean array [B, L]; True marks slots that hold a token."""
        return jnp.arange(self.capacity, dtype=jnp.int32) < self.length[:, None]

    @property
    def has_overflowed(self) -> Array:
        """Boolean array [B]; True marks sequences that lost tokens because the cache was full."""
        return self.length > self.capacity


def write_slots(cached: Array, slots: Array, new: Array) -> Array:
    """Writes tokens [B, S, H, ...] to slots [B, S] of a cache [B, H, L, ...].

    Slots out of range are dropped. Every head has its own index: XLA on a CPU then writes a donated
    cache in place, but copies it for a slice over heads and for ``dynamic_update_slice``.
    """
    rows, heads = (jnp.arange(size, dtype=jnp.int32) for size in cached.shape[:2])
    at = cached.at[rows[:, None, None], heads[:, None], slots[:, None]]
    return at.set(swap_heads(new).astype(cached.dtype), mode="drop")


def forget(x: Array, restart: Array | None) -> Array:
    """Zeroes arrays of a cache [B, ...] in the rows that restart: unused slots hold no NaN."""
    return x if restart is None else masks.zero_padding(x, ~restart)


class Positions(NamedTuple):
    """Positions of queries [B, T] and keys [B, S], counted in valid tokens of the segment."""

    query: Array
    key: Array


class Pairs(NamedTuple):
    """Queries and the tokens to which they may attend.

    Attributes:
        q: Queries of shape [B, T, H, K].
        k: Keys of shape [B, S, H, K].
        v: Values of shape [B, S, H, V].
        positions: Positions of queries and keys; None unless the mechanism ``uses_positions``.
        parameters: The mechanism's own arguments, by name.
        per_key: Result of ``prepare_per_token`` for the keys, a tree of arrays of shape [B, S,
            ...].
        per_query: Result of ``prepare_per_token`` for the tokens of the queries, of shape [B, T,
            ...]; None in cross-attention (T is not S).
        per_pair: Mask, bias and dropout of the pairs.
    """

    q: Array
    k: Array
    v: Array
    positions: Positions | None
    parameters: Parameters
    per_key: Any
    per_query: Any
    per_pair: PairInputs = PairInputs()


class Slots(NamedTuple):
    """Slots of a cache that one query reads.

    Attributes:
        k: Keys of shape [B, H, S, K].
        v: Values of shape [B, H, S, V].
        per_token: Per-token inputs of shape [B, H, S, ...], by name; 0 where invisible.
        visible: Boolean array of shape [B, S].
        positions: Positions of query and keys; None unless the mechanism ``uses_positions``.
        parameters: The mechanism's own arguments, by name.
        per_pair: Mask, bias and dropout of the pairs.
    """

    k: Array
    v: Array
    per_token: Parameters
    visible: Array
    positions: Positions | None
    parameters: Parameters
    per_pair: PairInputs = PairInputs()


@dataclasses.dataclass(frozen=True)
class CacheMechanism(Mechanism):
    """Base class of mechanisms defined by ``attend_block`` over the visible tokens.

    Attributes:
        chunk_size: Queries per block in the chunked form.
        cache_dtype: Dtype of the cached keys and values; None means the accumulation dtype of the
            inputs, which per-token inputs always have.
    """

    uses_positions: ClassVar[bool] = False
    """Whether ``attend_block`` is given positions."""
    window: ClassVar[int | None] = None
    """Number of last tokens to which a query attends; None means all."""
    sinks: ClassVar[int] = 0
    """Number of first tokens of a segment to which a query attends in addition to a window."""

    chunk_size: int = 256
    cache_dtype: str | None = None

    def __post_init__(self) -> None:
        check_integers(1, chunk_size=self.chunk_size)
        if self.cache_dtype not in (None, *CACHE_DTYPES):
            raise ValueError(
                f"cache_dtype must be None or one of {', '.join(CACHE_DTYPES)}, got "
                f"{self.cache_dtype!r}."
            )

    @abc.abstractmethod
    def attend_block(self, pairs: Pairs, visible: Visible | None) -> Outputs:
        """Computes outputs [B, T, H, V] over the visible tokens; arbitrary where there are none.

        ``visible`` is Boolean [B or 1, T, S]; None means causal attention without padding, T = S.
        """

    def prepare_per_token(self, per_token: Parameters) -> Any:
        """Transforms the per-token inputs once per call, for ``attend_block``.

        Args:
            per_token: Per-token inputs of shape [B, S, ...] in the order of time, cached tokens
                first; 0 at padding and in unused slots.

        Returns:
            A tree of arrays [B, S, ...]; by default the arguments themselves.
        """
        return per_token

    @property
    def block(self) -> int:
        """Number of slots that ``step`` reads at a time; up to 4 blocks it reads all at once."""
        return self.chunk_size

    def init_sums(self, q: Array, v: Array) -> Any:
        """Returns the sums over no slots for queries [B, H, 1, K]; None to use ``attend_block``.

        With ``update_sums`` and ``mean_of_sums``, ``step`` reads slots without transposing them,
        and of a large cache only the used blocks. With None, the default, ``step`` transposes all
        slots, and its time follows the capacity.
        """
        return None

    def update_sums(self, sums: Any, q: Array, slots: Slots) -> Any:
        """Includes one more block of slots in the sums; blocks come in reverse order of time."""
        raise NotImplementedError

    def mean_of_sums(self, sums: Any, q: Array) -> Array:
        """Returns the outputs [B, H, 1, V] over all blocks in the sums."""
        raise NotImplementedError

    def pair_positions(
        self, k: Array, state: State, mask: Array | None, segment_ids: Array | None
    ) -> Positions:
        """Returns the positions of the queries and keys of a call of self-attention.

        A bias by distance is computed from them. Cached keys come first, as in ``bias``.
        """
        cache, carried = unpack_state(state)
        if cache is None and mask is None and segment_ids is None:
            every = jnp.arange(k.shape[1], dtype=jnp.int32)[None]
            return Positions(every, every)
        new = jnp.ones(k.shape[:2], bool) if mask is None else mask
        before = jnp.zeros(k.shape[0], jnp.int32) if cache is None else cache.next_position
        segments = masks.find_packed_segments(segment_ids, mask, carried)
        own = _positions(new, segments, before)
        return _follow_slots(own, 0 if cache is None else cache.capacity)

    def _init_state(self, sizes: StateSizes) -> KVCache:
        self._check_capacity(sizes.max_length)
        dtype = sizes.dtype if self.cache_dtype is None else self.cache_dtype
        slots = sizes.max_length or 0
        rows = (sizes.batch_size, sizes.num_heads, slots)
        return KVCache(
            key=jnp.zeros((*rows, sizes.key_dim), dtype),
            value=jnp.zeros((*rows, sizes.value_dim), dtype),
            length=jnp.zeros((sizes.batch_size,), jnp.int32),
            growable=sizes.max_length is None,
            per_token={
                each.name: jnp.zeros((sizes.batch_size, first, slots, *others), sizes.dtype)
                for each in self.token_arguments
                for first, *others in [each.shape(sizes.num_heads, sizes.key_dim, sizes.value_dim)]
            },
        )

    def _check_capacity(self, max_length: int | None) -> None:
        """Rejects a capacity of more tokens than the mechanism has positions for."""

    def _attend_causal_call(self, call: Call) -> tuple[Outputs, State]:
        return self._attend(call)  # it also replaces non-finite numbers of cached tokens

    def _attend(self, call: Call) -> tuple[Outputs, State]:
        batch, length, heads, key_dim = call.k.shape
        cache = call.state
        new = jnp.ones((batch, length), bool) if call.mask is None else call.mask
        segment_index = (
            jnp.zeros((batch, length), jnp.int32) if call.segments is None else call.segments.index
        )

        if cache is None:
            cache = self.init_state(batch, heads, key_dim, call.v.shape[-1], dtype=call.v.dtype)
        # An empty cache adds no keys: its slots would only be masked away.
        cached = 0 if call.state is None else cache.capacity
        k, v, per_token = call.k, call.v, call.per_token
        earlier = cache.time_ordered if cached else cache
        if cached:
            k, v, per_token = jax.tree.map(
                lambda old, new: jnp.concatenate([swap_heads(old).astype(new.dtype), new], axis=1),
                (earlier.key, earlier.value, _hide(cache.per_token, cache.is_used)),
                (k, v, per_token),
            )

        positions = _follow_slots(_positions(new, call.segments, cache.length), cached)
        # Cached tokens belong to segment 0, which the call continues.
        key_segment = jnp.pad(segment_index, ((0, 0), (cached, 0)))
        visibility = masks.Visibility(
            is_causal=call.is_causal,
            cached=cached,
            real=jnp.concatenate([earlier.is_used, new], axis=1) if cached else call.mask,
            query_segment=None if call.segments is None else segment_index,
            key_segment=None if call.segments is None else key_segment,
            window=self.window,
            sinks=self.sinks,
            is_sink=positions.key < self.sinks if self.sinks else None,
        )

        form = call.form
        if form == "auto":
            scores = batch * heads * (key_dim if self.capabilities.channelwise else 1)
            scores = scores * call.group_size
            form = choose_form("scored", call.num_queries, k.shape[1], scores)
        shape = (batch, heads, call.num_queries, k.shape[1])
        per_pair = PairInputs.check(call.parameters, *shape, cached=cached)
        if call.num_queries == 0 or k.shape[1] == 0:
            y = jnp.zeros((batch, call.num_queries, *v.shape[2:]), v.dtype)
        else:
            finite = dataclasses.replace(call, k=k, v=v, per_token=per_token)
            if call.is_causal:
                finite, non_finite = self._replace_non_finite(finite)
            per_key = self.prepare_per_token(finite.per_token)
            own_tokens = call.num_queries == length
            per_query = jax.tree.map(lambda x: x[:, cached:], per_key) if own_tokens else None
            pairs = Pairs(
                *(finite.q, finite.k, finite.v, positions if self.uses_positions else None),
                *(call.parameters, per_key, per_query, per_pair),
            )
            if form == "chunked" and not per_pair.is_given:
                y = self._attend_chunked(pairs, visibility)
            else:
                size = {"chunked": self.chunk_size, "recurrent": 1}.get(form)
                y = self._attend_query_blocks(pairs, visibility, size)
            if call.is_causal:
                marked, starts = non_finite.tokens, call.starts
                if cached:
                    if visibility.real is not None:
                        marked = marked & visibility.real[..., None]
                    starts = None if starts is None else jnp.pad(starts, ((0, 0), (cached, 0)))
                attended = attends_to_marked(marked, starts, self.window)
                if visibility.is_sink is not None:
                    attended |= attends_to_marked(marked & visibility.is_sink[..., None], starts)
                attended = attended[:, cached:]
                y = non_finite.poison_outputs(y, attended)
        if cached:
            lost = cache.has_overflowed[:, None]
            if call.segments is not None:
                lost = lost & (segment_index == 0)
            y = jnp.where(lost[..., None, None], jnp.nan, y)
        last = segment_index[:, -1:] if length else segment_index
        restart = None if call.segments is None else jnp.any(last > 0, axis=1)
        keep = new & (segment_index == last)
        return y, cache.append(call.k, call.v, keep, restart, call.per_token)

    def _attend_chunked(self, pairs: Pairs, visibility: masks.Visibility) -> Array:
        """Attends in blocks of queries; overridden where a faster form is known."""
        return self._attend_query_blocks(pairs, visibility, self.chunk_size)

    def _attend_query_blocks(
        self, pairs: Pairs, visibility: masks.Visibility, size: int | None
    ) -> Array:
        """Applies ``attend_block`` to ``size`` queries at a time, or to all if it is None."""
        length, keys = pairs.q.shape[1], pairs.k.shape[1]

        def block(_: None, rows: tuple[Array, Array, Array | None, Any]) -> tuple[None, Array]:
            q, index, own, per_query = rows
            here = pairs._replace(q=q, per_query=per_query)
            if q.shape[1] != length:
                here = here._replace(per_pair=pairs.per_pair.take_rows(index[0]))
            if pairs.positions is not None and own is not None:
                here = here._replace(positions=pairs.positions._replace(query=own))
            if visibility.is_plain_causal and q.shape[1] == length:
                return None, self.attend_block(here, None)
            visible = visibility.block(index[0], jnp.arange(keys, dtype=jnp.int32), keys)
            return None, masks.zero_padding(
                self.attend_block(here, visible), jnp.any(visible, axis=2)
            )

        index = jnp.arange(length, dtype=jnp.int32)[None]
        own = None if pairs.positions is None else pairs.positions.query
        return scan_chunks(block, None, (pairs.q, index, own, pairs.per_query), size)[1]

    def _step(self, call: StepCall) -> tuple[OutputStep, State]:
        batch = call.k.shape[0]
        new = jnp.ones((batch, 1), bool) if call.mask is None else call.mask[:, None]
        k, v, per_token = jax.tree.map(lambda x: x[:, None], (call.k, call.v, call.per_token))
        state = call.state.append(k, v, new, None, per_token)
        q = call.q[:, :, None].astype(accumulation_dtype(call.q.dtype))
        y = self._attend_to_cache(q, state, call.parameters)
        y = jnp.where((state.length == 0)[:, None, None], jnp.zeros_like(y), y)
        return jnp.where(state.has_overflowed[:, None, None], jnp.nan, y), state

    def _attend_to_cache(self, q: Array, cache: KVCache, parameters: Parameters) -> Array:
        """Computes outputs [B, H, V] of queries [B, H, 1, K] that follow all cached tokens."""
        per_pair = PairInputs.check(parameters, *q.shape[:2], cache.capacity)
        if per_pair.is_given:
            return self._attend_to_all_slots(q, cache.time_ordered, parameters, per_pair)
        if cache.capacity <= 4 * self.block or self.init_sums(q, cache.value) is None:
            return self._attend_to_all_slots(q, cache, parameters)
        return primal_only(
            self._attend_to_used_slots, self._attend_to_all_slots, q, cache, parameters
        )

    def _attend_to_all_slots(
        self,
        q: Array,
        cache: KVCache,
        parameters: Parameters,
        per_pair: PairInputs = PairInputs(),  # noqa: B008  (immutable)
    ) -> Array:
        """Attends to all slots at once, masking unused ones."""
        visible = cache.is_used[:, None]
        slots = self._slots(q, cache, cache.is_used, parameters, 0)._replace(per_pair=per_pair)
        sums = self.init_sums(q, slots.v)
        if sums is not None:
            y = swap_heads(self.mean_of_sums(self.update_sums(sums, q, slots), q))
            return per_pair.poison(y, per_pair.visible_pairs(visible))[:, 0]
        q, k, v, per_token = jax.tree.map(swap_heads, (q, slots.k, slots.v, slots.per_token))
        per_key = self.prepare_per_token(per_token)
        last = jnp.clip(cache.length - 1, 0, cache.capacity - 1)[:, None]
        per_query = jax.tree.map(lambda x: gather_time(x, last), per_key)
        pairs = Pairs(q, k, v, slots.positions, parameters, per_key, per_query, per_pair)
        return self.attend_block(pairs, visible)[:, 0]

    def _attend_to_used_slots(self, q: Array, cache: KVCache, parameters: Parameters) -> Array:
        """Attends block by block, from the last token down to the first slots."""
        size = self.block
        used = jnp.minimum(jnp.max(cache.length), cache.capacity)
        blocks = (used + size - 1) // size

        def body(i: Array, sums: Any) -> Any:
            first = (blocks - 1 - i) * size
            # A block that would reach beyond the cache begins earlier.
            begin = jnp.minimum(first, cache.capacity - size)
            index = begin + jnp.arange(size, dtype=jnp.int32)
            visible = (index >= first) & (index < cache.length[:, None])
            return self.update_sums(sums, q, self._slots(q, cache, visible, parameters, begin))

        sums = match_varying_axes((self.init_sums(q, cache.value.astype(q.dtype)), q, cache))[0]
        return self.mean_of_sums(jax.lax.fori_loop(0, blocks, body, sums), q)[:, :, 0]

    def _slots(
        self, q: Array, cache: KVCache, visible: Array, parameters: Parameters, begin: int | Array
    ) -> Slots:
        """Reads as many slots as ``visible`` [B, S] has, from slot ``begin`` on."""
        size = visible.shape[1]
        k, v, per_token = jax.tree.map(
            lambda x: x if size == x.shape[2] else jax.lax.dynamic_slice_in_dim(x, begin, size, 2),
            (cache.key, cache.value, cache.per_token),
        )
        positions = None
        if self.uses_positions:
            index = jnp.broadcast_to(begin + jnp.arange(size, dtype=jnp.int32), visible.shape)
            positions = Positions(cache.length[:, None] - 1, index)
        k, v, per_token = k.astype(q.dtype), v.astype(q.dtype), _hide(per_token, visible)
        return Slots(k, v, per_token, visible, positions, parameters)

    def _check_overflow(self, state: KVCache, parameters: Parameters) -> None:
        if isinstance(state.length, jax.core.Tracer) or state.length.size == 0:
            return  # under jit the overflow shows as NaN in every output from then on
        max_tokens = int(jnp.max(state.length))
        if max_tokens > state.capacity:
            raise ValueError(
                f"the key/value cache holds {state.capacity} tokens, got token number "
                f"{max_tokens}; make it larger with init_state(..., max_length=...)."
            )

    def _check_state(self, state: KVCache, q: Array, k: Array, v: Array) -> None:
        if isinstance(state, KVCache):
            # A key of any other rank is rejected below.
            capacity = state.capacity if getattr(state.key, "ndim", 0) == 4 else 1
            expected = jax.eval_shape(
                lambda: self.init_state(
                    k.shape[0],
                    k.shape[-2],
                    k.shape[-1],
                    v.shape[-1],
                    capacity,
                    dtype=v.dtype,
                )
            )
            expected = dataclasses.replace(expected, growable=state.growable)
        else:
            expected = KVCache(k, v, k, True)
        check_state_like(self.name, state, expected)


def _hide(per_token: Parameters, visible: Array) -> Parameters:
    """Zeroes per-token inputs [B, H, S, ...] of slots that are not visible [B, S]."""
    hide = jax.vmap(lambda x: masks.zero_padding(x, visible), 1, 1)  # head by head
    return jax.tree.map(hide, per_token)


def _follow_slots(own: Array, cached: int) -> Positions:
    """Returns the positions of new tokens [B, T], with keys after the slots of a cache."""
    slots = jnp.broadcast_to(jnp.arange(cached, dtype=jnp.int32), (own.shape[0], cached))
    return Positions(own, jnp.concatenate([slots, own], axis=1))


def _positions(real: Array, segments: masks.Segments | None, before: Array) -> Array:
    """Counts the earlier valid tokens of each segment, int32 [B, T]; ``before`` [B] are cached."""
    count = jnp.cumsum(real, axis=1, dtype=jnp.int32)
    if segments is None:
        return jnp.maximum(before[:, None] + count - 1, 0)
    at_start = jax.lax.cummax(jnp.where(segments.starts, count - 1, 0), axis=1)
    offset = jnp.where(segments.index == 0, before[:, None], 0)
    return jnp.maximum(offset + count - 1 - at_start, 0)
