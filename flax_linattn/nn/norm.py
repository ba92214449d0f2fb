"""Layer normalization with PyTorch's epsilon."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array

LAYER_NORM_EPSILON = 1e-5
"""PyTorch's default, which all host repositories of the papers use."""


class LayerNorm(nnx.LayerNorm):
    """Layer normalization with PyTorch's epsilon, in the accumulation dtype of its input.

    Args:
        features: Number of features C.
        param_dtype: Dtype of scale and bias.
        rngs: Random number generators; "params" initializes the parameters.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> norm = LayerNorm(8, rngs=nnx.Rngs(0))
        >>> norm.epsilon, norm(jnp.ones((2, 8), jnp.bfloat16)).dtype
        (1e-05, dtype(bfloat16))
    """

    def __init__(
        self, features: int, *, param_dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs
    ) -> None:
        super().__init__(
            features,
            epsilon=LAYER_NORM_EPSILON,
            param_dtype=param_dtype,
            # Flax's fast variance E[x^2] - E[x]^2 loses all digits where the mean is large.
            use_fast_variance=False,
            rngs=rngs,
        )

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        """Normalizes x [..., C] over C and returns its dtype; ``mask`` as in ``nnx.LayerNorm``."""
        # nnx.LayerNorm mixes bfloat16 and float32, which strict dtype promotion refuses.
        return super().__call__(x.astype(accumulation_dtype(x.dtype)), mask=mask).astype(x.dtype)
