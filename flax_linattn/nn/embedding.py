"""Value embedding: a short convolution over the observations, as Time-Series-Library has it."""

from __future__ import annotations

from typing import Literal, TypedDict, Unpack, overload

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from flax_linattn.checks import choice
from flax_linattn.nn.meshes import automatic
from flax_linattn.ops.contract.masks import Segments, previous_real_index, zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, State

PADDINGS = ("causal", "circular")
KERNEL_INIT = nnx.initializers.variance_scaling(2.0, "fan_in", "normal")
"""Kaiming's, as Time-Series-Library has it."""


class EmbeddingCallOptions(TypedDict, total=False):
    """Options of a call of an embedding on sequences, see ``ValueEmbedding``."""

    mask: Mask | None
    segments: Segments | None
    state: State | None


class ValueEmbedding(nnx.Module):
    """A bias-free convolution over time from observations to features.

    ``padding="causal"`` looks at the current and the ``kernel_size - 1`` preceding real
    tokens, so it streams. ``padding="circular"`` is Time-Series-Library's: it looks one step
    ahead and wraps around the end of the padded sequence, hence cannot stream.

    Args:
        in_features: observed channels.
        features: C.
        kernel_size: taps; odd for "circular".
        padding: "causal" or "circular".
        dtype: dtype of the computation.
        param_dtype: dtype of the kernel.
        kernel_init: initialiser of the kernel.
        rngs: holds the stream "params".

    Raises:
        ValueError: an unknown padding, or a kernel size that it does not take.

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
        choice(PADDINGS, padding=padding)
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
        """Whether outputs depend only on current and past inputs, so that the module streams."""
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
        """Embeds whole sequences.

        Args:
            x: [B, T, in_features].
            mask: bool [B, T], True = a real token; padding is skipped, not convolved.
            segments: packed segments; the convolution does not reach across their borders.
            state: the preceding observations [B, kernel_size - 1, in_features].
            return_state: return ``(y, state)``.

        Returns:
            y [B, T, C], and the state if asked for.

        Raises:
            ValueError: a state or segments with circular padding.
            TypeError: x is not of a floating dtype.
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

        if mask is None:
            mask = jnp.ones(x.shape[:2], bool)
        window = self.init_state(x.shape[0], x.dtype) if state is None else state
        taps, window = recent_tokens(x, window.astype(x.dtype), mask, segments)
        y = self.projection(taps.reshape(*x.shape[:2], -1))
        # As init_state has it, so that steps over half-precision inputs compile once.
        return y, window.astype(accumulation_dtype(x.dtype))

    def init_state(self, batch_size: int, dtype: DTypeLike = jnp.float32) -> Array:
        """Zeros [B, kernel_size - 1, in_features]: nothing observed yet.

        Raises:
            ValueError: the padding is circular.
        """
        self._check_streams()
        return jnp.zeros((batch_size, self.kernel_size - 1, self.in_features), dtype)

    @automatic(1)
    def step(
        self, x: FeaturesStep, state: State, *, mask: Array | None = None
    ) -> tuple[FeaturesStep, State]:
        """Takes in one observation a row: x [B, in_features] -> y [B, C] and the new state.

        Raises:
            ValueError: circular padding.
            TypeError: x is not of a floating dtype.
        """
        _check_floating(x)
        self._check_streams()
        taps, window = next_token(zero_padding(x, mask), state.astype(x.dtype), mask)
        y = self.projection(taps.reshape(x.shape[0], -1))
        return y, window.astype(accumulation_dtype(x.dtype))

    def _check_streams(self) -> None:
        if self.padding == "circular":
            raise ValueError(
                "circular padding looks at the end of the sequence, so it has no state and no "
                "packed segments; make the model with padding='causal' to stream it."
            )


def _check_floating(x: Array) -> None:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"observations must have a floating dtype, got {x.dtype}; cast them, for example "
            "x.astype(jnp.float32)."
        )


def next_token(
    x: FeaturesStep, window: Float[Array, "B W C"], mask: Array | None
) -> tuple[Float[Array, "B taps C"], Float[Array, "B W C"]]:
    """``recent_tokens`` of one token a row, which needs no search for the tokens before it.

    Args:
        x: [B, C].
        window: [B, W, C], the last real tokens of earlier calls, of the dtype of ``x``.
        mask: bool [B]; where False the window stays as it is.

    Returns:
        [B, W + 1, C] and the window for the next call.
    """
    taps = jnp.concatenate([window, x[:, None]], axis=1)
    after = taps[:, 1:]
    return taps, after if mask is None else jnp.where(mask[:, None, None], after, window)


def recent_tokens(
    x: Features, window: Float[Array, "B W C"], mask: Mask, segments: Segments | None
) -> tuple[Float[Array, "B T taps C"], Float[Array, "B W C"]]:
    """Each token with the W real tokens before it, oldest first; zeros where there are none.

    Args:
        x: [B, T, C], T >= 1.
        window: [B, W, C], the last real tokens of earlier calls.
        mask: bool [B, T].
        segments: packed segments; a run does not see tokens before its start.

    Returns:
        [B, T, W + 1, C] and the window for the next call.
    """
    batch, length, channels = x.shape
    size = window.shape[1]
    if size == 0:
        return x[:, :, None], window
    # Rows: one of zeros, the window, the tokens. `before` leads from a row to the one before.
    rows = jnp.concatenate([jnp.zeros((batch, 1, channels), x.dtype), window, x], axis=1)
    before_token = previous_real_index(mask) + size + 1
    if segments is not None:
        before_token = jnp.where(segments.starts, 0, before_token)
    before_window = jnp.broadcast_to(jnp.arange(-1, size).clip(0), (batch, size + 1))
    before = jnp.concatenate([before_window, before_token], axis=1)

    def trace_back(row: Array, count: int) -> Array:
        path = [row]
        for _ in range(count - 1):
            path.append(jnp.take_along_axis(before, path[-1], axis=1))
        index = jnp.stack(path[::-1], axis=2)
        taken = jnp.take_along_axis(rows, index.reshape(batch, -1)[..., None], axis=1)
        return taken.reshape(batch, row.shape[1], count, channels)

    tokens = jnp.broadcast_to(jnp.arange(length) + size + 1, (batch, length))
    latest = jnp.where(mask[:, -1:], tokens[:, -1:], before[:, -1:])
    return trace_back(tokens, size + 1), trace_back(latest, size)[:, 0]
