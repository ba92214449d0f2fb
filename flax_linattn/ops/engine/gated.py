"""Gated mechanisms: every token applies an affine map to the state; there is no denominator.

A span of tokens maps the state S [K, V] before it to the state after it, S -> M S + N. Gated linear
attention has M = diag(exp(a)) with log-decays a, the delta rule a full matrix. A state describes M
in its field ``merge_field`` and holds N in its field ``value``. Two maps compose, so two spans
merge. Outputs do not depend on M, so it is None in layers, and where no state is returned. Chunks
are processed by matrix products. Packed segments need no masks: a log-decay of -inf at their first
token resets the state.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.call import Call, StepCall
from flax_linattn.ops.contract.numerics import (
    einsum,
    match_varying_axes,
    multiply_by_scalar,
    score_scale,
)
from flax_linattn.ops.engine import prefix
from flax_linattn.ops.engine.chunk_scan import chunk_scan
from flax_linattn.ops.engine.forms import MAX_ONE_CHUNK_LENGTH, PerPlatform, chunk_sizes
from flax_linattn.ops.engine.streaming import StreamingMechanism
from flax_linattn.typing import Array, Outputs, OutputStep, Parameters, State


@dataclasses.dataclass(frozen=True)
class GatedMechanism(StreamingMechanism):
    """Base class of gated mechanisms, defined by the state and the outputs of a chunk.

    ``chunk_state`` and ``chunk_outputs`` take the tokens by name, with log-decays ``log_decay``
    [B, C, H] or [B, C, H, K]; tokens of zeros change nothing.

    Attributes:
        chunk_size: Tokens per chunk in the chunked form.
        scale: Factor of the outputs if a call passes none; None means K**-0.5.
    """

    scan: ClassVar[str] = "chunks"

    chunk_size: int = 64
    scale: float | None = None

    @abc.abstractmethod
    def chunk_state(self, tokens: dict[str, Array], before: State) -> State:
        """Returns the state after a chunk of one segment, without M if ``before`` has none."""

    @abc.abstractmethod
    def chunk_outputs(self, q: Array, tokens: dict[str, Array], before: State) -> Array:
        """Computes the outputs [B, C, H, V] of a chunk, given the state before it.

        Log-decays are -inf where a segment starts.
        """

    # -- the monoid ----------------------------------------------------------------

    def prepare(
        self, q: Array, k: Array, v: Array, parameters: Parameters
    ) -> tuple[Array, Array, Array]:
        scale = score_scale(parameters.get("scale"), self.scale, q.shape[-1])
        return multiply_by_scalar(q, scale), k, v

    def _lift_tokens(self, q: Array, tokens: dict[str, Array]) -> State:
        """Returns the state of each token alone, [B, T, ...]."""
        batch, length = tokens["k"].shape[:2]
        alone = jax.tree.map(lambda x: x.reshape(batch * length, 1, *x.shape[2:]), tokens)
        state = self.chunk_state(alone, self._identity_state(alone["k"][:, 0], alone["v"][:, 0]))
        return jax.tree.map(lambda x: x.reshape(batch, length, *x.shape[1:]), state)

    def lift(self, k: Array, v: Array, query: Array | None = None, **per_token: Array) -> State:
        tokens = {"k": k, "v": v, **per_token}
        lead = k.shape[:-2]
        flat = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[len(lead) :]), tokens)
        return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[2:]), self._lift_tokens(k, flat))

    def _make_monoid(self, q: Array, identity: State) -> prefix.Monoid:
        def outputs(
            q: Array | None, span: prefix.Span, before: State, after: State | None, is_causal: bool
        ) -> tuple[State, Array]:
            return self.span_state_and_outputs(self._require_query(q), span, before)

        return prefix.Monoid(
            identity=identity,
            merge=self._merge,
            read=self.read,
            reduce=self._reduce_tokens,
            state_and_outputs=outputs,
        )

    def _reduce_tokens(self, tokens: dict[str, Array], keep: Array | None) -> State:
        valid = jax.tree.map(lambda x: masks.zero_padding(x, keep), tokens)
        k, v = tokens["k"], tokens["v"]
        return self.chunk_state(valid, self._identity_state(k, v))

    def read(self, q: Array | None, state: State) -> Array:
        return einsum("...hk,...hkv->...hv", self._require_query(q), state.value)

    # -- one chunk -----------------------------------------------------------------

    def span_state(self, span: prefix.Span, before: State) -> State:
        """Returns the state after the last segment of a chunk (``chunk_scan.Chunk``)."""
        if span.starts is None:
            return self.chunk_state(span.tokens, before)
        in_last = span.segment_mask(span.segment_index[:, -1])
        own = jax.tree.map(lambda x: masks.zero_padding(x, in_last), span.tokens)
        return self.chunk_state(own, self.segment_carry(span, before))

    def segment_carry(self, span: prefix.Span, before: State) -> State:
        """Returns ``before``, or the identity where a segment starts within the chunk."""
        if span.starts is None:
            return before
        nothing = self._identity_state(span.tokens["k"], span.tokens["v"])
        nothing = prefix.drop_missing(nothing, before)
        return prefix.select(span.segment_index[:, -1] == 0, before, nothing)

    def span_state_and_outputs(
        self, q: Array, span: prefix.Span, before: State
    ) -> tuple[State, Array]:
        """Returns the state after a chunk, and its outputs (``chunk_scan.Chunk``)."""
        if span.size[1] == 1:  # as in a step: twice as fast on a CPU as a product of one token
            state = self.span_state(span, before)
            return state, self.read(q[:, 0], state)[:, None]
        return self.span_state(span, before), self.chunk_outputs(
            q, tokens_with_resets(span), before
        )

    def _attend_causal(
        self, call: Call, q: Array, tokens: dict[str, Array]
    ) -> tuple[Outputs, State]:
        identity = self._identity_state(call.k, call.v)
        state = identity if call.state is None else call.state
        if call.k.shape[1] == 0:
            return tokens["v"], state
        if not call.return_state:
            state = self._drop_merge_field(state)
        # Padding is zeros, which change nothing, so only packed segments need a mask.
        span = prefix.Span(tokens, call.mask if call.segments is not None else None, call.starts)
        if call.segments is not None and span.mask is None:
            span = span._replace(mask=jnp.ones(span.size, bool))
        chunk_size = self._chunk_size(call, identity)
        sizes = PerPlatform(chunk_size, chunk_size)
        if call.form == "auto" and chunk_size is not None:
            sizes = chunk_sizes("gated", call.k.shape[1], chunk_size, chunk_size)
        state, y = chunk_scan(self, call.form, sizes, *match_varying_axes((q, span, state)))
        return y, state

    def _chunk_size(self, call: Call, identity: State) -> int | None:
        size = super()._chunk_size(call, identity)
        if size is None and call.form == "auto" and call.k.shape[1] > MAX_ONE_CHUNK_LENGTH:
            return self.chunk_size
        return size

    def _floats_per_token(self, identity: State) -> int:
        return math.prod(identity.value.shape[:-1])  # without V: the state exists once per chunk

    def _step(self, call: StepCall) -> tuple[OutputStep, State]:
        q, token = self._prepare(call)
        state = self.chunk_state(jax.tree.map(lambda x: x[:, None], token), call.state)
        if call.mask is not None:
            state = prefix.select(call.mask, state, call.state)
        return self.read(q, state), state


def tokens_with_resets(span: prefix.Span) -> dict[str, Array]:
    """Returns the tokens of a chunk with log-decays of -inf where segments start."""
    if span.starts is None:
        return span.tokens
    decay = span.tokens["log_decay"]
    starts = span.starts.reshape(*span.starts.shape, *(1,) * (decay.ndim - 2))
    return {**span.tokens, "log_decay": jnp.where(starts, -jnp.inf, decay)}
