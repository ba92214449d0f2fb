"""Chunks one after another, whose gradient keeps no state of the past.

Differentiating the loop over chunks would keep the state before each from the forward pass on, for
every layer. Here only the inputs are kept. The backward pass makes the states again from the left,
and has them all for as long as it goes back through the chunks from the right. Unlike
:mod:`flax_linattn.ops.engine.kernel_scan` a chunk need not be linear in the state before it, as the
gradient of a decay is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax

from flax_linattn.ops.engine.chunks import over_chunks, over_tokens
from flax_linattn.ops.engine.forms import PerPlatform, scan_form
from flax_linattn.ops.engine.prefix import Span, Tokens
from flax_linattn.ops.engine.primal_only import unless_differentiated
from flax_linattn.ops.engine.recompute_vjp import keeping_inputs
from flax_linattn.typing import Array, State


class Chunk(Protocol):
    """What a hashable mechanism gives."""

    def rows_and_state(self, q: Array, span: Span, before: State) -> tuple[State, Array]:
        """The state after a chunk, and its outputs [B, C, ...]."""

    def after(self, span: Span, before: State) -> State:
        """The state alone."""


def chunk_scan(
    chunk: Chunk, form: str, sizes: PerPlatform[int | None], q: Array, span: Span, initial: State
) -> tuple[State, Array]:
    """Segments over the chunks of a sequence.

    Args:
        chunk: its functions.
        form: where "auto", the platform decides how to run what is not differentiated.
        sizes: tokens a chunk; None = all in one, which JAX differentiates, forwards too.
        q: queries [B, T, H, K].
        span: what is known of the tokens [B, T, ...].
        initial: the state before the first token.

    Returns:
        The state after the last token, and the outputs [B, T, ...].
    """
    by_chunks: Callable[..., Any] = partial(_scan, chunk, sizes)
    if all(size is None or size >= q.shape[1] for size in sizes):
        by_chunks = chunk.rows_and_state
    if form != "auto":
        last, y = by_chunks(q, span, initial)
        return last, y
    forms: dict[str, Callable[..., Any]] = {
        "chunked": lambda size, *arrays: by_chunks(*arrays),
        "recurrent": lambda size, *arrays: _by_tokens(chunk, *arrays),
    }
    plain = scan_form("chunks", "inference", form, forms, q.shape[1])
    last, y = unless_differentiated(plain, by_chunks, q, span, initial)
    return last, y


def _by_tokens(chunk: Chunk, q: Array, span: Span, initial: State) -> tuple[State, Array]:
    def body(before: State, now: tuple[Array, Span]) -> tuple[State, Array]:
        q, span = jax.tree.map(lambda x: x[:, None], now)
        after, y = chunk.rows_and_state(q, span, before)
        return after, y[:, 0]

    return over_tokens(body, initial, (q, span))


def _plain(
    chunk: Chunk, chunk_size: int | None, q: Array, span: Span, initial: State
) -> tuple[State, Array]:
    def body(before: State, now: tuple[Array, Span]) -> tuple[State, Array]:
        q, span = now
        return chunk.rows_and_state(q, span, before)

    return over_chunks(body, initial, (q, span), chunk_size)


def _gradients(
    chunk: Chunk,
    chunk_size: int | None,
    q: Array,
    span: Span,
    initial: State,
    gradients: Any,
) -> tuple[Array, Tokens, State]:
    dlast, dy = gradients

    def from_left(before: State, now: tuple[Span]) -> tuple[State, State]:
        return chunk.after(now[0], before), before

    def from_right(dafter: State, now: Any) -> tuple[State, tuple[Array, Tokens]]:
        q, span, dy, before = now

        def outputs(q: Array, tokens: Tokens, before: State) -> tuple[State, Array]:
            return chunk.rows_and_state(q, span._replace(tokens=tokens), before)

        _, pull = jax.vjp(outputs, q, span.tokens, before)
        dq, dtokens, dbefore = pull((dafter, dy))
        return dbefore, (dq, dtokens)

    _, states = over_chunks(from_left, initial, (span,), chunk_size, stack=True)
    dinitial, (dq, dtokens) = over_chunks(
        from_right, dlast, (q, span, dy), chunk_size, per_chunk=states, reverse=True
    )
    return dq, dtokens, dinitial


_scan = keeping_inputs(_plain, _gradients)
