"""Scan over chunks with a gradient that stores no past states.

Differentiating the loop over chunks would store the state before each chunk during the whole
forward pass, in every layer. Here only the inputs are stored. The backward pass recomputes the
states from the left, and holds them only during its own loop over the chunks from the right.
Unlike :mod:`flax_linattn.ops.engine.kernel_scan` it needs these states: the gradient of a decay
depends on the state that it scales.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax

from flax_linattn.ops.engine.chunks import scan_chunks, scan_tokens
from flax_linattn.ops.engine.forms import PerPlatform, scan_form
from flax_linattn.ops.engine.prefix import Span, Tokens
from flax_linattn.ops.engine.primal_only import primal_only
from flax_linattn.ops.engine.recompute_vjp import recompute_vjp
from flax_linattn.typing import Array, State


class Chunk(Protocol):
    """Interface of a hashable mechanism that processes a sequence chunk by chunk."""

    def span_state_and_outputs(self, q: Array, span: Span, before: State) -> tuple[State, Array]:
        """Returns the state after a chunk, and its outputs [B, C, ...]."""

    def span_state(self, span: Span, before: State) -> State:
        """Returns the state after a chunk, without outputs."""


def chunk_scan(
    chunk: Chunk, form: str, sizes: PerPlatform[int | None], q: Array, span: Span, initial: State
) -> tuple[State, Array]:
    """Processes a sequence chunk by chunk.

    Args:
        chunk: Functions of one chunk.
        form: Name of the form; with "auto" the platform decides between chunks and tokens where
            nothing is differentiated.
        sizes: Tokens per chunk; None means one chunk, which JAX differentiates, in forward mode
            too.
        q: Queries of shape [B, T, H, K].
        span: Tokens of shape [B, T, ...] with their masks.
        initial: State before the first token.

    Returns:
        The state after the last token, and the outputs [B, T, ...].
    """
    run: Callable[..., Any] = partial(_auto_scan if form == "auto" else _scan, chunk, sizes)
    # A single chunk stores no past states: JAX differentiates it, in forward mode too.
    if all(size is None or size >= q.shape[1] for size in sizes):
        run = chunk.span_state_and_outputs
        if form == "auto":
            run = partial(primal_only, partial(_undifferentiated, chunk, sizes), run)
    last, y = run(q, span, initial)
    return last, y


def _undifferentiated(
    chunk: Chunk, sizes: PerPlatform[int | None], q: Array, span: Span, initial: State
) -> tuple[State, Array]:
    """Loops over tokens on a CPU, which is faster forward and slower to train, else over chunks."""
    forms: dict[str, Callable[..., Any]] = {
        "chunked": lambda size, *arrays: sizes.run(partial(_plain, chunk), *arrays),
        "recurrent": lambda size, *arrays: _by_tokens(chunk, *arrays),
    }
    last, y = scan_form("chunks", "inference", "auto", forms, q.shape[1])(q, span, initial)
    return last, y


def _by_tokens(chunk: Chunk, q: Array, span: Span, initial: State) -> tuple[State, Array]:
    def body(before: State, now: tuple[Array, Span]) -> tuple[State, Array]:
        q, span = jax.tree.map(lambda x: x[:, None], now)
        after, y = chunk.span_state_and_outputs(q, span, before)
        return after, y[:, 0]

    return scan_tokens(body, initial, (q, span))


def _plain(
    chunk: Chunk, chunk_size: int | None, q: Array, span: Span, initial: State
) -> tuple[State, Array]:
    def body(before: State, now: tuple[Array, Span]) -> tuple[State, Array]:
        q, span = now
        return chunk.span_state_and_outputs(q, span, before)

    return scan_chunks(body, initial, (q, span), chunk_size)


def _gradients(
    chunk: Chunk,
    chunk_size: int | None,
    q: Array,
    span: Span,
    initial: State,
    gradients: Any,
) -> tuple[Array, Tokens, State]:
    dlast, dy = gradients

    def forward_body(before: State, now: tuple[Span]) -> tuple[State, State]:
        return chunk.span_state(now[0], before), before

    def backward_body(dafter: State, now: Any) -> tuple[State, tuple[Array, Tokens]]:
        q, span, dy, before = now

        def outputs(q: Array, tokens: Tokens, before: State) -> tuple[State, Array]:
            return chunk.span_state_and_outputs(q, span._replace(tokens=tokens), before)

        _, pull = jax.vjp(outputs, q, span.tokens, before)
        dq, dtokens, dbefore = pull((dafter, dy))
        return dbefore, (dq, dtokens)

    # The states before all chunks, recomputed: they live only during this backward pass.
    _, states = scan_chunks(forward_body, initial, (span,), chunk_size, stack=True)
    dinitial, (dq, dtokens) = scan_chunks(
        backward_body, dlast, (q, span, dy), chunk_size, per_chunk=states, reverse=True
    )
    return dq, dtokens, dinitial


_scan = recompute_vjp(_plain, _gradients)
_auto_scan = recompute_vjp(_plain, _gradients, _undifferentiated)
