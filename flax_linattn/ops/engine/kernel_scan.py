"""Causal sums of kernel attention, with a gradient that stores no past states.

A mechanism gives two functions of a chunk: ``span_sums`` (the sums that its positions read) and
``span_state`` (the state after it). Differentiating the loop over chunks would store the state
before each chunk, which is larger than the tokens of the chunk. Here only the inputs are stored.
The backward pass recomputes the states from the left for the gradient of the queries, and carries
the gradient of the state from the right for keys and values. The second pass needs no states,
because sums and states are linear in the state before.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from flax_linattn.ops.engine.chunks import scan_chunks
from flax_linattn.ops.engine.prefix import Span, Tokens, mask_filling
from flax_linattn.ops.engine.recompute_vjp import recompute_vjp
from flax_linattn.typing import Array, State


class LinearChunk(Protocol):
    """Interface of a hashable mechanism; both functions are linear in ``before``."""

    def span_sums(self, q: Array, span: Span, before: State) -> Any:
        """Computes the sums [B, C, ...] of the queries over the chunk and the state before it."""

    def span_state(self, span: Span, before: State) -> State:
        """Returns the state after the chunk."""


def plain_scan(
    chunk: LinearChunk, chunk_size: int | None, q: Array, span: Span, initial: State
) -> tuple[State, Any]:
    """Processes a sequence chunk by chunk; JAX differentiates it, in forward mode too.

    Args:
        chunk: Functions of one chunk.
        chunk_size: Tokens per chunk; None means one chunk.
        q: Queries of shape [B, T, H, K].
        span: Keys and values of shape [B, T, ...] with their masks.
        initial: State before the first token.

    Returns:
        The state after the last token, and the sums [B, T, ...].
    """

    def body(before: State, now: tuple[Array, Span]) -> tuple[State, Any]:
        q, span = now
        return chunk.span_state(span, before), chunk.span_sums(q, span, before)

    return scan_chunks(body, initial, (q, mask_filling(span, chunk_size)), chunk_size)


def _gradients(
    chunk: LinearChunk,
    chunk_size: int | None,
    q: Array,
    span: Span,
    initial: State,
    gradients: Any,
) -> tuple[Array, Tokens, State]:
    span = mask_filling(span, chunk_size)
    dlast, drows = gradients
    nothing = jax.tree.map(jnp.zeros_like, initial)

    def left_to_right(before: State, now: Any) -> tuple[State, Array]:
        q, span, drows = now
        _, pull = jax.vjp(lambda q: chunk.span_sums(q, span, before), q)
        return chunk.span_state(span, before), pull(drows)[0]

    def right_to_left(dafter: State, now: Any) -> tuple[State, Tokens]:
        q, span, drows = now

        def outputs(tokens: Tokens, before: State) -> tuple[State, Any]:
            own = span._replace(tokens=tokens)
            return chunk.span_state(own, before), chunk.span_sums(q, own, before)

        _, pull = jax.vjp(outputs, span.tokens, nothing)  # linear: any state will do
        dtokens, dbefore = pull((dafter, drows))
        return dbefore, dtokens

    arrays = (q, span, drows)
    _, dq = scan_chunks(left_to_right, initial, arrays, chunk_size)
    dinitial, dtokens = scan_chunks(right_to_left, dlast, arrays, chunk_size, reverse=True)
    return dq, dtokens, dinitial


kernel_scan = recompute_vjp(plain_scan, _gradients)
"""``plain_scan`` with a gradient that stores only its inputs, and a chunk size per platform."""
