"""Embedding of tokens by a small convolutional network, as in TaylorShift's models."""

from __future__ import annotations

import itertools
from typing import Literal, Unpack, overload

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Int

from flax_linattn.checks import OptionError, check_choice, check_integers
from flax_linattn.nn.embedding import EmbeddingCallOptions, recent_tokens, recent_tokens_step
from flax_linattn.nn.feed_forward import ACTIVATIONS
from flax_linattn.nn.linear import UniformFanIn
from flax_linattn.nn.meshes import automatic
from flax_linattn.nn.norm import LayerNorm
from flax_linattn.nn.sequence_norm import SequenceNorm
from flax_linattn.nn.tokens import check_tokens
from flax_linattn.ops.contract.masks import Segments, zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, State

CONV_PADDINGS = ("same", "causal")


class ConvEmbedding(nnx.Module):
    """Three convolutions over one-hot tokens, C/4, C/2 and C wide, each with a norm and GELU.

    ``padding="same"`` is the network of TaylorShift's code: centered convolutions without bias, and
    group norm with one group over the whole sequence and all channels. Each token's features depend
    on all tokens, so it can neither stream nor pack. ``padding="causal"`` is this library's own
    variant: convolutions over a token and its predecessors, and a norm over the channels of each
    token, so that it streams and packs.

    The convolution of one-hot vectors is computed as a table lookup for each tap. Padding is
    skipped: the neighbors of a token are its neighboring valid tokens, and zeros beyond the ends.

    A token outside 0 ... N - 1 is an error, and under ``jit`` NaN: for its whole sequence with
    "same", whose norm covers the sequence, and within the reach of the convolutions with "causal".

    Args:
        num_tokens: Vocabulary size N; tokens are 0 ... N - 1.
        features: Number of features C, a multiple of 4.
        padding: Padding of the convolutions, "same" or "causal".
        kernel_size: Number of taps of each convolution; odd for "same".
        dtype: Dtype of the computation; inferred from inputs and parameters if None.
        param_dtype: Dtype of the parameters.
        rngs: Random number generators; "params" initializes the parameters.

    Raises:
        OptionError: If an option is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> embed = nn.ConvEmbedding(11, 8, padding="causal", rngs=nnx.Rngs(0))
        >>> x = jnp.array([[3, 1, 4, 1, 5]])
        >>> state = embed.init_state(1)
        >>> for t in range(5):
        ...     y_t, state = embed.step(x[:, t], state)
        >>> bool(jnp.allclose(embed(x)[:, -1], y_t, atol=1e-5))
        True
    """

    def __init__(
        self,
        num_tokens: int,
        features: int,
        *,
        padding: Literal["same", "causal"] = "same",
        kernel_size: int = 3,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        check_choice(CONV_PADDINGS, padding=padding)
        check_integers(1, num_tokens=num_tokens, features=features, kernel_size=kernel_size)
        if features % 4:
            raise OptionError(
                "features must be a multiple of 4, because the convolutions have C/4, C/2 "
                f"and C features; got {features}.",
                "features",
            )
        if padding == "same" and kernel_size % 2 == 0:
            raise OptionError(
                f'kernel_size must be odd for padding "same", got {kernel_size}.', "kernel_size"
            )
        self.num_tokens = int(num_tokens)
        self.features = int(features)
        self.kernel_size = int(kernel_size)
        self.padding = padding
        self.dtype = dtype
        self.param_dtype = param_dtype
        widths = (self.features // 4, self.features // 2, self.features)

        def kernel(before: int, after: int) -> nnx.Param[Array]:
            init = UniformFanIn(self.kernel_size * before)
            shape = (self.kernel_size, before, after)
            return nnx.Param(init(rngs.params(), shape, param_dtype))

        self.table = kernel(self.num_tokens, widths[0])
        self.kernels = nnx.List(kernel(*pair) for pair in itertools.pairwise(widths))
        norm = LayerNorm if padding == "causal" else SequenceNorm
        self.norms = nnx.List(norm(width, param_dtype=param_dtype, rngs=rngs) for width in widths)

    @property
    def streams(self) -> bool:
        """Whether the embedding is causal, so that ``init_state`` and ``step`` are available."""
        return self.padding == "causal"

    @overload
    def __call__(
        self,
        x: Int[Array, "B T"],
        *,
        return_state: Literal[False] = False,
        **options: Unpack[EmbeddingCallOptions],
    ) -> Features: ...

    @overload
    def __call__(
        self,
        x: Int[Array, "B T"],
        *,
        return_state: Literal[True],
        **options: Unpack[EmbeddingCallOptions],
    ) -> tuple[Features, State]: ...

    @automatic(2)
    def __call__(
        self,
        x: Int[Array, "B T"],
        *,
        mask: Mask | None = None,
        segments: Segments | None = None,
        state: State | None = None,
        return_state: bool = False,
    ) -> Features | tuple[Features, State]:
        """Embeds whole sequences of tokens.

        Args:
            x: Tokens, an integer array of shape [B, T].
            mask: Boolean array of shape [B, T]; True marks valid tokens. Masked tokens have no
                effect.
            segments: Boundaries of packed sequences, which no convolution crosses.
            state: State returned by an earlier call.
            return_state: Whether to return ``(y, state)`` instead of ``y``.

        Returns:
            Features y of shape [B, T, C], and the state if ``return_state``. At masked positions, y
            is undefined.

        Raises:
            ValueError: If a state or segments are passed with padding "same".
            TypeError: If tokens have no integer dtype.
        """
        if return_state:
            self._check_streams()
        y, windows = self._map(x, mask=mask, segments=segments, state=state)
        return (y, windows) if return_state else y

    def _map(
        self,
        x: Int[Array, "B T"],
        *,
        mask: Mask | None,
        segments: Segments | None,
        state: State | None,
    ) -> tuple[Features, State | None]:
        """Maps inputs that are 0 at padding to outputs y and the state, which may be None."""
        codes = self._token_codes(x)
        if not self.streams:
            if state is not None or segments is not None:
                self._check_streams(packed=segments is not None)
            return self._map_sequence(codes, mask), None
        windows = self.init_state(x.shape[0]) if state is None else state
        taps, first = recent_tokens(
            zero_padding(codes, mask)[..., None], windows[0], mask, segments
        )
        h = self._activate(0, self._lookup(jnp.concatenate(taps, axis=-1)), mask)
        states = [first]
        for i, kernel in enumerate(self.kernels):
            window = windows[i + 1].astype(h.dtype)
            taps, window = recent_tokens(h, window, mask, segments)
            weights = kernel[...].astype(h.dtype)
            h = self._activate(i + 1, jnp.einsum("kbti,kio->bto", jnp.stack(taps), weights), mask)
            states.append(window.astype(accumulation_dtype(window.dtype)))
        return h, tuple(states)

    def init_state(self, batch_size: int, dtype: DTypeLike = jnp.float32) -> State:
        """Returns the empty windows of the convolutions: codes of tokens, then features.

        The state does not depend on ``dtype``, which other embeddings need: inputs are tokens.

        Returns:
            int32 [B, kernel_size - 1, 1], then [B, kernel_size - 1, C/4] and [..., C/2].

        Raises:
            ValueError: If the padding is "same".
        """
        self._check_streams()
        size = self.kernel_size - 1
        dtype = accumulation_dtype(self._compute_dtype)
        features = (self.features // 4, self.features // 2)
        return (
            jnp.zeros((batch_size, size, 1), jnp.int32),
            *(jnp.zeros((batch_size, size, width), dtype) for width in features),
        )

    @automatic(1)
    def step(
        self, x: Int[Array, "B"], state: State, *, mask: Array | None = None
    ) -> tuple[FeaturesStep, State]:
        """Processes one token per row: x int [B] -> y [B, C] and the new state."""
        self._check_streams()
        codes = zero_padding(self._token_codes(x), mask)
        taps, first = recent_tokens_step(codes[:, None], state[0], mask)
        h = self._activate(0, self._lookup(jnp.concatenate(taps, axis=-1)), mask)
        states = [first]
        for i, kernel in enumerate(self.kernels):
            taps, window = recent_tokens_step(h, state[i + 1].astype(h.dtype), mask)
            weights = kernel[...].astype(h.dtype)
            h = self._activate(i + 1, jnp.einsum("kbi,kio->bo", jnp.stack(taps), weights), mask)
            states.append(window.astype(accumulation_dtype(window.dtype)))
        return h, tuple(states)

    @property
    def _compute_dtype(self) -> DTypeLike:
        return self.param_dtype if self.dtype is None else self.dtype

    def _token_codes(self, x: Array) -> Array:
        """Shifts tokens to 1 ... N; 0 stands for no token, N + 1 for an unknown one."""
        check_tokens(x, self.num_tokens)
        x = x.astype(jnp.int32)
        return jnp.where((x >= 0) & (x < self.num_tokens), x + 1, self.num_tokens + 1)

    def _lookup(self, codes: Array) -> Array:
        """First convolution, of one-hot vectors: codes int [B, T, taps] -> [B, T, C/4]."""
        table = self.table[...].astype(self._compute_dtype)
        table = jnp.pad(table, ((0, 0), (1, 0), (0, 0)))  # no token adds nothing
        rows = (
            jnp.take(table[tap], codes[..., tap], axis=0, mode="fill", fill_value=jnp.nan)
            for tap in range(self.kernel_size)
        )
        return sum(rows, start=jnp.zeros((), table.dtype))

    def _map_sequence(self, codes: Array, mask: Array | None) -> Array:
        """Applies the network to whole sequences, with valid tokens moved to the front."""
        length, front = codes.shape[1], mask
        if mask is not None:
            order = jnp.argsort(~mask, axis=1, stable=True)
            front = jnp.take_along_axis(mask, order, axis=1)
            codes = zero_padding(jnp.take_along_axis(codes, order, axis=1), front)
        half = self.kernel_size // 2
        around = jnp.pad(codes, ((0, 0), (half, half)))
        taps = [around[:, tap : tap + length] for tap in range(self.kernel_size)]
        h = self._activate(0, self._lookup(jnp.stack(taps, axis=-1)), front)
        for i, kernel in enumerate(self.kernels):
            h = jax.lax.conv_general_dilated(
                h,
                kernel[...].astype(h.dtype),
                window_strides=(1,),
                padding="SAME",
                dimension_numbers=("NWC", "WIO", "NWC"),
            )
            h = self._activate(i + 1, h, front)
        if mask is None:
            return h
        place = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
        return jnp.take_along_axis(h, place[..., None], axis=1)

    def _activate(self, layer: int, h: Array, mask: Array | None) -> Array:
        """Applies norm and GELU after a convolution, and zeroes padding."""
        norm = self.norms[layer]
        h = norm(h) if self.streams else norm(h, mask=mask)
        return zero_padding(ACTIVATIONS["gelu"](h), mask)

    def _check_streams(self, packed: bool = False) -> None:
        if not self.streams:
            what = "has no packed segments" if packed else "has no state"
            raise ValueError(
                'the convolutions with padding="same" and their norms depend on later '
                f'tokens, so the embedding {what}; create it with padding="causal".'
            )
