"""Token embeddings of TaylorShift's models: a linear layer, or three convolutions."""

from __future__ import annotations

from typing import Literal, Unpack

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from flax_linattn import nn
from flax_linattn.models.embedding import (
    ConvolvedEmbedding,
    PositionName,
    TokenOptions,
    TokenTable,
)
from flax_linattn.nn.linear import UniformFanIn
from flax_linattn.typing import Array


class LinearTokenEmbedding(TokenTable):
    """Embeds tokens by a linear layer with bias on their one-hot vectors, plus positions.

    A token's features are a row of the table plus the bias, both initialized as PyTorch's linear
    layer. Unlike in a :class:`TokenEmbedding` no factor scales them up, so that positions weigh
    more. A token outside 0 ... N - 1 is an error, and under ``jit`` NaN.

    Args:
        num_tokens: Vocabulary size N; tokens are 0 ... N - 1.
        features: Number of features C.
        rngs: Random number generators; "params" initializes the parameters.
        **options: ``position``, ``max_length``, ``dtype``, ``param_dtype``, as in
            :class:`TokenEmbedding`.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> embedding = LinearTokenEmbedding(11, 8, rngs=nnx.Rngs(0))
        >>> embedding(jnp.array([[1, 2, 3]]), positions=jnp.arange(3)[None])[0].shape
        (1, 3, 8)
    """

    def __init__(
        self,
        num_tokens: int,
        features: int,
        *,
        rngs: nnx.Rngs,
        **options: Unpack[TokenOptions],
    ) -> None:
        init = UniformFanIn(num_tokens)
        super().__init__(num_tokens, features, embedding_init=init, rngs=rngs, **options)
        self.bias = nnx.Param(init(rngs.params(), (features,), self.table.dtype))

    def _transform_rows(self, rows: Array) -> Array:
        return rows + self.bias[...]


class ConvTokenEmbedding(ConvolvedEmbedding):
    """Embeds tokens by three convolutions over their one-hot vectors, plus positions.

    See ``nn.ConvEmbedding``. ``padding="same"`` is TaylorShift's; its norm covers the whole
    sequence, so it supports neither streaming nor packing. ``padding="causal"`` supports both; it
    is this library's variant, not the paper's.

    Args:
        num_tokens: Vocabulary size N; tokens are 0 ... N - 1.
        features: C, a multiple of 4.
        padding: Padding of the convolution: "same" or "causal".
        kernel_size: Number of taps of each convolution; odd for "same".
        position: Position embedding: "sinusoidal", "learned" for positions below ``max_length``, or
            "none".
        max_length: Maximum number of tokens of a sequence; needed for learned positions.
        dtype: Dtype of the computation; inferred from inputs and parameters if None.
        param_dtype: Dtype of the parameters.
        rngs: Random number generators; "params" initializes the parameters.

    Raises:
        ValueError: If an option is out of range; (from the call) if packed segments or a state are
            passed with "same".

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> embedding = ConvTokenEmbedding(11, 8, rngs=nnx.Rngs(0))
        >>> h, _ = embedding(jnp.array([[1, 2, 3]]), positions=jnp.arange(3)[None])
        >>> h.shape, embedding.streams
        ((1, 3, 8), False)
    """

    option_names = (
        *("num_tokens", "features", "padding", "kernel_size", "position", "max_length"),
        *("dtype", "param_dtype"),
    )

    def __init__(
        self,
        num_tokens: int,
        features: int,
        *,
        padding: Literal["same", "causal"] = "same",
        kernel_size: int = 3,
        position: PositionName = "sinusoidal",
        max_length: int | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.convolutions = nn.ConvEmbedding(
            num_tokens,
            features,
            padding=padding,
            kernel_size=kernel_size,
            dtype=dtype,
            param_dtype=param_dtype,
            rngs=rngs,
        )
        self.num_tokens = self.convolutions.num_tokens
        self.features = self.convolutions.features
        self.observation_shape = ()
        self.dtype, self.param_dtype = dtype, param_dtype
        self._set_positions(position, max_length, rngs)

    @property
    def _convolution(self) -> nn.ConvEmbedding:
        return self.convolutions
