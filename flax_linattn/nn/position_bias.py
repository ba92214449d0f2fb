"""Biases of scores by the distance of two tokens, for ``Attention(position_bias=...)``."""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from flax_linattn.checks import OptionError, check_integers
from flax_linattn.typing import Array


class PositionBias(Protocol):
    """Protocol of biases of scores by position, such as ``AlibiBias``."""

    def __call__(self, query: Int[Array, "B T"], key: Int[Array, "B S"]) -> Float[Array, "B H T S"]:
        """Computes the biases of pairs of positions.

        Args:
            query: Positions of the queries, [B, T].
            key: Positions of the keys, [B, S].

        Returns:
            Biases of the scores, [B, H, T, S].
        """
        ...


@dataclasses.dataclass(frozen=True)
class AlibiBias:
    """Linear bias by distance (ALiBi; Press et al., 2022, arXiv 2108.12409).

    Scores fall by the distance of the two tokens times a fixed slope of the head: 2**(-8 / H),
    2**(-16 / H), ... for a power of 2; other numbers of heads take every other slope of the next
    power of 2, as in the authors' code.

    Attributes:
        num_heads: Number of heads H.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax_linattn import nn
        >>> nn.AlibiBias(8).slopes[:2].tolist()
        [0.5, 0.25]
        >>> nn.AlibiBias(8)(jnp.arange(3)[None], jnp.arange(3)[None])[0, 0, 2].tolist()
        [-1.0, -0.5, -0.0]
    """

    num_heads: int

    def __post_init__(self) -> None:
        check_integers(1, num_heads=self.num_heads)

    @property
    def slopes(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """Slope of each head, [H]."""
        power = 2 ** int(math.log2(self.num_heads))
        slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
        rest = 2.0 ** (-4.0 * np.arange(1, 2 * power + 1, 2) / power)
        return np.concatenate([slopes, rest[: self.num_heads - power]]).astype(np.float32)

    def __call__(self, query: Int[Array, "B T"], key: Int[Array, "B S"]) -> Float[Array, "B H T S"]:
        """Computes the biases of pairs of positions."""
        distance = jnp.abs(query[:, None, :, None] - key[:, None, None, :]).astype(jnp.float32)
        return -jnp.asarray(self.slopes)[:, None, None] * distance


class RelativeBias(nnx.Module):
    """Learned bias of each head by bucketed distance (T5; Raffel et al., 2020, section 2.1).

    Half of the buckets are single distances, the other half grow logarithmically up to
    ``max_distance``; all larger distances share the last bucket.

    Args:
        num_heads: Number of heads H.
        num_buckets: Number of buckets.
        max_distance: Distance from which all tokens share a bucket.
        is_causal: Whether all buckets are for earlier tokens; otherwise half of them are for later
            ones.
        param_dtype: Dtype of the biases.
        rngs: Random number generators; "params" initializes the biases.

    Raises:
        ValueError: If there are fewer than two buckets per direction, or ``max_distance`` is not
            larger than the number of single distances.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> bias = nn.RelativeBias(4, is_causal=True, rngs=nnx.Rngs(0))
        >>> bias(jnp.arange(6)[None], jnp.arange(6)[None]).shape
        (1, 4, 6, 6)
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        is_causal: bool,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        check_integers(1, num_heads=num_heads)
        check_integers(2 if is_causal else 4, num_buckets=num_buckets)
        self.num_heads, self.num_buckets, self.max_distance = num_heads, num_buckets, max_distance
        self.is_causal = is_causal
        if max_distance <= self._num_single:
            raise OptionError(
                f"max_distance must be larger than the {self._num_single} distances with a bucket "
                f"of their own, got {max_distance}.",
                "max_distance",
            )
        init = nnx.initializers.normal(0.02)
        self.table = nnx.Param(init(rngs.params(), (num_buckets, num_heads), param_dtype))

    @property
    def _num_single(self) -> int:
        """Number of distances with a bucket of their own, per direction."""
        return self.num_buckets // (2 if self.is_causal else 4)

    def buckets(self, offset: Int[Array, "..."]) -> Int[Array, "..."]:
        """Returns the bucket of each position of a key minus that of its query."""
        size = self.num_buckets if self.is_causal else self.num_buckets // 2
        single = self._num_single
        distance = jnp.maximum(-offset, 0) if self.is_causal else jnp.abs(offset)
        ratio = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / single)
        growth = (size - single) / math.log(self.max_distance / single)
        logarithmic = jnp.minimum(single + (ratio * growth).astype(jnp.int32), size - 1)
        bucket = jnp.where(distance < single, distance, logarithmic)
        return bucket if self.is_causal else jnp.where(offset > 0, bucket + size, bucket)

    def __call__(self, query: Int[Array, "B T"], key: Int[Array, "B S"]) -> Float[Array, "B H T S"]:
        """Computes the biases of pairs of positions."""
        bucket = self.buckets(key[:, None, :] - query[:, :, None])
        return jnp.moveaxis(jnp.take(self.table[...], bucket, axis=0), 3, 1)
