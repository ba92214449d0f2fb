"""Positions, counted over valid tokens and carried across calls, and their embeddings."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from flax_linattn.nn.meshes import automatic
from flax_linattn.ops.contract.masks import Segments
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array, Mask


def token_positions(
    mask: Mask, segments: Segments | None, offset: Int[Array, "B"]
) -> tuple[Int[Array, "B T"], Int[Array, "B"]]:
    """Numbers the valid tokens of each segment from 0; padding does not count.

    Args:
        mask: Boolean array of shape [B, T]; True marks valid tokens.
        segments: Boundaries of packed sequences, or None.
        offset: Integer array of shape [B], the number of tokens of the first segment in earlier
            calls.

    Returns:
        Positions, int [B, T] (at masked positions that of the previous token, at least 0), and the
        offset for the next call.

    Example:
        >>> import jax.numpy as jnp
        >>> mask = jnp.array([[False, True, True, False, True]])
        >>> positions, following = token_positions(mask, None, jnp.array([0]))
        >>> positions.tolist(), following.tolist()
        ([[0, 0, 1, 1, 2]], [3])
    """
    count = jnp.cumsum(mask, axis=1, dtype=jnp.int32)
    positions = count + offset[:, None]
    if segments is not None:
        first = jax.lax.cummax(jnp.where(segments.starts, count, 0), axis=1)
        positions = jnp.where(first > 0, count - first + 1, positions)
    return jnp.maximum(positions - 1, 0), positions[:, -1]


def sinusoid(positions: Int[Array, "..."], features: int) -> Float[Array, "... C"]:
    """Sinusoidal embedding (Vaswani et al., 2017, section 3.5): even channels sine, odd cosine.

    It is computed for any position, without a table. Angles are counted in units of 2**-32 turns,
    where whole turns wrap exactly: the error stays below 1e-4 up to position 100,000, and every
    form and batch gives the same bits.

    Example:
        >>> import jax.numpy as jnp
        >>> sinusoid(jnp.arange(3), 4).shape
        (3, 4)
    """
    angle = _angles(positions, features, 10_000.0)
    waves = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1)
    return waves.reshape(*positions.shape, -1)[..., :features]


def _angles(positions: Int[Array, "..."], features: int, base: float) -> Float[Array, "... pairs"]:
    """Position times frequency base**(-2 i / features) of each pair i, in [-pi, pi)."""
    pairs = np.arange((features + 1) // 2)
    frequency = base ** (-2.0 * pairs / features)
    per_position = np.round(frequency / (2.0 * np.pi) * 2.0**32).astype(np.uint32)
    turns = positions[..., None].astype(jnp.uint32) * per_position
    centered = jax.lax.bitcast_convert_type(turns, jnp.int32)  # half a turn to either side
    return centered.astype(jnp.float32) * np.float32(2.0 * np.pi / 2.0**32)


class SinusoidalPosition(nnx.Module):
    """Fixed sinusoidal position embedding, for positions of any size.

    Args:
        features: Number of features C.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax_linattn import nn
        >>> nn.SinusoidalPosition(8)(jnp.array([[0, 100_000]])).shape
        (1, 2, 8)
    """

    def __init__(self, features: int) -> None:
        self.features = features

    def __call__(self, positions: Int[Array, "..."]) -> Float[Array, "... C"]:
        """Embeds positions int [...] -> [..., C] float32."""
        return sinusoid(positions, self.features)


class LearnedPosition(nnx.Module):
    """Learned vector for each position; positions beyond ``max_length`` give NaN.

    Args:
        max_length: Number of positions.
        features: Number of features C.
        rngs: Random number generators; "params" initializes the parameters.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> position = nn.LearnedPosition(16, 8, rngs=nnx.Rngs(0))
        >>> position(jnp.array([[0, 15]])).shape
        (1, 2, 8)
    """

    def __init__(self, max_length: int, features: int, *, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.normal(0.02)
        self.table = nnx.Param(init(rngs.params(), (max_length, features), jnp.float32))

    @automatic(2)
    def __call__(self, positions: Int[Array, "..."]) -> Float[Array, "... C"]:
        """Embeds positions int [...] -> [..., C] float32."""
        return jnp.take(self.table[...], positions, axis=0, mode="fill", fill_value=jnp.nan)


class QueryKeyPosition(Protocol):
    """Protocol of position encodings of queries and keys, such as ``RotaryPosition``."""

    def __call__(
        self, x: Float[Array, "... H K"], positions: Int[Array, "..."]
    ) -> Float[Array, "... H K"]:
        """Encodes positions int [...] into queries or keys [..., H, K]."""
        ...


@dataclasses.dataclass(frozen=True)
class RotaryPosition:
    """Rotates queries and keys by angles proportional to their position (RoPE, Su et al., 2021).

    The product of a query and a key then depends on their distance. Channels i and i + K / 2 are
    rotated together by position * base**(-2 i / K), with angles as exact as those of ``sinusoid``.

    Args:
        base: Base of the frequencies.

    Example:
        >>> import jax.numpy as jnp
        >>> rotate = RotaryPosition()
        >>> q, k = jnp.ones((2, 1, 8)), jnp.ones((2, 1, 8))
        >>> near, far = (rotate(q, jnp.array([t, t])) for t in (3, 1003))
        >>> behind = [rotate(k, jnp.array([t - 2, t - 2])) for t in (3, 1003)]
        >>> bool(jnp.allclose((near * behind[0]).sum(-1), (far * behind[1]).sum(-1), atol=1e-4))
        True
    """

    base: float = 10_000.0

    def __call__(
        self, x: Float[Array, "... H K"], positions: Int[Array, "..."]
    ) -> Float[Array, "... H K"]:
        """Rotates queries or keys [..., H, K] at positions int [...], and returns their dtype.

        Raises:
            ValueError: If K is odd.
        """
        if x.shape[-1] % 2:
            raise ValueError(
                "rotary positions rotate pairs of channels, so each head needs an even "
                f"number of channels, got {x.shape[-1]}; choose other features or num_heads."
            )
        dtype = accumulation_dtype(x.dtype)
        angle = _angles(positions, x.shape[-1], self.base)[..., None, :].astype(dtype)
        first, second = jnp.split(x.astype(dtype), 2, axis=-1)
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        turned = [first * cosine - second * sine, second * cosine + first * sine]
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)
