"""The monoid engine: every form of a streaming mechanism from a handful of functions.

Every span of consecutive tokens has a state. ``merge(a, b)`` joins the states of two consecutive
spans (associative, ``identity`` is neutral), and ``read(q, s)`` gives an output. From these follow
the parallel form (one chunk), the chunked form (Aaren's appendix A) and the recurrent form (chunks
of one token), causal or not, with masks, packed segments, an initial and a final state, at any
length.

Mechanisms define what happens inside a chunk: :func:`scan_monoid` serves any ``lift`` by
``jax.lax.associative_scan``, :mod:`flax_linattn.ops.engine.kernel` uses matrix products.

Shapes: states have leaves [B, ...]; lifted tokens have leaves [B, T, ...].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.engine.chunks import scan_chunks
from flax_linattn.typing import Array, Mask, Outputs, State, Visible

Tokens = Any
"""Tree of arrays [B, T, ...] with the inputs of each token: k, v and per-token inputs."""


class Span(NamedTuple):
    """Consecutive tokens with their mask and segment starts: a chunk, a shard or all tokens.

    Attributes:
        tokens: Tree of arrays of shape [B, C, ...], such as keys and values by name.
        mask: Boolean array of shape [B, C]; False marks padding. None means all are valid.
        starts: Boolean array of shape [B, C]; True marks the first token of a packed segment. None
            means one segment.
    """

    tokens: Tokens
    mask: Array | None
    starts: Array | None

    @property
    def size(self) -> tuple[int, int]:
        """Batch size B and number of tokens C."""
        batch, length = jax.tree.leaves(self.tokens)[0].shape[:2]
        return batch, length

    @property
    def segment_index(self) -> Array:
        """Integer array [B, C] of starts so far; 0 marks the segment that the carry belongs to."""
        if self.starts is None:
            return jnp.zeros(self.size, jnp.int32)
        return jnp.cumsum(self.starts, axis=1, dtype=jnp.int32)

    def visible(self, is_causal: bool) -> Visible:
        """Returns which tokens attend to which, Boolean [B or 1, C, C]."""
        length = self.size[1]
        segment_index = None if self.starts is None else self.segment_index
        return masks.visible_rows(
            jnp.arange(length),
            length,
            is_causal=is_causal,
            mask=self.mask,
            segment_index=segment_index,
        )

    def outside_states(
        self, before: State, after: State | None
    ) -> list[tuple[State, Array | None]]:
        """Returns the states outside the span, each with the rows that read it (None: all)."""
        states: list[tuple[State, Array | None]] = [
            (before, None if self.starts is None else self.segment_index == 0)
        ]
        if after is not None:
            states.append((after, self.segment_index == self.segment_index[:, -1:]))
        return states

    def segment_mask(self, segment_index: Array) -> Array | None:
        """Returns the valid tokens of one segment, Boolean [B, C]; None means all."""
        if self.starts is None:
            return self.mask
        there = self.segment_index == segment_index[:, None]
        return there if self.mask is None else there & self.mask


class Monoid(NamedTuple):
    """Functions of a mechanism that the engine calls, with the arguments of a call bound.

    Attributes:
        identity: Neutral state, with leaves [B, ...].
        merge: Function (earlier, later) -> state, for any leading axes.
        read: Function (q or None, states [B, T or 1, ...]) -> y [B, T, H, V].
        reduce: Function (tokens, keep Boolean [B, C] or None) -> state [B, ...] of the selected
            tokens.
        state_and_outputs: Function (q, chunk, before, after, is_causal) -> the state after the
            chunk and the outputs [B, C, H, V]. ``before`` and ``after`` are the states of the parts
            of the chunk's first and last segment that lie outside; ``after`` is None if
            ``is_causal``.
    """

    identity: State
    merge: Callable[[State, State], State]
    read: Callable[[Array | None, State], Array]
    reduce: Callable[[Tokens, Array | None], State]
    state_and_outputs: Callable[
        [Array | None, Span, State, State | None, bool], tuple[State, Array]
    ]


def attend(
    monoid: Monoid,
    q: Array | None,
    tokens: Tokens,
    *,
    is_causal: bool,
    mask: Mask | None,
    starts: Array | None,
    initial: State | None,
    chunk_size: int | None,
    following: State | None = None,
) -> tuple[Outputs, State]:
    """Attends over sequences with a monoid.

    Args:
        monoid: Functions of the mechanism.
        q: Queries of shape [B, T, H, K], or None if ``read`` needs none.
        tokens: Tree of arrays of shape [B, S, ...].
        is_causal: Whether outputs read the prefix instead of the total of the segment.
        mask: Boolean array of shape [B, S]; False marks padding.
        starts: Boolean array of shape [B, S]; True marks the first token of a packed segment, or
            None.
        initial: State before the first token, or None for the identity.
        chunk_size: Tokens per chunk; None means one chunk.
        following: State of the tokens of the last segment that follow ``tokens``, visible too if
            attention is not causal; None for the identity.

    Returns:
        Outputs of shape [B, T, H, V], and the state after the last token.
    """
    carry = monoid.identity if initial is None else initial
    span = Span(tokens, mask, starts)
    length = span.size[1]
    if length == 0:
        return broadcast_read(monoid, q, carry, 0, chunk_size), carry
    span = mask_filling(span, chunk_size)
    if is_causal:

        def body(carry: State, chunk: tuple[Array | None, Span]) -> tuple[State, Array]:
            q, span = chunk
            return monoid.state_and_outputs(q, span, carry, None, True)

        carry, y = scan_chunks(body, carry, (q, span), chunk_size)
        return y, carry
    if starts is None:
        carry = final_state(monoid, span, carry, chunk_size)
        total = carry if following is None else monoid.merge(carry, following)
        return broadcast_read(monoid, q, total, length, chunk_size), carry
    following = monoid.identity if following is None else following
    return _attend_within_segments(monoid, q, span, carry, following, chunk_size)


def final_state(monoid: Monoid, span: Span, carry: State, chunk_size: int | None) -> State:
    """Returns the state after ``span``, computed chunk by chunk."""
    if span.size[1] == 0:
        return carry

    def body(carry: State, chunk: tuple[Span]) -> tuple[State, None]:
        return advance(monoid, chunk[0], carry), None

    return scan_chunks(body, carry, (mask_filling(span, chunk_size),), chunk_size)[0]


def mask_filling(span: Span, chunk_size: int | None) -> Span:
    """Adds a mask if zeros will fill up the last chunk, which then count as padding."""
    if span.mask is not None or chunk_size is None or span.size[1] % chunk_size == 0:
        return span
    return span._replace(mask=jnp.ones(span.size, bool))


def advance(monoid: Monoid, span: Span, before: State) -> State:
    """Returns the state after ``span``: the state of its last segment."""
    last = span.segment_index[:, -1]
    state = monoid.reduce(span.tokens, span.segment_mask(last))
    if span.starts is not None:
        before = select(last == 0, before, drop_missing(monoid.identity, before))
    return monoid.merge(before, state)


def broadcast_read(
    monoid: Monoid, q: Array | None, state: State, length: int, chunk_size: int | None
) -> Array:
    """Reads one state with all queries, or once for ``length`` positions if there are none."""
    state = jax.tree.map(lambda s: s[:, None], state)
    if q is None:
        y = monoid.read(None, state)
        return jnp.broadcast_to(y, (y.shape[0], length, *y.shape[2:]))
    return scan_chunks(lambda _, qs: (None, monoid.read(qs[0], state)), None, (q,), chunk_size)[1]


def select(condition: Array, on_true: State, on_false: State) -> State:
    """Selects whole states; ``condition`` [B, T] or [B] spans their leading axes."""
    return jax.tree.map(
        lambda t, f: jnp.where(
            condition.reshape(condition.shape + (1,) * (t.ndim - condition.ndim)), t, f
        ),
        on_true,
        on_false,
    )


def drop_missing(state: State, like: State) -> State:
    """Returns a state without the fields that are None in ``like``, such as a merge field."""
    return jax.tree.map(
        lambda x, other: None if other is None else x, state, like, is_leaf=lambda x: x is None
    )


def scan(
    merge: Callable[[State, State], State], tokens: State, before: State, starts: Array | None
) -> State:
    """Computes inclusive prefixes [B, T, ...] within segments; the first continues ``before``.

    Args:
        merge: Function (earlier, later) -> state, as in :class:`Monoid`.
        tokens: States [B, T, ...] of tokens or of spans of them.
        before: State [B, ...] before the first.
        starts: Boolean array of shape [B, T]; True marks positions whose segment has no earlier
            state. None means one segment.
    """
    outside = jax.tree.map(lambda b: b[:, None], before)
    if starts is None:
        return merge(outside, jax.lax.associative_scan(merge, tokens, axis=1))

    def merge_segments(a: tuple[Array, State], b: tuple[Array, State]) -> tuple[Array, State]:
        (start_a, state_a), (start_b, state_b) = a, b
        return start_a | start_b, select(start_b, state_b, merge(state_a, state_b))

    started, prefixes = jax.lax.associative_scan(merge_segments, (starts, tokens), axis=1)
    return select(started, drop_missing(prefixes, before), merge(outside, prefixes))


def _attend_within_segments(
    monoid: Monoid,
    q: Array | None,
    span: Span,
    carry: State,
    following: State,
    chunk_size: int | None,
) -> tuple[Array, State]:
    """Reads for every token the total of its own segment, including parts in other chunks.

    A pass from the right carries the state of what follows of the segment in which a chunk ends; a
    pass from the left reads. One state per chunk is stored between them.
    """

    def right_to_left(after: State, chunk: tuple[Span]) -> tuple[State, State]:
        span = chunk[0]
        segment_index = span.segment_index
        first = monoid.reduce(span.tokens, span.segment_mask(jnp.zeros_like(segment_index[:, 0])))
        whole = select(segment_index[:, -1] == 0, after, monoid.identity)
        return monoid.merge(first, whole), after

    def left_to_right(carry: State, chunk: tuple[Array | None, Span, State]) -> tuple[State, Array]:
        q, span, after = chunk
        return monoid.state_and_outputs(q, span, carry, after, False)

    _, after = scan_chunks(right_to_left, following, (span,), chunk_size, reverse=True, stack=True)
    carry, y = scan_chunks(left_to_right, carry, (q, span), chunk_size, per_chunk=after)
    return y, carry


# -- one chunk by associative scan -----------------------------------------------------


def scan_monoid(
    lift: Callable[[Tokens], State],
    merge: Callable[[State, State], State],
    read: Callable[[Array | None, State], Array],
    identity: State,
) -> Monoid:
    """Makes a monoid that processes a chunk by an associative scan over its tokens.

    Args:
        lift: Function from tokens [B, T, ...] to the state [B, T, ...] of each token alone.
        merge: Function of :class:`Monoid`.
        read: Function of :class:`Monoid`.
        identity: Neutral state of :class:`Monoid`.
    """
    nothing = jax.tree.map(lambda i: i[:, None], identity)

    def lift_real(tokens: Tokens, keep: Array | None) -> State:
        states = lift(tokens)
        return states if keep is None else select(keep, states, nothing)

    def outputs(
        q: Array | None, span: Span, before: State, after: State | None, is_causal: bool
    ) -> tuple[State, Array]:
        states = lift_real(span.tokens, span.mask)
        attended = prefixes = scan(merge, states, before, span.starts)
        if not is_causal and span.starts is not None:  # without segments ``attend`` reads one total
            segment_index, end = span.segment_index, _segment_ends(span.starts)
            attended = jax.tree.map(lambda p: jax.vmap(lambda row, at: row[at])(p, end), prefixes)
            outside = jax.tree.map(lambda a: a[:, None], after)
            attended = merge(
                attended, select(segment_index == segment_index[:, -1:], outside, nothing)
            )
        return jax.tree.map(lambda p: p[:, -1], prefixes), read(q, attended)

    return Monoid(
        identity=identity,
        merge=merge,
        read=read,
        reduce=lambda tokens, keep: _reduce(merge, lift_real(tokens, keep)),
        state_and_outputs=outputs,
    )


def _segment_ends(starts: Array) -> Array:
    """Returns the last position of each token's segment, int32 [B, T]."""
    length = starts.shape[1]
    position = jnp.arange(length, dtype=jnp.int32)
    start = jnp.where(starts, position, length)
    start = jnp.pad(start[:, 1:], ((0, 0), (0, 1)), constant_values=length)
    return jax.lax.cummin(start, axis=1, reverse=True) - 1


def _reduce(merge: Callable[[State, State], State], tokens: State) -> State:
    """Merges all states over axis 1 in order by a balanced tree, log2(T) merges deep."""
    length = jax.tree.leaves(tokens)[0].shape[1]
    while length > 1:
        even = length - length % 2
        pairs = merge(
            jax.tree.map(lambda e, n=even: e[:, 0:n:2], tokens),
            jax.tree.map(lambda e, n=even: e[:, 1:n:2], tokens),
        )
        if length % 2:
            pairs = jax.tree.map(
                lambda p, e: jnp.concatenate([p, e[:, -1:]], axis=1), pairs, tokens
            )
        tokens, length = pairs, length // 2 + length % 2
    return jax.tree.map(lambda e: e[:, 0], tokens)
