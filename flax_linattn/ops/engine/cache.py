"""Cache mechanisms: no finite state, so keys and values are kept.

They are computed in blocks of queries, so that memory grows with T and not with T * S, and
their ``step`` writes into a preallocated cache.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from flax_linattn.checks import at_least
from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.call import Call, StepCall
from flax_linattn.ops.contract.checks import check_state_like
from flax_linattn.ops.contract.mechanism import Mechanism
from flax_linattn.ops.contract.numerics import accumulation_dtype, vary_alike
from flax_linattn.ops.contract.state import StateSizes, register_state
from flax_linattn.ops.engine.chunks import over_chunks
from flax_linattn.ops.engine.forms import choose_form
from flax_linattn.ops.engine.primal_only import unless_differentiated
from flax_linattn.ops.engine.tiles import take
from flax_linattn.typing import Array, Outputs, OutputStep, Parameters, State, Visible

CACHE_DTYPES = ("bfloat16", "float16", "float32", "float64")


@register_state
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys and values of the real tokens seen so far, without gaps.

    Attributes:
        key: [B, L, H, K]; slots from ``length`` on are unused.
        value: [B, L, H, V].
        length: int32 [B], number of tokens taken in. Beyond L the row has overflowed.
        growable: static; the cache was made without ``max_length`` and is enlarged by every
            call that appends (a new shape, hence a new compilation).
        per_token: the mechanism's ``token_arguments`` by name, [B, L, ...] each, in the dtype of
            sums; empty where it has none.
    """

    key: Float[Array, "B L H K"]
    value: Float[Array, "B L H V"]
    length: Int[Array, "B"]
    growable: bool = dataclasses.field(metadata={"static": True})
    per_token: Parameters = dataclasses.field(default_factory=dict)

    @property
    def capacity(self) -> int:
        """L, the number of slots."""
        return self.key.shape[1]

    def append(
        self,
        k: Array,
        v: Array,
        keep: Array,
        restart: Array,
        per_token: Parameters | None = None,
    ) -> KVCache:
        """Writes tokens behind those that are there.

        Args:
            k: [B, S, H, K].
            v: [B, S, H, V].
            keep: bool [B, S], False = leave this token out.
            restart: bool [B], forget the earlier tokens of this row.
            per_token: [B, S, ...] each, by the names of ``self.per_token``; None = there are none.

        Returns:
            The new cache. Tokens for which there is no room are lost, which ``length`` tells.
        """
        length = jnp.where(restart, 0, self.length)
        room = k.shape[1] if self.growable else 0
        slots = length[:, None] + jnp.cumsum(keep, axis=1, dtype=jnp.int32) - 1
        slots = jnp.where(keep, slots, self.capacity + room)  # out of range: dropped
        rows = jnp.arange(k.shape[0], dtype=jnp.int32)[:, None]

        def write(old: Array, new: Array) -> Array:
            if self.growable:
                old = jnp.pad(old, ((0, 0), (0, room), *((0, 0),) * (old.ndim - 2)))
            return old.at[rows, slots].set(new.astype(old.dtype), mode="drop")

        return KVCache(
            key=write(self.key, k),
            value=write(self.value, v),
            length=length + jnp.sum(keep, axis=1, dtype=jnp.int32),
            growable=self.growable,
            per_token=jax.tree.map(write, self.per_token, per_token or {}),
        )

    @property
    def in_order(self) -> KVCache:
        """The tokens as they came: as they lie."""
        return self

    @property
    def used(self) -> Array:
        """bool [B, L], True = the slot holds a token."""
        return jnp.arange(self.capacity, dtype=jnp.int32) < self.length[:, None]

    @property
    def overflowed(self) -> Array:
        """bool [B], True = tokens were lost because the cache was full."""
        return self.length > self.capacity


class Positions(NamedTuple):
    """The number of real tokens of the segment that came before: int [B, T] and [B, S]."""

    query: Array
    key: Array


