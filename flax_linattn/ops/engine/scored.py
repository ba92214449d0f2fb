"""Cache mechanisms whose weights are a function of q . k, and of the pair's positions.

Short sequences are computed in one block, long ones in blocks of queries and keys.
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
    RunningMean,
    Scores,
    WeightFunction,
    attend_in_blocks,
)
from flax_linattn.ops.engine.cache import CacheMechanism, Pairs
from flax_linattn.ops.engine.single_query import single_query_scores, single_query_sums
from flax_linattn.typing import Array, Outputs, Parameters, Visible


@dataclasses.dataclass(frozen=True)
class ScoredAttention(CacheMechanism):
    """Base class of cache mechanisms whose weights are a function of q . k and ``offsets``.

    Attributes:
        chunk_size: Maximum number of queries, and of keys, per block in the chunked form.
    """

    @property
    @abc.abstractmethod
    def weight_function(self) -> WeightFunction:
        """Function from scores to weights, equal for equal mechanisms."""

    parameters: ClassVar[tuple[str, ...]] = ("scale",)

    chunk_size: int = 512

    @property
    @abc.abstractmethod
    def scale(self) -> float | None:
        """Factor of the scores if a call passes none; None means K**-0.5."""

    def _scale(self, key_dim: int, parameters: Parameters) -> float | Array:
        """Returns the factor of the scores."""
        return score_scale(parameters.get("scale"), self.scale, key_dim)

    def offsets(self, pairs: Pairs) -> Offsets | None:
        """Returns the offsets of the scores, or None if there are none."""
        return None

    def attend_block(self, pairs: Pairs, visible: Visible | None) -> Outputs:
        dtype = accumulation_dtype(pairs.q.dtype)
        q, k, v = (x.astype(dtype) for x in pairs[:3])
        scale = jnp.asarray(self._scale(q.shape[-1], pairs.parameters)).astype(dtype)
        if visible is None:
            visible = masks.visible_rows(jnp.arange(q.shape[1]), k.shape[1], is_causal=True)
        # Scale q, not the products: a compiler may fuse scaling a product and subtracting the level
        # into one rounding, and a large score would then differ from its own level.
        product = self.weight_function.cap_scores(scores(q * scale, k))
        visible_pairs = pairs.per_pair.visible_pairs(visible)
        product = pairs.per_pair.add_bias(product, visible_pairs)
        product = jnp.where(visible_pairs, product, self.weight_function.masked_score)
        offsets = self.offsets(pairs)
        score = Scores(product, None if offsets is None else offsets.by_head().differences())
        level = jax.tree.map(lambda x: x[..., None], score.level(self.weight_function))
        weight = self.weight_function.weight(*score.relative_to(level))
        y = average_by_head(weight, v, pairs.per_pair.drop)
        return pairs.per_pair.poison(y, visible_pairs)

    def _attend_chunked(self, pairs: Pairs, visibility: masks.Visibility) -> Array:
        dtype = accumulation_dtype(pairs.q.dtype)
        q, k, v = (x.astype(dtype) for x in pairs[:3])
        scale = self._scale(q.shape[-1], pairs.parameters)
        return attend_in_blocks(
            self.weight_function, q, k, v, scale, visibility, self.chunk_size, self.offsets(pairs)
        )

    def init_sums(self, q: Array, v: Array) -> Any:
        by_head = jnp.swapaxes(q, 1, 2)
        return RunningMean.empty(self.weight_function, by_head, v, bool(self.token_arguments))

    def update_sums(self, sums: Any, pairs: Pairs, visible: Visible) -> Any:
        scale = jnp.asarray(self._scale(pairs.q.shape[-1], pairs.parameters)).astype(pairs.q.dtype)
        product = self.weight_function.cap_scores(single_query_scores(pairs.q * scale, pairs.k))
        product = jnp.where(visible[:, None], product, self.weight_function.masked_score)
        offsets = self.offsets(pairs)
        score = Scores(product, None if offsets is None else offsets.by_head().differences())
        return sums.update(self.weight_function, score, pairs.v, single_query_sums)

    def mean_of_sums(self, sums: Any, q: Array) -> Array:
        return jnp.swapaxes(sums.y, 1, 2)
