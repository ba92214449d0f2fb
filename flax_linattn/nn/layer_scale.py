"""LayerScale: a learned factor for each feature of a residual branch."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from flax_linattn.checks import check_positive
from flax_linattn.nn.meshes import automatic
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array


class LayerScale(nnx.Module):
    """Multiplies each feature by a learned factor with a small initial value.

    Deep residual networks then start near the identity (Touvron et al., "Going deeper with image
    transformers", 2021, equation 3).

    Args:
        features: Number of features C.
        init: Initial value of every factor.
        param_dtype: Dtype of the factors.
        rngs: Unused; accepted because all layers take it.

    Raises:
        OptionError: If the initial value is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> scale = nn.LayerScale(4, 0.5, rngs=nnx.Rngs(0))
        >>> scale(jnp.ones((1, 4))).tolist()
        [[0.5, 0.5, 0.5, 0.5]]
    """

    def __init__(
        self,
        features: int,
        init: float = 1e-4,
        *,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        check_positive(layer_scale=init)
        self.scale = nnx.Param(jnp.full((features,), init, param_dtype))

    @automatic(2)
    def __call__(self, x: Array) -> Array:
        """Scales x [..., C], multiplying in the accumulation dtype, and returns its dtype."""
        wide = accumulation_dtype(x.dtype)
        return (x.astype(wide) * self.scale[...].astype(wide)).astype(x.dtype)
