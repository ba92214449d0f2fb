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
from flax_linattn.ops.engine.cache import CacheMechanism, KVCache, Pairs, Slots
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

    @property
    def block(self) -> int:
        return max(1, self.chunk_size // 2)

    def init_sums(self, q: Array, v: Array) -> Any:
        return RunningMean.empty(self.weight_function, q, v, bool(self.token_arguments))

    def update_sums(self, sums: Any, q: Array, slots: Slots, offset: Array | None = None) -> Any:
        """Includes slots, whose scores have an ``offset`` [B, H, 1, S] if there is one."""
        scale = jnp.asarray(self._scale(q.shape[-1], slots.parameters)).astype(q.dtype)
        product = scores(q * scale, slots.k, "bhtk,bhsk->bhts")
        product = self.weight_function.cap_scores(product)
        visible_pairs = slots.per_pair.visible_pairs(slots.visible[:, None])
        product = slots.per_pair.add_bias(product, visible_pairs)
        product = jnp.where(visible_pairs, product, self.weight_function.masked_score)
        score = Scores(product, offset)
        return sums.update(self.weight_function, score, slots.v, slots.per_pair.drop)

    def mean_of_sums(self, sums: Any, q: Array) -> Array:
        return sums.y

    def _attend_to_used_slots(self, q: Array, cache: KVCache, parameters: Parameters) -> Array:
        # A CPU copies a block before its product, but reads all slots in place, so blocks take
        # about twice as long per token. A cache of another dtype would be converted as a whole.
        if cache.key.dtype != q.dtype or cache.value.dtype != q.dtype:
            return super()._attend_to_used_slots(q, cache, parameters)
        return jax.lax.cond(
            2 * jnp.max(cache.length) >= cache.capacity,
            self._attend_to_all_slots,
            super()._attend_to_used_slots,
            *(q, cache, parameters),
        )
