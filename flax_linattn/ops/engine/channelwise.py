"""Channelwise softmax: every channel has its own scores, hence no matrix product can weigh.

Scores are made for a block of queries and a block of keys at a time and summed up by the
operator on (m, u, w), so that no T x S x C tensor exists.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.numerics import accumulation_dtype, exp_difference
from flax_linattn.ops.engine import exponential
from flax_linattn.ops.engine.cache import CacheMechanism, Pairs, Positions
from flax_linattn.ops.engine.chunks import over_chunks
from flax_linattn.ops.engine.exponential import ExponentialState
from flax_linattn.typing import Array, Outputs, Parameters, Visible


@dataclasses.dataclass(frozen=True)
class ChannelwiseSoftmax(CacheMechanism):
    """Softmax over the visible tokens in every channel, given by its ``scores``.

    Attributes:
        chunk_size: queries a block, and keys a block within it.
    """

    chunk_size: int = 64

    @abc.abstractmethod
    def scores(
        self, q: Array, k: Array, positions: Positions | None, parameters: Parameters
    ) -> Array:
        """[B, T, 1, H, K] and [B, 1, S, H, K] -> [B, T, S, H, K].

        Logarithms of weights, or what grows with them where ``relative`` is overridden.
        """

    def relative(self, score: Array, maximum: Array) -> Array:
        """The weight of a score over that of the maximum, at most 1; both may be -inf."""
        return exp_difference(score, maximum)

    def weigh(self, pairs: Pairs, visible: Visible | None) -> Outputs:
        dtype, queries = accumulation_dtype(pairs.q.dtype), pairs.q.shape[1]
        q, k, v = (x.astype(dtype) for x in pairs[:3])
        positions = pairs.positions
        if visible is None:
            visible = masks.visible_rows(jnp.arange(queries), k.shape[1], is_causal=True)
        # Few queries take many keys at a time: about chunk_size^2 scores a channel in all.
        block = max(self.chunk_size, self.chunk_size**2 // queries)

        def body(
            sums: ExponentialState, keys: tuple[Array, Array, Array, Array | None]
        ) -> tuple[ExponentialState, None]:
            k, v, seen, position = keys
            places = None
            if positions is not None and position is not None:
                places = Positions(positions.query, position)
            here = pairs._replace(q=q, k=k, v=v, positions=places)
            return self.see(sums, here, jnp.moveaxis(seen, 1, 2)), None

        seen = jnp.moveaxis(visible, 2, 1)
        position = None if positions is None else positions.key
        sums, _ = over_chunks(body, self.begin(q, v), (k, v, seen, position), block)
        return self.mean(sums, q)

    @property
    def block(self) -> int:
        return max(1, self.chunk_size**2 // 4)

    def begin(self, q: Array, v: Array) -> ExponentialState:
        return exponential.empty(q.shape, q.shape, q.dtype)

    def see(self, sums: Any, pairs: Pairs, visible: Visible) -> ExponentialState:
        q, k, v = pairs.q, pairs.k, pairs.v
        score = self.scores(q[:, :, None], k[:, None], pairs.positions, pairs.parameters)
        score = jnp.where(visible[..., None, None], score, jnp.asarray(-jnp.inf, score.dtype))
        here = exponential.summarise(score, v[:, None], axis=2, weigh=self.relative)
        both: ExponentialState = sums.merge(here, self.relative)
        return both

    def mean(self, sums: Any, q: Array) -> Array:
        y: Array = sums.mean
        return y
