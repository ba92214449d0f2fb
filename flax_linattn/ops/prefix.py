"""The monoid engine: every form of a streaming mechanism from three functions.

``lift(k, v)`` turns tokens into states, ``merge(a, b)`` joins the state of a span with that
of the next span (associative, ``identity`` is neutral), ``read(q, s)`` gives the output.
From these follow the parallel form (one chunk), the chunked form (Aaren's appendix A,
block by block) and the recurrent form (chunks of one token), causal or not, with masks,
packed segments, an initial and a final state, at any length.

Shapes: states have leaves [B, ...]; lifted tokens have leaves [B, T, ...].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.typing import Array, Keys, Mask, Outputs, State, Values


class Monoid(NamedTuple):
    """What the engine needs of a mechanism, its arguments bound.

    Attributes:
        lift: (k [B, T, H, K], v [B, T, H, V]) -> states [B, T, ...].
        merge: (earlier, later) -> state; works on any leading axes.
        read: (q or None, states [B, T, ...]) -> y [B, T, H, V].
        identity: the neutral state, leaves [B, ...].
    """

    lift: Callable[[Array, Array], State]
    merge: Callable[[State, State], State]
    read: Callable[[Any, State], Array]
    identity: State


def attend(
    monoid: Monoid,
    q: Array | None,
    k: Keys,
    v: Values,
    *,
    is_causal: bool,
    mask: Mask | None,
    starts: Array | None,
    initial: State | None,
    chunk_size: int | None,
) -> tuple[Outputs, State]:
    """Runs a monoid over sequences.

    Args:
        monoid: the mechanism's functions.
        q: queries [B, T, H, K], or None where ``read`` needs none.
        k: keys [B, S, H, K].
        v: values [B, S, H, V].
        is_causal: outputs read the prefix, otherwise the total of the run.
        mask: bool [B, S], False = the token is the identity.
        starts: bool [B, S], True = a packed segment begins here, or None.
        initial: the state before the first token, or None for the identity.
        chunk_size: tokens a chunk; None = all in one.

    Returns:
        y [B, T, H, V] and the state after the last token.
    """
    carry = monoid.identity if initial is None else initial
    if k.shape[1] == 0:
        return _read_everywhere(monoid, q, carry, 0), carry
    tokens = _Tokens(k, v, mask, starts)
    if is_causal:
        return _causal(monoid, q, tokens, carry, chunk_size)
    if starts is None:
        total = _total(monoid, tokens, carry, chunk_size)
        return _read_everywhere(monoid, q, total, k.shape[1]), total
    return _within_runs(monoid, q, tokens, starts, carry, chunk_size)


def _read_everywhere(monoid: Monoid, q: Array | None, state: State, length: int) -> Array:
    y = monoid.read(q, jax.tree.map(lambda s: s[:, None], state))
    if q is not None:
        return y
    return jnp.broadcast_to(y, (y.shape[0], length, *y.shape[2:]))


class _Tokens(NamedTuple):
    k: Array
    v: Array
    mask: Array | None
    starts: Array | None

    def lift(self, monoid: Monoid) -> State:
        """States of the single tokens; a masked one is the identity."""
        lifted = monoid.lift(self.k, self.v)
        if self.mask is None:
            return lifted
        return select(self.mask, lifted, jax.tree.map(lambda i: i[:, None], monoid.identity))


def select(condition: Array, on_true: State, on_false: State) -> State:
    """Chooses whole states; ``condition`` [B, T] or [B] spans their leading axes."""

    def choose(t: Array, f: Array) -> Array:
        return jnp.where(
            condition.reshape(condition.shape + (1,) * (t.ndim - condition.ndim)), t, f
        )

    return jax.tree.map(choose, on_true, on_false)


def _scan(
    monoid: Monoid, elements: State, carry: State, starts: Array | None, reverse: bool = False
) -> State:
    """Inclusive prefixes (suffixes if ``reverse``) [B, T, ...], the carry taken in.

    ``starts`` marks the elements at which, in scan direction, everything before is dropped.
    """
    merge = monoid.merge if not reverse else lambda later, earlier: monoid.merge(earlier, later)
    outside = jax.tree.map(lambda c: c[:, None], carry)
    if starts is None:
        prefixes = jax.lax.associative_scan(merge, elements, axis=1, reverse=reverse)
        return merge(outside, prefixes)

    def merge_runs(a: tuple[Array, State], b: tuple[Array, State]) -> tuple[Array, State]:
        (start_a, state_a), (start_b, state_b) = a, b
        return start_a | start_b, select(start_b, state_b, merge(state_a, state_b))

    started, prefixes = jax.lax.associative_scan(
        merge_runs, (starts, elements), axis=1, reverse=reverse
    )
    return select(started, prefixes, merge(outside, prefixes))


def _reduce(merge: Callable[[State, State], State], elements: State) -> State:
    """The ordered total over axis 1 by a balanced tree: log2(T) merges deep."""
    length = jax.tree.leaves(elements)[0].shape[1]
    while length > 1:
        even = length - length % 2
        pairs = merge(
            jax.tree.map(lambda e, n=even: e[:, 0:n:2], elements),
            jax.tree.map(lambda e, n=even: e[:, 1:n:2], elements),
        )
        if length % 2:
            pairs = jax.tree.map(
                lambda p, e: jnp.concatenate([p, e[:, -1:]], axis=1), pairs, elements
            )
        elements, length = pairs, length // 2 + length % 2
    return jax.tree.map(lambda e: e[:, 0], elements)


def _causal(
    monoid: Monoid, q: Array | None, tokens: _Tokens, carry: State, chunk_size: int | None
) -> tuple[Array, State]:
    def body(carry: State, chunk: tuple[Array | None, _Tokens]) -> tuple[State, Array]:
        q, tokens = chunk
        prefixes = _scan(monoid, tokens.lift(monoid), carry, tokens.starts)
        return jax.tree.map(lambda p: p[:, -1], prefixes), monoid.read(q, prefixes)

    carry, y = _over_chunks(body, carry, (q, tokens), chunk_size)
    return y, carry


def _total(monoid: Monoid, tokens: _Tokens, carry: State, chunk_size: int | None) -> State:
    def body(carry: State, tokens: _Tokens) -> tuple[State, None]:
        return monoid.merge(carry, _reduce(monoid.merge, tokens.lift(monoid))), None

    return _over_chunks(body, carry, tokens, chunk_size)[0]


def _within_runs(
    monoid: Monoid,
    q: Array | None,
    tokens: _Tokens,
    starts: Array,
    carry: State,
    chunk_size: int | None,
) -> tuple[Array, State]:
    """Totals of each token's own run: its inclusive prefix merged with what follows it.

    A first pass from the right carries the suffixes over chunk borders, a second from the
    left reads. Only one state a chunk is kept between them.
    """
    ends = jnp.pad(starts[:, 1:], ((0, 0), (0, 1)))

    def suffixes(after: State, tokens: _Tokens, ends: Array) -> State:
        return _scan(monoid, tokens.lift(monoid), after, ends, reverse=True)

    def from_right(after: State, chunk: tuple[_Tokens, Array]) -> tuple[State, State]:
        tokens, ends = chunk
        return jax.tree.map(lambda s: s[:, 0], suffixes(after, tokens, ends)), after

    def from_left(carry: State, chunk: tuple[Any, _Tokens, Array, State]) -> tuple[State, Array]:
        q, tokens, ends, after = chunk
        prefixes = _scan(monoid, tokens.lift(monoid), carry, tokens.starts)
        following = jax.tree.map(
            lambda s, a: jnp.concatenate([s[:, 1:], a[:, None]], axis=1),
            suffixes(after, tokens, ends),
            after,
        )
        nothing = jax.tree.map(lambda i: i[:, None], monoid.identity)
        totals = monoid.merge(prefixes, select(ends, nothing, following))
        return jax.tree.map(lambda p: p[:, -1], prefixes), monoid.read(q, totals)

    _, after = _over_chunks(
        from_right, monoid.identity, (tokens, ends), chunk_size, reverse=True, stack=True
    )
    carry, y = _over_chunks(from_left, carry, (q, tokens, ends), chunk_size, per_chunk=after)
    return y, carry


def _over_chunks(
    body: Callable[[State, Any], tuple[State, Any]],
    carry: State,
    arrays: Any,
    chunk_size: int | None,
    *,
    per_chunk: Any = None,
    reverse: bool = False,
    stack: bool = False,
) -> tuple[State, Any]:
    """The one chunk loop: ``body`` over spans of ``chunk_size`` along axis 1.

    The last span is filled up with masked tokens. ``per_chunk`` holds extra inputs
    [chunks, ...]. The outputs are joined along axis 1, or stacked as [chunks, ...].
    """
    length = jax.tree.leaves(arrays)[0].shape[1]
    if chunk_size is None or chunk_size >= length:
        chunk_size = length
    chunks = -(-length // chunk_size)
    filler = chunks * chunk_size - length
    if filler:
        arrays = _fill(arrays, filler)

    if chunks == 1:
        extra = () if per_chunk is None else (jax.tree.map(lambda p: p[0], per_chunk),)
        carry, y = body(carry, (*arrays, *extra) if extra else arrays)
        return carry, jax.tree.map(lambda o: o[None], y) if stack else y

    def split(a: Array) -> Array:
        return jnp.moveaxis(a.reshape(a.shape[0], chunks, chunk_size, *a.shape[2:]), 1, 0)

    def join(o: Array) -> Array:
        o = jnp.moveaxis(o, 0, 1)
        return o.reshape(o.shape[0], chunks * chunk_size, *o.shape[3:])[:, :length]

    spans = jax.tree.map(split, arrays)
    if per_chunk is not None:
        spans = (*spans, per_chunk)
    # Recomputing a chunk in the backward pass keeps one state a chunk instead of one a token.
    if chunk_size > 1:
        body = partial(jax.checkpoint, prevent_cse=False)(body)
    carry, y = jax.lax.scan(body, carry, spans, reverse=reverse)
    return carry, y if stack else jax.tree.map(join, y)


def _fill(arrays: Any, filler: int) -> Any:
    """Adds ``filler`` masked tokens at the end, making the mask where there was none."""

    def pad(a: Array) -> Array:
        return jnp.pad(a, ((0, 0), (0, filler)) + ((0, 0),) * (a.ndim - 2))

    def mask_of(node: Any) -> Any:
        if isinstance(node, _Tokens) and node.mask is None:
            return node._replace(mask=jnp.ones(node.k.shape[:2], bool))
        return node

    is_tokens = lambda node: isinstance(node, _Tokens)  # noqa: E731
    return jax.tree.map(pad, jax.tree.map(mask_of, arrays, is_leaf=is_tokens))
