"""Cache mechanisms whose weights are a function of q . k, and of where a pair stands.

Short sequences are computed in one piece, long ones in blocks of queries and keys.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.averages import average_by_head
from flax_linattn.ops.contract.numerics import accumulation_dtype, score_scale, scores
from flax_linattn.ops.engine.blocks import (
    Offsets,
    Rows,
    Scores,
    Weighing,
    attend_in_blocks,
)
from flax_linattn.ops.engine.cache import CacheMechanism, Pairs
from flax_linattn.ops.engine.single_query import scores_of_one, sums_of_one
from flax_linattn.typing import Array, Outputs, Parameters, Visible


@dataclasses.dataclass(frozen=True)
class ScoredAttention(CacheMechanism):
    """A cache mechanism whose weights are a function of q . k, and of ``offsets`` if there are any.

    Attributes:
        chunk_size: queries a block in the chunked form, and keys, at most.
    """

    weighing: ClassVar[Weighing]
    parameters: ClassVar[tuple[str, ...]] = ("scale",)

    chunk_size: int = 512

    @property
    @abc.abstractmethod
    def scale(self) -> float | None:
        """The factor of the scores where a call gives none; None = K**-0.5."""

    def _scale(self, key_dim: int, parameters: Parameters) -> float | Array:
        """The factor of the scores."""
        return score_scale(parameters.get("scale"), self.scale, key_dim)

    def offsets(self, pairs: Pairs) -> Offsets | None:
        """What is added to the scores, if weights are of their differences; None = nothing."""
        return None

    def weigh(self, pairs: Pairs, visible: Visible | None) -> Outputs:
        dtype = accumulation_dtype(pairs.q.dtype)
        q, k, v = (x.astype(dtype) for x in pairs[:3])
        scale = jnp.asarray(self._scale(q.shape[-1], pairs.parameters)).astype(dtype)
        if visible is None:
            visible = masks.visible_rows(jnp.arange(q.shape[1]), k.shape[1], is_causal=True)
        # The factor goes first: a compiler may multiply the products and subtract the level in one
        # rounding, which for large scores is another score than the one that the level is of.
        product = jnp.where(visible[:, None], scores(q * scale, k), self.weighing.hidden)
        offsets = self.offsets(pairs)
        score = Scores(product, None if offsets is None else offsets.by_head().between())
        level = jax.tree.map(lambda x: x[..., None], score.level(self.weighing))
        weight = self.weighing.weight(*score.over(level))
        return average_by_head(weight, v)

    def _chunked(self, pairs: Pairs, visibility: masks.Visibility) -> Array:
        dtype = accumulation_dtype(pairs.q.dtype)
        q, k, v = (x.astype(dtype) for x in pairs[:3])
        scale = self._scale(q.shape[-1], pairs.parameters)
        return attend_in_blocks(
            self.weighing, q, k, v, scale, visibility, self.chunk_size, self.offsets(pairs)
        )

    def begin(self, q: Array, v: Array) -> Any:
        by_head = jnp.swapaxes(q, 1, 2)
        return Rows.nothing_seen(self.weighing, by_head, v, bool(self.token_arguments))

    def see(self, sums: Any, pairs: Pairs, visible: Visible) -> Any:
        scale = jnp.asarray(self._scale(pairs.q.shape[-1], pairs.parameters)).astype(pairs.q.dtype)
        product = scores_of_one(pairs.q * scale, pairs.k)
        product = jnp.where(visible[:, None], product, self.weighing.hidden)
        offsets = self.offsets(pairs)
        score = Scores(product, None if offsets is None else offsets.by_head().between())
        return sums.see(self.weighing, score, pairs.v, sums_of_one)

    def mean(self, sums: Any, q: Array) -> Array:
        return jnp.swapaxes(sums.y, 1, 2)
