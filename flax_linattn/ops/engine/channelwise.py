"""Channelwise softmax: every channel has its own scores, hence no matrix product can weigh.

Scores are made for a block of queries and a block of keys at a time and summed up by the
operator on (m, u, w), so that no T x S x C tensor exists.
"""

from __future__ import annotations

import abc
import dataclasses

import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.engine import exponential
from flax_linattn.ops.engine.cache import CacheMechanism
from flax_linattn.ops.engine.chunks import over_chunks
from flax_linattn.ops.engine.exponential import ExponentialState
from flax_linattn.typing import Array, Outputs, Visible


@dataclasses.dataclass(frozen=True)
class ChannelwiseSoftmax(CacheMechanism):
    """Softmax over the visible tokens in every channel, given by its ``scores``.

    Attributes:
        chunk_size: queries a block, and keys a block within it.
    """

    chunk_size: int = 64

    @abc.abstractmethod
    def scores(
        self, q: Array, k: Array, positions: tuple[Array, Array] | None, **parameters: Array
    ) -> Array:
        """[B, T, 1, H, K] and [B, 1, S, H, K] -> [B, T, S, H, K]."""

    def weigh(
        self,
        q: Array,
        k: Array,
        v: Array,
        visible: Visible | None,
        *,
        positions: tuple[Array, Array] | None = None,
        **parameters: Array,
    ) -> Outputs:
        dtype, queries = accumulation_dtype(q.dtype), q.shape[1]
        q, k, v = (x.astype(dtype) for x in (q, k, v))
        if visible is None:
            visible = masks.visible_rows(jnp.arange(queries), k.shape[1], is_causal=True)
        # Few queries take many keys at a time: about chunk_size^2 scores a channel in all.
        block = max(self.chunk_size, self.chunk_size**2 // queries)

        of_query, of_key = (None, None) if positions is None else positions

        def body(
            carry: ExponentialState, keys: tuple[Array, Array, Array, Array | None]
        ) -> tuple[ExponentialState, None]:
            k, v, seen, position = keys
            where = None if position is None or of_query is None else (of_query, position)
            score = self.scores(q[:, :, None], k[:, None], where, **parameters)
            nowhere = jnp.asarray(-jnp.inf, score.dtype)
            score = jnp.where(jnp.moveaxis(seen, 1, 2)[..., None, None], score, nowhere)
            return carry.merge(exponential.summarise(score, v[:, None], axis=2)), None

        nothing = exponential.empty(q.shape, q.shape, q.dtype)
        seen = jnp.moveaxis(visible, 2, 1)
        state, _ = over_chunks(body, nothing, (k, v, seen, of_key), block)
        return state.mean
