"""Positions, counted over real tokens and carried across calls, and their embeddings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from flax_linattn.ops.contract.masks import Runs
from flax_linattn.typing import Array, Mask


def token_positions(
    mask: Mask, runs: Runs | None, offset: Int[Array, "B"]
) -> tuple[Int[Array, "B T"], Int[Array, "B"]]:
    """Numbers the real tokens of each run from 0; padding does not count.

    Args:
        mask: bool [B, T].
        runs: packed segments, or None.
        offset: int [B], tokens of the first run that came in earlier calls.

    Returns:
        positions int [B, T] (of the token before, at masked positions; at least 0) and the
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
    if runs is not None:
        first = jax.lax.cummax(jnp.where(runs.starts, count, 0), axis=1)
        positions = jnp.where(first > 0, count - first + 1, positions)
    return jnp.maximum(positions - 1, 0), positions[:, -1]


def sinusoid(positions: Int[Array, "..."], features: int) -> Float[Array, "... C"]:
    """Sinusoidal embedding (Vaswani et al., 2017, section 3.5): even channels sine, odd cosine.

    Any position has one; nothing is stored. Angles are counted in 2**-32 turns, where whole
    turns wrap away exactly: the error stays below 1e-4 up to position 100,000, and every form
    and batch gives the same bits.

    Example:
        >>> import jax.numpy as jnp
        >>> sinusoid(jnp.arange(3), 4).shape
        (3, 4)
    """
    pairs = np.arange((features + 1) // 2)
    frequency = 10_000.0 ** (-2.0 * pairs / features)
    per_position = np.round(frequency / (2.0 * np.pi) * 2.0**32).astype(np.uint32)
    turns = positions[..., None].astype(jnp.uint32) * per_position
    centred = jax.lax.bitcast_convert_type(turns, jnp.int32)  # half a turn to either side
    angle = centred.astype(jnp.float32) * np.float32(2.0 * np.pi / 2.0**32)
    waves = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1)
    return waves.reshape(*positions.shape, -1)[..., :features]


class SinusoidalPosition(nnx.Module):
    """Fixed sinusoidal position embedding for positions of any size.

    Args:
        features: C.

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
    """A learned vector a position; beyond ``max_length`` it gives NaN rather than a wrong one.

    Args:
        max_length: number of positions.
        features: C.
        rngs: holds the stream "params".

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

    def __call__(self, positions: Int[Array, "..."]) -> Float[Array, "... C"]:
        """Embeds positions int [...] -> [..., C] float32."""
        return jnp.take(self.table[...], positions, axis=0, mode="fill", fill_value=jnp.nan)
