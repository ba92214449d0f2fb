"""Short depthwise convolution over time of projected tokens, before they attend."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from flax_linattn.checks import check_integers
from flax_linattn.nn.embedding import recent_tokens, recent_tokens_step
from flax_linattn.nn.linear import UniformFanIn
from flax_linattn.ops.contract.masks import Segments
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array, Mask, State


@register_state
class ShortConvState(NamedTuple):
    """State of an attention layer with a short convolution.

    Attributes:
        window: Projections of the last ``short_conv - 1`` valid tokens, of shape [B, short_conv -
            1, channels]: queries (unless they are learned or the keys), keys and values.
        attention: State of the mechanism.
    """

    window: Float[Array, "B W C"]
    attention: State


class ShortConvolution(nnx.Module):
    """Causal convolution of each channel over the last valid tokens, followed by SiLU.

    Without bias, as in Gated DeltaNet and Kimi Linear. It skips padding and does not cross packed
    segments.

    Args:
        features: Number of channels over all parts.
        kernel_size: Number of taps: the current token and the ``kernel_size - 1`` previous ones.
        param_dtype: Dtype of the kernel.
        rngs: Random number generators; "params" initializes the kernel.
    """

    def __init__(
        self,
        features: int,
        kernel_size: int,
        *,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        init = UniformFanIn(kernel_size)
        self.kernel = nnx.Param(init(rngs.params(), (kernel_size, features), param_dtype))

    def init_state(self, batch_size: int, dtype: DTypeLike) -> Array:
        """Returns the window before the first token: zeros, in the accumulation dtype."""
        size, features = self.kernel.shape
        return jnp.zeros((batch_size, size - 1, features), accumulation_dtype(dtype))

    def map(
        self,
        parts: Sequence[Array],
        window: Array | None,
        mask: Mask | None,
        segments: Segments | None,
    ) -> tuple[list[Array], Array]:
        """Convolves parts [B, T, C'], which are joined; returns them and the next window."""
        x = jnp.concatenate(parts, axis=-1)
        before = self.init_state(x.shape[0], x.dtype) if window is None else window
        taps, after = recent_tokens(x, before.astype(x.dtype), mask, segments)
        return self._split(taps, parts), after.astype(accumulation_dtype(x.dtype))

    def step(
        self, parts: Sequence[Array], window: Array, mask: Array | None
    ) -> tuple[list[Array], Array]:
        """Convolves parts [B, C'] of one token per row; returns them and the next window."""
        x = jnp.concatenate(parts, axis=-1)
        taps, after = recent_tokens_step(x, window.astype(x.dtype), mask)
        return self._split(taps, parts), after.astype(accumulation_dtype(x.dtype))

    def _split(self, taps: Sequence[Array], parts: Sequence[Array]) -> list[Array]:
        dtype = taps[0].dtype
        wide = accumulation_dtype(dtype)
        kernel = self.kernel[...].astype(wide)
        # A sum in one order for the call and the step; a product over taps may have another.
        terms = (tap.astype(wide) * kernel[i] for i, tap in enumerate(taps))
        y = sum(terms, start=jnp.zeros((), wide))
        ends = list(accumulate(part.shape[-1] for part in parts))
        return jnp.split(jax.nn.silu(y).astype(dtype), ends[:-1], axis=-1)


def make_short_convolution(
    kernel_size: int | None,
    projections: Sequence[nnx.Linear],
    *,
    param_dtype: DTypeLike,
    rngs: nnx.Rngs,
) -> ShortConvolution | None:
    """Makes the convolution of all outputs of these projections; None for no ``kernel_size``.

    Raises:
        OptionError: If ``kernel_size`` is less than 2.
    """
    check_integers(2, short_conv=kernel_size)
    if kernel_size is None:
        return None
    features = sum(projection.out_features for projection in projections)
    return ShortConvolution(features, kernel_size, param_dtype=param_dtype, rngs=rngs)
