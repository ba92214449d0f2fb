"""Normalization over a whole sequence or image: group norm with one group."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from flax_linattn.nn.meshes import automatic
from flax_linattn.nn.norm import LAYER_NORM_EPSILON
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array


class SequenceNorm(nnx.Module):
    """Normalizes each row over all its positions and channels, as PyTorch's ``GroupNorm(1, C)``.

    Unlike ``nnx.GroupNorm`` it supports a mask whose row may be all padding, and its variance does
    not lose digits if the mean is large.

    Args:
        features: Number of features C.
        param_dtype: Dtype of scale and bias, which have one value per channel.
        rngs: Unused; accepted because all layers take it.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax_linattn import nn
        >>> norm = nn.SequenceNorm(1)
        >>> x, mask = jnp.array([[[1.0], [3.0], [9.0]]]), jnp.array([[True, True, False]])
        >>> norm(x, mask=mask)[0, :2, 0].round(2).tolist()
        [-1.0, 1.0]
    """

    def __init__(
        self,
        features: int,
        *,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        self.scale = nnx.Param(jnp.ones((features,), param_dtype))
        self.bias = nnx.Param(jnp.zeros((features,), param_dtype))

    @automatic(2)
    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        """Normalizes x [B, ..., C], in its dtype, with statistics in the accumulation dtype.

        Args:
            x: Inputs of shape [B, ..., C].
            mask: Boolean array of shape [B, ...]; True marks valid positions. Others do not enter
                the statistics, and their outputs are undefined.
        """
        dtype = x.dtype
        x = zero_padding(x, mask).astype(accumulation_dtype(dtype))
        axes = tuple(range(1, x.ndim))
        if mask is None:
            mean, variance = self._moments(x, axes)
        else:
            places = jnp.sum(mask, axis=axes[:-1], keepdims=True)[..., None]
            count = jnp.maximum(places, 1).astype(x.dtype) * x.shape[-1]
            mean = jnp.sum(x, axis=axes, keepdims=True) / count
            apart = zero_padding(x - mean, mask)
            variance = jnp.sum(jnp.square(apart), axis=axes, keepdims=True) / count
        x = (x - mean) * jax.lax.rsqrt(variance + LAYER_NORM_EPSILON)
        scale, bias = self.scale[...].astype(x.dtype), self.bias[...].astype(x.dtype)
        return (x * scale + bias).astype(dtype)

    @staticmethod
    def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
        return jnp.mean(x, axes, keepdims=True), jnp.var(x, axes, keepdims=True)
