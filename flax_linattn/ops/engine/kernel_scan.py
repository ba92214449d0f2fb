"""Causal sums of kernel attention, whose gradient keeps no state of the past.

A chunk is given by two functions: its ``rows`` (the sums that its positions see) and the state
``after`` it. Differentiating the loop over chunks would keep the state before each of them, which
is larger than the tokens of a chunk. Here only the inputs are kept, since rows and states are
linear in the state before: the backward pass makes the states again, from the left, for the
gradient of the queries, and carries their gradient, from the right, for keys and values.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from flax_linattn.ops.engine.chunks import over_chunks
from flax_linattn.ops.engine.prefix import Span, Tokens, fillable
from flax_linattn.ops.engine.recompute_vjp import keeping_inputs
from flax_linattn.typing import Array, State


class LinearChunk(Protocol):
    """What a hashable mechanism gives; both are linear in ``before``."""

    def rows(self, q: Array, span: Span, before: State) -> Any:
        """Sums [B, C, ...] of the queries of a chunk, over its tokens and the state before it."""

    def after(self, span: Span, before: State) -> State:
        """The state after the chunk."""


def plain_scan(
    chunk: LinearChunk, chunk_size: int | None, q: Array, span: Span, initial: State
) -> tuple[State, Any]:
    """Segments over the chunks of a sequence; JAX differentiates it, forwards too.

    Args:
        chunk: its functions.
        chunk_size: tokens a chunk; None = all in one.
        q: queries [B, T, H, K].
        span: keys, values, masks [B, T, ...].
        initial: the state before the first token.

    Returns:
        The state after the last token, and the sums [B, T, ...].
    """

    def body(before: State, now: tuple[Array, Span]) -> tuple[State, Any]:
        q, span = now
        return chunk.after(span, before), chunk.rows(q, span, before)

    return over_chunks(body, initial, (q, fillable(span, chunk_size)), chunk_size)


def _gradients(
    chunk: LinearChunk,
    chunk_size: int | None,
    q: Array,
    span: Span,
    initial: State,
    gradients: Any,
) -> tuple[Array, Tokens, State]:
    span = fillable(span, chunk_size)
    dlast, drows = gradients
    nothing = jax.tree.map(jnp.zeros_like, initial)

    def from_left(before: State, now: Any) -> tuple[State, Array]:
        q, span, drows = now
        _, pull = jax.vjp(lambda q: chunk.rows(q, span, before), q)
        return chunk.after(span, before), pull(drows)[0]

    def from_right(dafter: State, now: Any) -> tuple[State, Tokens]:
        q, span, drows = now

        def outputs(tokens: Tokens, before: State) -> tuple[State, Any]:
            own = span._replace(tokens=tokens)
            return chunk.after(own, before), chunk.rows(q, own, before)

        _, pull = jax.vjp(outputs, span.tokens, nothing)  # linear: any state will do
        dtokens, dbefore = pull((dafter, drows))
        return dbefore, dtokens

    arrays = (q, span, drows)
    _, dq = over_chunks(from_left, initial, arrays, chunk_size)
    dinitial, dtokens = over_chunks(from_right, dlast, arrays, chunk_size, reverse=True)
    return dq, dtokens, dinitial


kernel_scan = keeping_inputs(plain_scan, _gradients)
"""``plain_scan`` with a gradient that keeps its inputs alone, and chunks by platform."""