class Pairs(NamedTuple):
    """Queries and the tokens that they may see.

    Attributes:
        q: [B, T, H, K].
        k: [B, S, H, K].
        v: [B, S, H, V].
        positions: of both; None where the mechanism is not ``positional``.
        parameters: the mechanism's own arguments.
        per_key: what ``of_tokens`` made of the arguments of tokens: a tree of arrays [B, S, ...].
        per_query: the same for the token of each query, [B, T, ...]; None where queries are not of
            these tokens (T is not S).
    """

    q: Array
    k: Array
    v: Array
    positions: Positions | None
    parameters: Parameters
    per_key: Any
    per_query: Any


@dataclasses.dataclass(frozen=True)
class CacheMechanism(Mechanism):
    """A mechanism given by its ``weigh`` over the visible tokens.

    Attributes:
        chunk_size: queries a block in the chunked form.
        cache_dtype: dtype of the cached keys and values; None = the accumulation dtype of the
            inputs, in which arguments of tokens are always kept.
    """

    positional: ClassVar[bool] = False
    """Whether ``weigh`` is given positions."""
    window: ClassVar[int | None] = None
    """How many tokens a query sees at most, the last ones in ``attend``; None = all."""

    chunk_size: int = 256
    cache_dtype: str | None = None

    def __post_init__(self) -> None:
        at_least(1, chunk_size=self.chunk_size)
        if self.cache_dtype not in (None, *CACHE_DTYPES):
            raise ValueError(
                f"cache_dtype must be None or one of {', '.join(CACHE_DTYPES)}, got "
                f"{self.cache_dtype!r}."
            )

    @abc.abstractmethod
    def weigh(self, pairs: Pairs, visible: Visible | None) -> Outputs:
        """Outputs [B, T, H, V] over the visible tokens; rows that see nothing may be anything.

        ``visible`` is bool [B or 1, T, S]; None = causal attention without padding, T = S.
        """

    def of_tokens(self, per_token: Parameters) -> Any:
        """What ``weigh`` wants of the mechanism's ``token_arguments``, made once a call.

        Args:
            per_token: of all tokens in order of time [B, S, ...], cached ones first; 0 at padding
                and in unused slots.

        Returns:
            A tree of arrays [B, S, ...]; by default the arguments themselves.
        """
        return per_token

    @property
    def block(self) -> int:
        """Cached tokens that ``step`` reads at a time; a cache of no more is read at once."""
        return 2 * self.chunk_size

    def begin(self, q: Array, v: Array) -> Any:
        """Sums over no key for queries [B, 1, H, K]: a tree of arrays, of no values' numbers.

        With ``see`` and ``mean`` it lets ``step`` read the used part of a cache, in blocks. None,
        the default: it weighs all slots at once, and its time follows the cache's capacity.
        """
        return None

    def see(self, sums: Any, pairs: Pairs, visible: Visible) -> Any:
        """Sums over one more block of keys, which comes before all that were seen.

        Args:
            sums: of the later blocks.
            pairs: one query and the block; ``per_key`` are the arguments of tokens themselves, 0
                where not seen, and ``per_query`` is None.
            visible: bool [B, 1, S].
        """
        raise NotImplementedError

    def mean(self, sums: Any, q: Array) -> Outputs:
        """What ``weigh`` gives of all that was seen."""
        raise NotImplementedError

    def _init_state(self, sizes: StateSizes) -> KVCache:
        self._check_capacity(sizes.max_length)
        dtype = sizes.dtype if self.cache_dtype is None else self.cache_dtype
        slots = (sizes.batch_size, sizes.max_length or 0, sizes.num_heads)
        return KVCache(
            key=jnp.zeros((*slots, sizes.key_dim), dtype),
            value=jnp.zeros((*slots, sizes.value_dim), dtype),
            length=jnp.zeros((sizes.batch_size,), jnp.int32),
            growable=sizes.max_length is None,
            per_token={
                each.name: jnp.zeros(
                    (*slots[:2], *each.shape(sizes.num_heads, sizes.key_dim, sizes.value_dim)),
                    sizes.dtype,
                )
                for each in self.token_arguments
            },
        )

    def _check_capacity(self, max_length: int | None) -> None:
        """Refuses caches of more tokens than the mechanism can place."""

    def _attend(self, call: Call) -> tuple[Outputs, State]:
        batch, length, heads, key_dim = call.k.shape
        cache = call.state
        new = jnp.ones((batch, length), bool) if call.mask is None else call.mask
        run = jnp.zeros((batch, length), jnp.int32) if call.runs is None else call.runs.index

        if cache is None:
            cache = self.init_state(batch, heads, key_dim, call.v.shape[-1], dtype=call.v.dtype)
        # An empty cache adds no keys: its slots would only be masked away.
        cached = 0 if call.state is None else cache.capacity
        k, v, per_token = call.k, call.v, call.per_token
        earlier = cache.in_order if cached else cache
        if cached:
            k = jnp.concatenate([earlier.key.astype(k.dtype), k], axis=1)
            v = jnp.concatenate([earlier.value.astype(v.dtype), v], axis=1)
            per_token = jax.tree.map(
                lambda old, new: jnp.concatenate([old, new], axis=1), _of_cached(cache), per_token
            )

        # Cached tokens belong to the run that came in, number 0.
        run_of_key = jnp.pad(run, ((0, 0), (cached, 0)))
        visibility = masks.Visibility(
            is_causal=call.is_causal,
            cached=cached,
            real=jnp.concatenate([earlier.used, new], axis=1) if cached else call.mask,
            query_run=None if call.runs is None else run,
            key_run=None if call.runs is None else run_of_key,
            window=self.window,
        )

        form = call.form
        if form == "auto":
            scores = batch * heads * (key_dim if self.capabilities.channelwise else 1)
            form = choose_form("scored", call.num_queries, k.shape[1], scores)
        positions = None
        if self.positional:
            own = _positions(new, call.runs, cache.length)
            slots = jnp.broadcast_to(jnp.arange(cached, dtype=jnp.int32), (batch, cached))
            positions = Positions(own, jnp.concatenate([slots, own], axis=1))
        if call.num_queries == 0 or k.shape[1] == 0:
            y = jnp.zeros((batch, call.num_queries, *v.shape[2:]), v.dtype)
        else:
            per_key = self.of_tokens(per_token)
            own_tokens = call.num_queries == length
            per_query = jax.tree.map(lambda x: x[:, cached:], per_key) if own_tokens else None
            pairs = Pairs(call.q, k, v, positions, call.parameters, per_key, per_query)
            if form == "chunked":
                y = self._chunked(pairs, visibility)
            else:
                y = self._by_rows(pairs, visibility, 1 if form == "recurrent" else None)
        if cached:
            y = jnp.where(cache.overflowed[:, None, None, None], jnp.nan, y)
        last = run[:, -1:] if length else run
        state = cache.append(
            call.k, call.v, new & (run == last), jnp.any(last > 0, axis=1), call.per_token
        )
        return y, state

    def _chunked(self, pairs: Pairs, visibility: masks.Visibility) -> Array:
        """The form that makes few scores at a time; overridden where a faster one is known."""
        return self._by_rows(pairs, visibility, self.chunk_size)

    def _by_rows(self, pairs: Pairs, visibility: masks.Visibility, size: int | None) -> Array:
        """Applies ``weigh`` to ``size`` queries at a time; None = to all at once."""
        length, keys = pairs.q.shape[1], pairs.k.shape[1]

        def block(_: None, rows: tuple[Array, Array, Array | None, Any]) -> tuple[None, Array]:
            q, index, own, per_query = rows
            here = pairs._replace(q=q, per_query=per_query)
            if pairs.positions is not None and own is not None:
                here = here._replace(positions=pairs.positions._replace(query=own))
            if visibility.is_plain and q.shape[1] == length:
                return None, self.weigh(here, None)
            seen = visibility.block(index[0], jnp.arange(keys, dtype=jnp.int32), keys)
            return None, masks.zero_padding(self.weigh(here, seen), jnp.any(seen, axis=2))

        index = jnp.arange(length, dtype=jnp.int32)[None]
        own = None if pairs.positions is None else pairs.positions.query
        return over_chunks(block, None, (pairs.q, index, own, pairs.per_query), size)[1]

    def _step(self, call: StepCall) -> tuple[OutputStep, State]:
        batch = call.k.shape[0]
        new = jnp.ones((batch, 1), bool) if call.mask is None else call.mask[:, None]
        nowhere = jnp.zeros((batch,), bool)
        k, v, per_token = jax.tree.map(lambda x: x[:, None], (call.k, call.v, call.per_token))
        state = call.state.append(k, v, new, nowhere, per_token)
        q = call.q[:, None].astype(accumulation_dtype(call.q.dtype))
        y = self._of_all(q, state, call.parameters)[:, 0]
        y = jnp.where((state.length == 0)[:, None, None], jnp.zeros_like(y), y)
        return jnp.where(state.overflowed[:, None, None], jnp.nan, y), state

    def _of_all(self, q: Array, cache: KVCache, parameters: Parameters) -> Array:
        """What queries [B, 1, H, K] see that come after all cached tokens: [B, 1, H, V]."""
        if cache.capacity <= self.block or self.begin(q, cache.value) is None:
            return self._of_slots(q, cache, parameters)
        return unless_differentiated(self._of_used, self._of_slots, q, cache, parameters)

    def _of_slots(self, q: Array, cache: KVCache, parameters: Parameters) -> Array:
        """All slots at once, used or not."""
        per_key = self.of_tokens(_of_cached(cache))
        pairs = Pairs(
            q,
            cache.key.astype(q.dtype),
            cache.value.astype(q.dtype),
            self._places(cache, jnp.arange(cache.capacity, dtype=jnp.int32)),
            parameters,
            per_key,
            jax.tree.map(lambda x: _slot(x, cache.length - 1), per_key),
        )
        return self.weigh(pairs, cache.used[:, None, :])

    def _of_used(self, q: Array, cache: KVCache, parameters: Parameters) -> Array:
        """Block by block, from that of the longest row's last token down to the first slots."""
        size = self.block
        used = jnp.minimum(jnp.max(cache.length), cache.capacity)
        blocks = (used + size - 1) // size

        def body(i: Array, sums: Any) -> Any:
            first = (blocks - 1 - i) * size
            # The last block begins sooner where the cache ends within it.
            begin = jnp.minimum(first, cache.capacity - size)
            slots = begin + jnp.arange(size, dtype=jnp.int32)
            seen = (slots >= first) & (slots < cache.length[:, None])
            k, v, per_token = jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, begin, size, 1),
                (cache.key, cache.value, cache.per_token),
            )
            pairs = Pairs(
                q,
                k.astype(q.dtype),
                v.astype(q.dtype),
                self._places(cache, slots),
                parameters,
                {name: masks.zero_padding(x, seen) for name, x in per_token.items()},
                None,
            )
            return self.see(sums, pairs, seen[:, None])

        sums = vary_alike((self.begin(q, cache.value.astype(q.dtype)), q, cache))[0]
        return self.mean(jax.lax.fori_loop(0, blocks, body, sums), q)

    def _places(self, cache: KVCache, slots: Array) -> Positions | None:
        """Of the last token of each row and of some slots."""
        if not self.positional:
            return None
        of_key = jnp.broadcast_to(slots, (cache.length.shape[0], slots.shape[0]))
        return Positions(cache.length[:, None] - 1, of_key)

    def _check_room(self, state: KVCache, parameters: Parameters) -> None:
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
            # Whatever else stands there is refused below.
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


def _of_cached(cache: KVCache) -> Parameters:
    """Arguments of the cached tokens, 0 in unused slots, where those of forgotten ones may lie."""
    return {name: masks.zero_padding(x, cache.used) for name, x in cache.per_token.items()}


def _slot(x: Array, index: Array) -> Array:
    """[B, L, ...] -> [B, 1, ...] at a slot of each row, the nearest one where there is none."""
    return take(x, jnp.clip(index, 0, x.shape[1] - 1)[:, None])


def _positions(real: Array, runs: masks.Segments | None, before: Array) -> Array:
    """Int [B, T], real tokens of the segment that come before each; ``before`` [B] are cached."""
    count = jnp.cumsum(real, axis=1, dtype=jnp.int32)
    if runs is None:
        return jnp.maximum(before[:, None] + count - 1, 0)
    at_start = jax.lax.cummax(jnp.where(runs.starts, count - 1, 0), axis=1)
    offset = jnp.where(runs.index == 0, before[:, None], 0)
    return jnp.maximum(offset + count - 1 - at_start, 0)
