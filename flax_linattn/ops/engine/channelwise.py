"""Channelwise softmax: every channel has its own scores, so no matrix product can apply weights.

Scores are computed for one block of queries and keys at a time and summed by the operator on
(m, u, w), so that no T x S x C tensor exists (``engine/channel_blocks.py``).
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.numerics import accumulation_dtype, einsum, exp_difference
from flax_linattn.ops.engine import exponential
from flax_linattn.ops.engine.cache import CacheMechanism, Pairs, Positions, Slots
from flax_linattn.ops.engine.channel_blocks import (
    Tokens,
    attend_by_channel,
    gather_bias,
    update_sums,
)
from flax_linattn.ops.engine.chunks import scan_chunks
from flax_linattn.ops.engine.exponential import ExponentialState
from flax_linattn.typing import Array, Outputs, Parameters, Visible


@dataclasses.dataclass(frozen=True)
class ChannelwiseSoftmax(CacheMechanism):
    """Softmax over the visible tokens in every channel, defined by ``scores``.

    Attributes:
        chunk_size: Maximum number of queries, and of keys, per block in the chunked form.
    """

    chunk_size: int = 64

    @abc.abstractmethod
    def scores(self, q: Array, k: Array, bias: Array | None) -> Array:
        """Computes scores [B, T, S, ...] of queries [B, T, 1, ...] and keys [B, 1, S, ...].

        They are logarithms of weights, or increase with them where ``relative_weight`` is
        overridden. ``bias`` [B, T, S] are the entries of ``table`` for the pairs.
        """

    def table(self, parameters: Parameters) -> Array | None:
        """Returns the biases [N, N] of pairs of positions, or None if there are none."""
        return None

    def relative_weight(self, score: Array, maximum: Array) -> Array:
        """Returns the weight of a score over that of the maximum, at most 1; both may be -inf."""
        return exp_difference(score, maximum)

    def log_weight(self, q: Array, k: Array, bias: Array | None) -> Array:
        """Returns the log-weights, of which only the gradient is used; by default the scores."""
        return self.scores(q, k, bias)

    def attend_block(self, pairs: Pairs, visible: Visible | None) -> Outputs:
        dtype, queries = accumulation_dtype(pairs.q.dtype), pairs.q.shape[1]
        q, k, v = (x.astype(dtype) for x in pairs[:3])
        positions = pairs.positions
        if visible is None:
            visible = masks.visible_rows(jnp.arange(queries), k.shape[1], is_causal=True)
        # The fewer queries, the more keys per block: about chunk_size^2 scores per channel.
        block = max(self.chunk_size, self.chunk_size**2 // queries)

        def body(
            sums: ExponentialState, keys: tuple[Array, Array, Array, Array | None]
        ) -> tuple[ExponentialState, None]:
            k, v, visible_by_key, position = keys
            places = None
            if positions is not None and position is not None:
                places = Positions(positions.query, position)
            bias = gather_bias(self.table(pairs.parameters), places)
            visible = jnp.swapaxes(visible_by_key, 1, 2)
            return update_sums(self, sums, Tokens(q, k, v), bias, visible), None

        visible_by_key = pairs.per_pair.visible_by_key(visible)
        position = None if positions is None else positions.key
        begin = exponential.empty_state(q.shape, q.shape, q.dtype)
        sums, _ = scan_chunks(body, begin, (k, v, visible_by_key, position), block)
        return self.finish(sums.mean, q)

    def _attend_chunked(self, pairs: Pairs, visibility: masks.Visibility) -> Array:
        dtype = accumulation_dtype(pairs.q.dtype)
        tokens = Tokens(*(x.astype(dtype) for x in pairs[:3]))
        y = attend_by_channel(
            self,
            tokens,
            self.table(pairs.parameters),
            visibility,
            pairs.positions,
            self.chunk_size,
        )
        return self.finish(y, tokens.q)

    @property
    def block(self) -> int:
        return 2 * self.chunk_size

    def init_sums(self, q: Array, v: Array) -> ExponentialState:
        return exponential.empty_state(q.shape, q.shape, q.dtype)

    def update_sums(self, sums: Any, q: Array, slots: Slots) -> ExponentialState:
        bias = gather_bias(self.table(slots.parameters), slots.positions)
        bias = None if bias is None else bias.astype(q.dtype)
        visible = slots.per_pair.visible_pairs(slots.visible[:, None])[:, :, 0, :, None]
        # Heads stand for the queries of ``scores``: each has its own keys.
        score = jnp.where(visible, self.scores(q, slots.k, bias), -jnp.inf)
        m = jnp.maximum(sums.m, jnp.max(score, axis=2, keepdims=True))
        m = jax.lax.stop_gradient(m)
        weight, factor = self.relative_weight(score, m), self.relative_weight(sums.m, m)
        # A sum of products takes a CPU 5 times as long as this einsum.
        here = einsum("bhsk,bhsk->bhk", weight, slots.v)[:, :, None]
        total = jnp.sum(weight, axis=2, keepdims=True)
        return ExponentialState(m, factor * sums.u + total, factor * sums.w + here)

    def mean_of_sums(self, sums: Any, q: Array) -> Array:
        return self.finish(sums.mean, q)

    def finish(self, y: Array, q: Array) -> Array:
        """Returns the outputs, given the means [B, T, H, K]."""
        return y
