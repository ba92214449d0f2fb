"""Value embedding: a short convolution over observations, as in Time-Series-Library."""

from __future__ import annotations

from typing import Literal, TypedDict, Unpack, overload

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from flax_linattn.checks import check_choice
from flax_linattn.nn.meshes import automatic
from flax_linattn.ops.contract.masks import Segments, previous_real_index, zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, State

PADDINGS = ("causal", "circular")
KERNEL_INIT = nnx.initializers.variance_scaling(2.0, "fan_in", "normal")
"""Kaiming initializer, as in Time-Series-Library."""


class EmbeddingCallOptions(TypedDict, total=False):
    """Keyword options of an embedding's call on sequences; see ``ValueEmbedding``."""

    mask: Mask | None
    segments: Segments | None
    state: State | None


class ValueEmbedding(nnx.Module):
    """Bias-free convolution over time, from observations to features.

    ``padding="causal"`` covers the current and the ``kernel_size - 1`` previous valid tokens, so it
    streams. ``padding="circular"`` is Time-Series-Library's: centered, and wrapped around the ends
    of the padded sequence, so it cannot stream.

    Args:
        in_features: Number of observed channels.
        features: Number of features C.
        kernel_size: Number of taps of the convolution; odd for "circular".
        padding: Padding of the convolution, "causal" or "circular".
        dtype: Dtype of the computation; inferred from inputs and parameters if None.
        param_dtype: Dtype of the kernel.
        kernel_init: Initializer of the kernel.
        rngs: Random number generators; "params" initializes the parameters.

    Raises:
        ValueError: If the padding is unknown, or the kernel size does not fit it.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> embed = nn.ValueEmbedding(3, 8, rngs=nnx.Rngs(0))
        >>> x = jnp.linspace(0, 1, 30).reshape(2, 5, 3)
        >>> state = embed.init_state(2)
        >>> for t in range(5):
        ...     y_t, state = embed.step(x[:, t], state)
        >>> bool(jnp.allclose(embed(x)[:, -1], y_t, atol=1e-5))
        True
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        kernel_size: int = 3,
        padding: Literal["causal", "circular"] = "causal",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer = KERNEL_INIT,
        rngs: nnx.Rngs,
    ) -> None:
        check_choice(PADDINGS, padding=padding)
        if kernel_size < 1 or (padding == "circular" and kernel_size % 2 == 0):
            raise ValueError(
                f"kernel_size must be at least 1, and odd for circular padding, got {kernel_size}."
            )
        self.in_features = in_features
        self.kernel_size = kernel_size
        self.padding = padding
        self.projection = nnx.Linear(
            kernel_size * in_features,
            features,
            use_bias=False,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            rngs=rngs,
        )

    @property
    def streams(self) -> bool:
        """Whether the embedding is causal, so that ``init_state`` and ``step`` are available."""
        return self.padding == "causal"

    @overload
    def __call__(
        self,
        x: Features,
        *,
        return_state: Literal[False] = False,
        **options: Unpack[EmbeddingCallOptions],
    ) -> Features: ...

    @overload
    def __call__(
        self, x: Features, *, return_state: Literal[True], **options: Unpack[EmbeddingCallOptions]
    ) -> tuple[Features, State]: ...

    @automatic(2)
    def __call__(
        self,
        x: Features,
        *,
        mask: Mask | None = None,
        segments: Segments | None = None,
        state: State | None = None,
        return_state: bool = False,
    ) -> Features | tuple[Features, State]:
        """Embeds whole sequences of observations.

        Args:
            x: Observations of shape [B, T, in_features].
            mask: Boolean array of shape [B, T]; True marks valid tokens. The convolution skips
                padding.
            segments: Boundaries of packed sequences, which the convolution does not cross.
            state: The previous observations, of shape [B, kernel_size - 1, in_features].
            return_state: Whether to return ``(y, state)`` instead of ``y``.

        Returns:
            Features y of shape [B, T, C], and the state if ``return_state``.

        Raises:
            ValueError: If a state or segments are passed with circular padding.
            TypeError: If x has no floating dtype.
        """
        if return_state:
            self._check_streams()
        y, window = self._map(zero_padding(x, mask), mask=mask, segments=segments, state=state)
        return (y, window) if return_state else y

    def _map(
        self, x: Features, *, mask: Mask | None, segments: Segments | None, state: State | None
    ) -> tuple[Features, State | None]:
        """Maps inputs that are 0 at padding to outputs y and the state, which may be None."""
        _check_floating(x)
        if self.padding == "circular":
            if state is not None or segments is not None:
                self._check_streams()
            half = self.kernel_size // 2
            shifted = [jnp.roll(x, shift, axis=1) for shift in range(half, -half - 1, -1)]
            return self.projection(jnp.concatenate(shifted, axis=-1)), None

        window = self.init_state(x.shape[0], x.dtype) if state is None else state
        taps, window = recent_tokens(x, window.astype(x.dtype), mask, segments)
        y = self.projection(jnp.concatenate(taps, axis=-1))
        # As init_state has it, so that steps over half-precision inputs compile once.
        return y, window.astype(accumulation_dtype(x.dtype))

    def init_state(self, batch_size: int, dtype: DTypeLike = jnp.float32) -> Array:
        """Returns zeros of shape [B, kernel_size - 1, in_features], the empty window.

        Raises:
            ValueError: If the padding is circular.
        """
        self._check_streams()
        return jnp.zeros((batch_size, self.kernel_size - 1, self.in_features), dtype)

    @automatic(1)
    def step(
        self, x: FeaturesStep, state: State, *, mask: Array | None = None
    ) -> tuple[FeaturesStep, State]:
        """Processes one observation per row: x [B, in_features] -> y [B, C] and the new state.

        Raises:
            ValueError: If the padding is circular.
            TypeError: If x has no floating dtype.
        """
        _check_floating(x)
        self._check_streams()
        taps, window = recent_tokens_step(zero_padding(x, mask), state.astype(x.dtype), mask)
        y = self.projection(jnp.concatenate(taps, axis=-1))
        return y, window.astype(accumulation_dtype(x.dtype))

    def _check_streams(self) -> None:
        if self.padding == "circular":
            raise ValueError(
                "circular padding depends on the end of the sequence, so it has no state "
                "and no packed segments; create the model with padding='causal' to stream "
                "it."
            )


def _check_floating(x: Array) -> None:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"observations must have a floating dtype, got {x.dtype}; cast them, for example "
            "x.astype(jnp.float32)."
        )


def recent_tokens_step(
    x: FeaturesStep, window: Float[Array, "B W C"], mask: Array | None
) -> tuple[list[FeaturesStep], Float[Array, "B W C"]]:
    """``recent_tokens`` for one token per row, which needs no search for previous tokens.

    Args:
        x: Token of each row, of shape [B, C].
        window: The last W valid tokens of earlier calls, of shape [B, W, C] and the dtype of ``x``.
        mask: Boolean array of shape [B]; where False, the window is unchanged.

    Returns:
        W + 1 arrays of shape [B, C], the window and the token, and the window for the next call.
    """
    after = jnp.concatenate([window, x[:, None]], axis=1)[:, 1:]
    taps = [*(window[:, tap] for tap in range(window.shape[1])), x]
    return taps, after if mask is None else jnp.where(mask[:, None, None], after, window)


def recent_tokens(
    x: Features, window: Float[Array, "B W C"], mask: Mask | None, segments: Segments | None
) -> tuple[list[Features], Float[Array, "B W C"]]:
    """Gathers each token with the W valid tokens before it, oldest first, padded with zeros.

    Args:
        x: Tokens of shape [B, T, C].
        window: The last W valid tokens of earlier calls, of shape [B, W, C].
        mask: Boolean array of shape [B, T]; True marks valid tokens. None if all are valid.
        segments: Boundaries of packed sequences, which windows do not cross.

    Returns:
        W + 1 arrays of shape [B, T, C], one per tap, which stay apart because a stack of them would
        take more time than a convolution; and the window for the next call.
    """
    batch, length, channels = x.shape
    size = window.shape[1]
    if length == 0 or (mask is None and segments is None):
        # Slices instead of gathers, whose gradient would be a scatter.
        joined = jnp.concatenate([window, x], axis=1)
        shifted = [joined[:, tap : tap + length] for tap in range(size + 1)]
        return shifted, joined[:, length:]
    if size == 0:
        return [x], window
    mask = jnp.ones((batch, length), bool) if mask is None else mask
    # Rows: one of zeros, the window, the tokens. `before` leads from a row to the one before.
    rows = jnp.concatenate([jnp.zeros((batch, 1, channels), x.dtype), window, x], axis=1)
    before_token = previous_real_index(mask) + size + 1
    if segments is not None:
        before_token = jnp.where(segments.starts, 0, before_token)
    before_window = jnp.broadcast_to(
        jnp.arange(-1, size, dtype=jnp.int32).clip(0), (batch, size + 1)
    )
    before = jnp.concatenate([before_window, before_token], axis=1)

    def trace_back(row: Array, count: int) -> list[Array]:
        path = [row]
        for _ in range(count - 1):
            path.append(jnp.take_along_axis(before, path[-1], axis=1))
        index = jnp.stack(path[::-1], axis=2)  # for one gather, and one scatter of its gradient
        taken = jnp.take_along_axis(rows, index.reshape(batch, -1)[..., None], axis=1)
        taken = taken.reshape(batch, row.shape[1], count, channels)
        return [taken[:, :, tap] for tap in range(count)]

    tokens = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32) + size + 1, (batch, length))
    latest = jnp.where(mask[:, -1:], tokens[:, -1:], before[:, -1:])
    return trace_back(tokens, size + 1), jnp.concatenate(trace_back(latest, size), axis=1)
