"""Time-Series-Library's transformer for forecasting: an encoder, and a decoder of the horizon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from flax_linattn import nn, ops
from flax_linattn.models.forecaster import check_targets, resolve_causal
from flax_linattn.models.moments import EPSILON
from flax_linattn.nn.block import LayerNorm, apply_dropout, split_key
from flax_linattn.typing import Array, Features


class EncoderDecoder(nnx.Module):
    """Forecasts the next ``horizon`` values of a window, all at once.

    After Time-Series-Library's ``Transformer``: values by a circular convolution, calendar features
    by a linear layer and positions are added up; post-LN blocks; a decoder that sees the last
    ``label_length`` observations and zeros in place of the horizon. With input normalisation the
    window's mean and standard deviation are taken out, and put back in the forecast
    (Non-stationary Transformer, Liu et al., 2022, without its learned factors).

    Departures: no dropout on attention weights. A mechanism that offers no cross-attention (Aaren,
    whose query is learned) takes softmax attention from decoder to encoder: the Aaren paper does
    not say what it put there.

    Args:
        num_channels: observed channels.
        horizon: H, steps to forecast.
        num_marks: calendar features.
        label_length: observations that the decoder sees.
        targets: which channels to forecast; default all.
        normalize: whether a window is normalised.
        is_causal: whether the encoder sees only the past, as in the Aaren paper; the library's own
            sees the whole window.
        features: C.
        num_layers: blocks of the encoder.
        num_decoder_layers: blocks of the decoder.
        num_heads: heads of each block.
        hidden_features: width of the feed-forward layers, default 4 C.
        mechanism: a name or a mechanism.
        activation: "gelu" or "relu".
        dropout_rate: share of features dropped in training.
        embedding_padding: "circular" or "causal".
        dtype: dtype of the computation.
        rngs: holds the stream "params".

    Raises:
        ValueError: an option out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> model = models.EncoderDecoder(3, 4, label_length=2, features=16, num_heads=4,
        ...                               rngs=nnx.Rngs(0))
        >>> model(jnp.sin(jnp.arange(60.0)).reshape(2, 10, 3)).shape
        (2, 4, 3)
    """

    def __init__(
        self,
        num_channels: int,
        horizon: int,
        *,
        num_marks: int = 0,
        label_length: int,
        targets: Sequence[int] | None = None,
        normalize: bool = True,
        is_causal: bool = True,
        features: int = 128,
        num_layers: int = 2,
        num_decoder_layers: int = 1,
        num_heads: int = 8,
        hidden_features: int | None = None,
        mechanism: str | ops.Mechanism = "aaren",
        activation: str = "gelu",
        dropout_rate: float = 0.0,
        embedding_padding: Literal["circular", "causal"] = "circular",
        dtype: DTypeLike | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        if min(num_channels, horizon, num_layers, num_decoder_layers, label_length) < 1:
            raise ValueError(
                "expected num_channels, horizon, label_length and both numbers of layers of at "
                f"least 1, got {num_channels}, {horizon}, {label_length}, {num_layers} and "
                f"{num_decoder_layers}."
            )
        mechanism = resolve_causal(mechanism)
        self.num_channels = num_channels
        self.horizon = horizon
        self.label_length = label_length
        self.targets = check_targets(targets, num_channels)
        self.normalize = normalize
        self.is_causal = is_causal
        embedding: dict[str, Any] = {
            "num_channels": num_channels,
            "num_marks": num_marks,
            "features": features,
            "padding": embedding_padding,
            "dropout_rate": dropout_rate,
            "dtype": dtype,
            "rngs": rngs,
        }
        self.encoder_embedding = MarkedEmbedding(**embedding)
        self.decoder_embedding = MarkedEmbedding(**embedding)
        block: dict[str, Any] = {
            "hidden_features": hidden_features,
            "norm": "post",
            "activation": activation,
            "dropout_rate": dropout_rate,
            "dtype": dtype,
            "rngs": rngs,
        }
        self.encoder = nnx.List(
            nn.TransformerBlock(features, num_heads, mechanism=mechanism, **block)
            for _ in range(num_layers)
        )
        self.encoder_norm = LayerNorm(features, rngs=rngs)
        self.decoder = nnx.List(
            nn.DecoderBlock(features, num_heads, mechanism=mechanism, **block)
            for _ in range(num_decoder_layers)
        )
        self.decoder_norm = LayerNorm(features, rngs=rngs)
        self.head = nn.linear(features, len(self.targets), rngs=rngs)

    def __call__(
        self,
        values: Features,
        marks: Features | None = None,
        *,
        dropout_key: Array | None = None,
    ) -> Float[Array, "B H targets"]:
        """Forecasts from windows.

        Args:
            values: float32 [B, L, num_channels], L >= label_length.
            marks: float32 [B, L + H, num_marks], of the window and of the horizon.
            dropout_key: a key turns dropout on (training).

        Raises:
            ValueError: wrong shapes.
        """
        batch, length, channels = values.shape
        if channels != self.num_channels or length < self.label_length:
            raise ValueError(
                f"expected values [B, L >= {self.label_length}, {self.num_channels}], got "
                f"{values.shape}."
            )
        if marks is not None and marks.shape[:2] != (batch, length + self.horizon):
            raise ValueError(
                f"expected marks of the window and the horizon, [{batch}, "
                f"{length + self.horizon}, F], got {marks.shape}."
            )
        keys = split_key(dropout_key, 2 + len(self.encoder) + len(self.decoder))
        mean, std = jnp.zeros((batch, 1, channels)), jnp.ones((batch, 1, channels))
        if self.normalize:
            mean = jnp.mean(values, axis=1, keepdims=True)
            std = jnp.sqrt(jnp.var(values, axis=1, keepdims=True) + EPSILON)
        x = (values - mean) / std
        memory = self.encoder_embedding(
            x, None if marks is None else marks[:, :length], dropout_key=keys[0]
        )
        for encoder, key in zip(self.encoder, keys[2:], strict=False):
            memory = encoder(memory, is_causal=self.is_causal, dropout_key=key)
        memory = self.encoder_norm(memory)
        future = jnp.zeros((batch, self.horizon, channels), x.dtype)
        known = length - self.label_length
        y = self.decoder_embedding(
            jnp.concatenate([x[:, known:], future], axis=1),
            None if marks is None else marks[:, known:],
            dropout_key=keys[1],
        )
        for decoder, key in zip(self.decoder, keys[2 + len(self.encoder) :], strict=True):
            y = decoder(y, memory, dropout_key=key)
        y = self.head(self.decoder_norm(y[:, -self.horizon :])).astype(jnp.float32)
        targets = jnp.asarray(self.targets)
        return y * std[..., targets] + mean[..., targets]


class MarkedEmbedding(nnx.Module):
    """Values, calendar features and positions added up, then dropout.

    Args:
        num_channels: observed channels.
        num_marks: calendar features; 0 = none.
        features: C.
        padding: of the convolution over values, "circular" or "causal".
        dropout_rate: share of features dropped in training.
        dtype: dtype of the computation.
        rngs: holds the stream "params".
    """

    def __init__(
        self,
        num_channels: int,
        num_marks: int,
        features: int,
        *,
        padding: Literal["circular", "causal"],
        dropout_rate: float,
        dtype: DTypeLike | None,
        rngs: nnx.Rngs,
    ) -> None:
        self.values = nn.ValueEmbedding(
            num_channels, features, padding=padding, dtype=dtype, rngs=rngs
        )
        self.marks = (
            nn.linear(num_marks, features, use_bias=False, dtype=dtype, rngs=rngs)
            if num_marks
            else None
        )
        self.positions = nn.SinusoidalPosition(features)
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(
        self, values: Features, marks: Features | None, *, dropout_key: Array | None
    ) -> Features:
        """Embeds [B, T, num_channels] and [B, T, num_marks] -> [B, T, C].

        Raises:
            ValueError: marks are missing, or not expected.
        """
        h = self.values(values)
        if (marks is None) != (self.marks is None):
            raise ValueError(
                f"expected {'no ' if self.marks is None else ''}marks, as the model was made, got "
                f"{'none' if marks is None else marks.shape}."
            )
        if self.marks is not None and marks is not None:
            h = h + self.marks(marks)
        h = h + self.positions(jnp.arange(h.shape[1])).astype(h.dtype)
        return apply_dropout(self.dropout, h, dropout_key)
