"""Positions, counted over valid tokens and carried across calls, and their embeddings."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from flax_linattn.checks import OptionError, check_choice, check_positive
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
        Positions, int [B, T] (a masked token has the position of the previous token, at least 0),
        and the offset for the next call.

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

    Args:
        positions: Integer array of shape [...].
        features: Number of features C.

    Returns:
        Embeddings of shape [..., C], float32.

    Example:
        >>> import jax.numpy as jnp
        >>> sinusoid(jnp.arange(3), 4).shape
        (3, 4)
    """
    angle = _angles(positions, _frequencies(features, 10_000.0))
    waves = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1)
    return waves.reshape(*positions.shape, -1)[..., :features]


def _frequencies(features: int, base: float) -> Float[np.ndarray, "pairs"]:
    """Radians per position of each pair i of channels: base**(-2 i / features)."""
    frequency: np.ndarray = base ** (-2.0 * np.arange((features + 1) // 2) / features)
    return frequency


def _angles(
    positions: Int[Array, "..."], frequency: Float[np.ndarray, "pairs"]
) -> Float[Array, "... pairs"]:
    """Position times frequency of each pair, in [-pi, pi)."""
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


ROPE_FIELDS: dict[str, tuple[str, ...]] = {
    "linear": (),
    "ntk": (),
    "yarn": ("original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
    "llama3": ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}
"""Type of scaling -> its fields of ``RotaryScaling`` next to ``factor``."""


@dataclasses.dataclass(frozen=True)
class RotaryScaling:
    """Scaling of rotary frequencies for contexts longer than in pretraining.

    Fields are the keys of ``rope_scaling`` in configurations of Hugging Face models, so
    ``RotaryScaling(**config.rope_scaling)`` reads them. Frequencies do not depend on the length
    of the sequence, so a stream has the same frequencies as a parallel call. For the same reason
    Hugging Face's types "dynamic" and "longrope" are missing: they change the frequencies of
    earlier tokens when a sequence grows.

    Args:
        rope_type: "linear" divides every frequency by ``factor`` (position interpolation). "ntk"
            multiplies the base by ``factor ** (d / (d - 2))`` for d rotated channels. "yarn" (Peng
            et al., "YaRN", 2023) divides slow frequencies, keeps fast ones, and interpolates
            between them by the index of the pair. "llama3" (Llama 3.1) does so by the wavelength.
        factor: Ratio of the new context length to the original one, at least 1.
        original_max_position_embeddings: Context length of pretraining, for "yarn" and "llama3".
        beta_fast: Turns within the original context from which "yarn" keeps a frequency; default
            32.
        beta_slow: Turns within the original context up to which "yarn" divides a frequency by
            ``factor``; default 1.
        attention_factor: Factor of rotated queries and keys of "yarn"; default 0.1 ln(factor) + 1.
        low_freq_factor: Turns within the original context up to which "llama3" divides a frequency
            by ``factor``; default 1.
        high_freq_factor: Turns within the original context from which "llama3" keeps a frequency;
            default 4.

    Raises:
        OptionError: If the type is unknown, a field is out of range, missing, or of another type of
            scaling.

    Example:
        >>> scaling = RotaryScaling("llama3", 8.0, original_max_position_embeddings=8192)
        >>> RotaryPosition(base=500_000.0, scaling=scaling).scaling.factor
        8.0
    """

    rope_type: Literal["linear", "ntk", "yarn", "llama3"]
    factor: float
    original_max_position_embeddings: int | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None

    def __post_init__(self) -> None:
        check_choice(ROPE_FIELDS, rope_type=self.rope_type)
        if not 1 <= self.factor < math.inf:
            raise OptionError(f"factor must be at least 1 and finite, got {self.factor}.", "factor")
        own = ROPE_FIELDS[self.rope_type]
        for field in dataclasses.fields(self)[2:]:
            value = getattr(self, field.name)
            if value is not None and field.name not in own:
                raise OptionError(
                    f"rope_type={self.rope_type!r} has no {field.name}; remove it.", field.name
                )
            if value is not None:
                check_positive(**{field.name: value})
            elif field.name == "original_max_position_embeddings" and own:
                raise OptionError(
                    f"rope_type={self.rope_type!r} needs original_max_position_embeddings, the "
                    "context length of pretraining.",
                    field.name,
                )
        if own:
            slow, fast = self._turns
            if not slow < fast:
                raise OptionError(
                    f"{' and '.join(own[1:3])} are turns within the original context, the slower "
                    f"of which must be fewer, got {slow} (slow) and {fast} (fast).",
                    *own[1:3],
                )

    @property
    def _turns(self) -> tuple[float, float]:
        """Turns within the original context: a pair with fewer is divided, with more unchanged."""
        if self.rope_type == "yarn":
            return self.beta_slow or 1.0, self.beta_fast or 32.0
        return self.low_freq_factor or 1.0, self.high_freq_factor or 4.0

    @property
    def magnitude(self) -> float:
        """Factor of rotated queries and of rotated keys."""
        if self.attention_factor is not None or self.rope_type != "yarn":
            return 1.0 if self.attention_factor is None else self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0

    def frequencies(self, features: int, base: float) -> Float[np.ndarray, "pairs"]:
        """Returns the scaled frequency of each pair of the rotated channels, in float64."""
        if self.rope_type == "ntk":
            # With one pair, whose frequency is 1, the base does not matter.
            return _frequencies(features, base * self.factor ** (features / max(features - 2, 1)))
        frequency = _frequencies(features, base)
        if self.original_max_position_embeddings is None:
            return frequency / self.factor
        slow, fast = self._turns
        context = self.original_max_position_embeddings / (2.0 * np.pi)
        if self.rope_type == "llama3":
            weight = (context * frequency - slow) / (fast - slow)
        else:
            # Index of the pair that makes this number of turns within the original context; as the
            # authors' code, which rounds it and bounds it by channels instead of pairs.
            first, last = (
                features * math.log(context / turns) / (2.0 * math.log(base))
                for turns in (fast, slow)
            )
            start, end = max(math.floor(first), 0), min(math.ceil(last), features - 1)
            weight = 1.0 - (np.arange(features // 2) - start) / (end - start or 0.001)
        weight = np.clip(weight, 0.0, 1.0)
        scaled: np.ndarray = frequency * (weight + (1.0 - weight) / self.factor)
        return scaled


@dataclasses.dataclass(frozen=True)
class RotaryPosition:
    """Rotates queries and keys by angles proportional to their position (RoPE, Su et al., 2021).

    The product of a query and a key then depends on their distance. Of the R rotated channels, i
    and i + R / 2 are rotated together by position * base**(-2 i / R), with angles as exact as those
    of ``sinusoid``. These are the halves of Hugging Face's ``rotate_half``; weights of a model that
    rotates neighboring channels (2 i and 2 i + 1) need their channels reordered.

    Args:
        base: Base of the frequencies, ``rope_theta`` in Hugging Face configurations.
        fraction: Fraction of the channels of each head, the first ones, that are rotated:
            ``partial_rotary_factor`` in Hugging Face configurations.
        scaling: Scaling of the frequencies for long contexts; None for none.

    Raises:
        OptionError: If the base is not larger than 1, or the fraction is not in (0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> rotate = RotaryPosition()
        >>> q, k = jnp.ones((2, 1, 8)), jnp.ones((2, 1, 8))
        >>> near, far = (rotate(q, jnp.array([t, t])) for t in (3, 1003))
        >>> earlier = [rotate(k, jnp.array([t - 2, t - 2])) for t in (3, 1003)]
        >>> bool(jnp.allclose((near * earlier[0]).sum(-1), (far * earlier[1]).sum(-1), atol=1e-4))
        True
    """

    base: float = 10_000.0
    fraction: float = 1.0
    scaling: RotaryScaling | None = None

    def __post_init__(self) -> None:
        if not 1 < self.base < math.inf:
            raise OptionError(
                f"base must be larger than 1 and finite, got {self.base}; published models have "
                "10,000 or more.",
                "base",
            )
        if not 0 < self.fraction <= 1:
            raise OptionError(f"fraction must be in (0, 1], got {self.fraction}.", "fraction")

    def __call__(
        self, x: Float[Array, "... H K"], positions: Int[Array, "..."]
    ) -> Float[Array, "... H K"]:
        """Rotates queries or keys [..., H, K] at positions int [...], and returns their dtype.

        Raises:
            ValueError: If the number of rotated channels is odd or 0.
        """
        # As Hugging Face, which cuts off what is beyond a whole number of channels.
        features = int(x.shape[-1] * self.fraction)
        if features % 2 or not features:
            raise ValueError(
                "rotary positions rotate pairs of channels, so each head needs an even number of "
                f"rotated channels, got {features} of {x.shape[-1]} (fraction={self.fraction}); "
                "choose other features, num_heads or fraction."
            )
        dtype = accumulation_dtype(x.dtype)
        if self.scaling is None:
            frequency, magnitude = _frequencies(features, self.base), 1.0
        else:
            frequency = self.scaling.frequencies(features, self.base)
            magnitude = self.scaling.magnitude
        angle = _angles(positions, frequency)[..., None, :].astype(dtype)
        first, second, rest = jnp.split(x.astype(dtype), (features // 2, features), axis=-1)
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        if magnitude != 1.0:
            sine, cosine = sine * magnitude, cosine * magnitude
        turned = [first * cosine - second * sine, second * cosine + first * sine, rest]
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)
