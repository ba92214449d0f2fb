"""The linear layer of all modules, initialised as PyTorch does."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


@dataclasses.dataclass(frozen=True)
class UniformFanIn:
    """Uniform in +-1/sqrt(fan_in): PyTorch's default for the kernel and bias of a linear layer.

    A value rather than a closure, so that equal layers have equal graphs under ``nnx.split``.

    Attributes:
        fan_in: input features.

    Example:
        >>> import jax
        >>> kernel = UniformFanIn(16)(jax.random.key(0), (16, 8))
        >>> bool(abs(kernel).max() <= 0.25)
        True
    """

    fan_in: int

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
    ) -> jax.Array:
        """Draws an array of the shape."""
        bound = self.fan_in**-0.5
        return jax.random.uniform(key, shape, dtype, -bound, bound)


def linear(
    in_features: int,
    out_features: int,
    *,
    use_bias: bool = True,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
) -> nnx.Linear:
    """A linear layer with PyTorch's default initialisation.

    The papers' experiments ran on PyTorch repositories; with Flax's default (LeCun normal,
    bias 0) JapaneseVowels ended 2.7 points lower under their learning-rate schedule (one seed).

    Example:
        >>> from flax import nnx
        >>> linear(16, 8, rngs=nnx.Rngs(0)).kernel.shape
        (16, 8)
    """
    init = UniformFanIn(in_features)
    return nnx.Linear(
        in_features,
        out_features,
        use_bias=use_bias,
        dtype=dtype,
        param_dtype=param_dtype,
        kernel_init=init,
        bias_init=init,
        rngs=rngs,
    )
