"""Cache mechanisms whose weights are a function of q . k.

Short sequences are computed in one piece, long ones in blocks of queries and keys.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.numerics import accumulation_dtype, einsum, safe_divide
from flax_linattn.ops.engine.blocks import Weighing, attend_in_blocks
from flax_linattn.ops.engine.cache import CacheMechanism
from flax_linattn.typing import Array, Outputs, Visible


@dataclasses.dataclass(frozen=True)
class ScoredAttention(CacheMechanism):
    """A cache mechanism whose weights are a function of q . k.

    Attributes:
        chunk_size: queries a block in the chunked form, and keys, at most.
    """

    weighing: ClassVar[Weighing]
    parameters: ClassVar[tuple[str, ...]] = ("scale",)

    chunk_size: int = 512

    @abc.abstractmethod
    def _scale(self, q: Array, scale: float | Array | None) -> float | Array:
        """The factor of the scores."""

    def weigh(
        self,
        q: Array,
        k: Array,
        v: Array,
        visible: Visible | None,
        *,
        scale: float | Array | None = None,
    ) -> Outputs:
        dtype = accumulation_dtype(q.dtype)
        q, k, v = (x.astype(dtype) for x in (q, k, v))
        if visible is None:
            visible = masks.visible_rows(jnp.arange(q.shape[1]), k.shape[1], is_causal=True)
        score = einsum("bthk,bshk->bhts", q, k) * jnp.asarray(self._scale(q, scale)).astype(dtype)
        score = jnp.where(visible[:, None], score, self.weighing.hidden)
        level = jax.lax.stop_gradient(self.weighing.level(score))[..., None]
        weight = self.weighing.weight(score, level)
        weight = safe_divide(weight, jnp.sum(weight, axis=-1, keepdims=True))
        return einsum("bhts,bshv->bthv", weight, v)

    def _chunked(
        self,
        q: Array,
        k: Array,
        v: Array,
        visibility: masks.Visibility,
        positions: tuple[Array, Array] | None,
        parameters: dict[str, Any],
    ) -> Array:
        dtype = accumulation_dtype(q.dtype)
        q, k, v = (x.astype(dtype) for x in (q, k, v))
        scale = self._scale(q, parameters.get("scale"))
        return attend_in_blocks(self.weighing, q, k, v, scale, visibility, self.chunk_size)
