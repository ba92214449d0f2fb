"""Encoder-decoder transformer for forecasting, after Time-Series-Library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from flax_linattn import nn
from flax_linattn.checks import OptionError, check_integers
from flax_linattn.models.embedding import ObservationEmbedding
from flax_linattn.models.forecaster import check_targets
from flax_linattn.models.layers import (
    FORECASTER_LAYERS,
    MAX_LAYERS,
    Layers,
    check_causal,
    sized,
)
from flax_linattn.models.moments import EPSILON
from flax_linattn.nn.dropout import apply_dropout, make_dropout, resolve_dropout_key, split_key
from flax_linattn.nn.meshes import automatic
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array, Features, State


@register_state
class HorizonState(NamedTuple):
    """State that the decoder of a window carries over the steps of the horizon.

    Attributes:
        position: Number of positions decoded so far, labels included, int32 [B].
        window: State of the decoder's embedding.
        layers: States of the decoder blocks, with the projected window.
        mean: Mean of the window, of shape [B, channels].
        std: Standard deviation of the window, of shape [B, channels].
    """

    position: Array
    window: State
    layers: tuple[nn.DecoderState, ...]
    mean: Float[Array, "B C"]
    std: Float[Array, "B C"]


class EncoderDecoder(nnx.Module):
    """Forecasts the next ``horizon`` values of a window, all at once.

    After Time-Series-Library's ``Transformer``: the embedding is the sum of a circular convolution
    of the values, a linear layer of the time features, and positions; blocks are post-norm; the
    decoder receives the last ``label_length`` observations, and zeros for the horizon. With input
    normalization the window is standardized, and the forecast scaled back (Non-stationary
    Transformer, Liu et al., 2022, without its learned factors).

    Departures: ``dropout_rate`` does not drop attention weights, see ``weight_dropout_rate``. With
    a mechanism without cross-attention (Aaren, whose query is learned) the decoder attends to the
    encoder by softmax attention: the Aaren paper does not say what it used.

    Args:
        num_channels: Number of observed channels.
        horizon: Number of steps H to forecast.
        num_covariates: Number of covariates that are known and not forecast, such as time features.
        label_length: Number of past observations that the decoder receives.
        targets: Indices of the channels to forecast; default all.
        normalize: Whether to normalize each window by its own mean and standard deviation.
        is_causal: Whether the encoder is causal, as in the Aaren paper; Time-Series-Library's is
            not.
        num_decoder_layers: Number of decoder blocks; their mechanism is that of the encoder's last
            block.
        embedding_padding: Padding of the embeddings, "circular" or "causal"; with "causal" the
            decoder also steps.
        max_length: Maximum number of observations of a window, for mechanisms that learn something
            for each position.
        layers: Options of the encoder's layers, and of the decoder's except their number.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **options: Options of ``layers`` by name.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> model = models.EncoderDecoder(3, 4, label_length=2, features=16, num_heads=4,
        ...                               embedding_padding="causal", rngs=nnx.Rngs(0))
        >>> window = jnp.sin(jnp.arange(60.0)).reshape(2, 10, 3)
        >>> forecast = model(window)                              # [B, H, channels], at once
        >>> state = model.init_state(window)                      # encoded once
        >>> for h in range(4):                                    # one after another
        ...     y, state = model.step(None, state)
        >>> forecast.shape, bool(jnp.allclose(forecast[:, -1], y, atol=1e-5))
        ((2, 4, 3), True)
    """

    def __init__(
        self,
        num_channels: int,
        horizon: int,
        *,
        num_covariates: int = 0,
        label_length: int,
        targets: Sequence[int] | None = None,
        normalize: bool = True,
        is_causal: bool = True,
        num_decoder_layers: int = 1,
        embedding_padding: Literal["circular", "causal"] = "circular",
        max_length: int | None = None,
        layers: Layers = FORECASTER_LAYERS,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        check_integers(1, num_channels=num_channels, horizon=horizon, label_length=label_length)
        check_integers(1, MAX_LAYERS, num_decoder_layers=num_decoder_layers)
        check_integers(0, num_covariates=num_covariates)
        layers, unknown = layers.take(options)
        for name in unknown:
            raise OptionError(
                f"the encoder-decoder has no option {name!r}; remove it. Its layers have the "
                f"options {', '.join(Layers.__annotations__)}.",
                name,
            )
        check_causal(layers)
        absent = {"rotary": False, "remat": "none", "drop_path_rate": 0.0, "layer_scale": None}
        absent |= {"scan_layers": False, "is_parallel": False, "residual_scale": 1.0}
        for name, default in absent.items():
            if getattr(layers, name) != default:
                raise OptionError(f"the encoder-decoder does not support {name}; remove it.", name)
        self.num_channels = num_channels
        self.num_covariates = num_covariates
        self.horizon = horizon
        self.label_length = label_length
        self.targets = check_targets(targets, num_channels)
        self.normalize = normalize
        self.is_causal = is_causal
        self.layers = layers
        self.max_length = max_length
        self.encoder_embedding, self.decoder_embedding = (
            ObservationEmbedding(
                num_channels,
                layers.features,
                num_covariates=num_covariates,
                padding=embedding_padding,
                dtype=layers.compute_dtype,
                rngs=rngs,
            )
            for _ in range(2)
        )
        self.dropout = make_dropout(layers.dropout_rate, rngs)
        self.encoder = nnx.List(
            layers.block(sized(mechanism, max_length), rngs, is_causal=is_causal)
            for mechanism in layers.mechanisms
        )
        self.encoder_norm = nn.make_norm(layers.norm_type, layers.features, rngs=rngs)
        decoded = None if max_length is None else label_length + horizon
        last = sized(layers.mechanisms[-1], decoded)
        self.decoder = nnx.List(layers.decoder_block(last, rngs) for _ in range(num_decoder_layers))
        self.decoder_norm = nn.make_norm(layers.norm_type, layers.features, rngs=rngs)
        self.head = nn.linear(layers.features, len(self.targets), rngs=rngs)

    @property
    def options(self) -> dict[str, Any]:
        """Constructor arguments of an equal model, as ``save_model`` stores them."""
        names = (
            "num_channels",
            "horizon",
            "num_covariates",
            "label_length",
            "targets",
            "normalize",
        )
        own = {name: getattr(self, name) for name in (*names, "is_causal", "max_length", "layers")}
        return own | {
            "num_decoder_layers": len(self.decoder),
            "embedding_padding": self.encoder_embedding.padding,
        }

    @property
    def streams(self) -> bool:
        """False: the model processes whole windows; see ``steps_ahead`` for the horizon."""
        return False

    @property
    def steps_ahead(self) -> bool:
        """Whether ``init_state`` and ``step`` are available, over the horizon of a window."""
        return self.decoder_embedding.streams and all(
            m.capabilities.recurrent for m in self.layers.mechanisms
        )

    @automatic(1)
    def __call__(
        self,
        values: Features,
        covariates: Features | None = None,
        *,
        dropout_key: Array | None = None,
    ) -> Float[Array, "B H targets"]:
        """Forecasts the whole horizon from a batch of windows.

        Args:
            values: Float32 array of shape [B, L, num_channels], L >= label_length.
            covariates: Covariates of the window and of the horizon, a float32 array of shape
                [B, L + H, num_covariates].
            dropout_key: Random key that enables dropout; None disables it; see
                ``nn.TransformerBlock``.

        Raises:
            ValueError: If shapes do not match.
        """
        length = values.shape[1]
        self._check_values(values)
        self._check_covariates(covariates, values.shape[0], length + self.horizon)
        keys = split_key(
            resolve_dropout_key(self.dropout, dropout_key, *self.layers.other_dropout_rates),
            2 + len(self.encoder) + len(self.decoder),
        )
        x, mean, std = self._normalize_window(values)
        known = None if covariates is None else covariates[:, :length]
        memory = self._encode(x, known, [keys[0], *keys[2 : 2 + len(self.encoder)]])
        future = jnp.zeros((x.shape[0], self.horizon, self.num_channels), x.dtype)
        labels = length - self.label_length
        y = self._embed(
            self.decoder_embedding,
            jnp.concatenate([x[:, labels:], future], axis=1),
            None if covariates is None else covariates[:, labels:],
            keys[1],
        )
        for decoder, key in zip(self.decoder, keys[2 + len(self.encoder) :], strict=True):
            y = decoder(y, memory, dropout_key=key)
        return self._read_forecasts(y[:, -self.horizon :], mean, std)

    def forecast(
        self,
        values: Features,
        covariates: Features | None = None,
        *,
        positions: Int[Array, "1"],
        dropout_key: Array | None = None,
    ) -> Float[Array, "B 1 H targets"]:
        """Forecasts from the last observation, see ``SeriesHead``; covariates are [B, L + H, M]."""
        if positions.shape != (1,):
            raise ValueError(
                "this model forecasts from the last observation of a window only, got "
                f"{positions.shape[0]} positions; pass one position, or a window for each."
            )
        return self(values, covariates, dropout_key=dropout_key)[:, None]

    @automatic(1)
    def init_state(
        self, values: Features, covariates: Features | None = None, max_length: int | None = None
    ) -> HorizonState:
        """Encodes windows and their labels: the state before the first step of the horizon.

        Args:
            values: Float32 array of shape [B, L, num_channels], L >= label_length.
            covariates: Covariates of the window, a float32 array of shape [B, L, num_covariates].
            max_length: Maximum number of positions of the decoder, for mechanisms with a cache;
                default label_length + horizon.

        Raises:
            ValueError: If shapes do not match, the embedding is circular, or the mechanism has no
                state.
        """
        if not self.steps_ahead:
            raise ValueError(
                "this model decodes the whole horizon at once; to decode in steps, make it with "
                "embedding_padding='causal' and a recurrent mechanism (capabilities.recurrent)."
            )
        self._check_values(values)
        self._check_covariates(covariates, *values.shape[:2])
        x, mean, std = self._normalize_window(values)
        memory = self._encode(x, covariates, [None] * (1 + len(self.encoder)))
        labels = values.shape[1] - self.label_length
        y, window = self.decoder_embedding(
            _concatenate(x[:, labels:], None if covariates is None else covariates[:, labels:]),
            positions=jnp.arange(self.label_length),
        )
        size = self.label_length + self.horizon if max_length is None else max_length
        layers = []
        for block in self.decoder:
            y, state = block.prefill(y, block.init_state(memory, size))
            layers.append(state)
        position = jnp.full(values.shape[0], self.label_length, jnp.int32)
        return HorizonState(position, window, tuple(layers), mean[:, 0], std[:, 0])

    @automatic(1)
    def step(
        self, covariates: Float[Array, "B covariates"] | None, state: HorizonState
    ) -> tuple[Float[Array, "B targets"], HorizonState]:
        """Forecasts one step further ahead.

        Args:
            covariates: Covariates of the step, a float32 array of shape [B, num_covariates]; None
                if the model has none.
            state: State from ``init_state`` or ``step``.

        Returns:
            The forecast [B, targets], and the new state.

        Raises:
            ValueError: If covariates are missing, or not expected.
        """
        batch = state.position.shape[0]
        self._check_covariates(None if covariates is None else covariates[:, None], batch, 1)
        y, window = self.decoder_embedding.step(
            _concatenate(jnp.zeros_like(state.mean), covariates),
            state.window,
            positions=state.position,
        )
        layers = []
        for block, layer in zip(self.decoder, state.layers, strict=True):
            y, layer = block.step(y, layer)
            layers.append(layer)
        forecast = self._read_forecasts(y[:, None], state.mean[:, None], state.std[:, None])[:, 0]
        return forecast, HorizonState(
            state.position + 1, window, tuple(layers), state.mean, state.std
        )

    def _encode(
        self, x: Features, covariates: Features | None, keys: Sequence[Array | None]
    ) -> Features:
        memory = self._embed(self.encoder_embedding, x, covariates, keys[0])
        for encoder, key in zip(self.encoder, keys[1:], strict=True):
            memory = encoder(memory, is_causal=self.is_causal, dropout_key=key)
        return self.encoder_norm(memory)

    def _embed(
        self,
        embedding: ObservationEmbedding,
        x: Features,
        covariates: Features | None,
        key: Array | None,
    ) -> Features:
        h, _ = embedding(_concatenate(x, covariates), positions=jnp.arange(x.shape[1]))
        return apply_dropout(self.dropout, h, key)

    def _normalize_window(self, values: Features) -> tuple[Features, Array, Array]:
        """Standardized windows, and their mean and standard deviation, [B, 1, channels]."""
        shape = (values.shape[0], 1, self.num_channels)
        mean, std = jnp.zeros(shape), jnp.ones(shape)
        if self.normalize:
            mean = jnp.mean(values, axis=1, keepdims=True)
            std = jnp.sqrt(jnp.var(values, axis=1, keepdims=True) + EPSILON)
        return (values - mean) / std, mean, std

    def _read_forecasts(self, y: Features, mean: Array, std: Array) -> Array:
        y = self.head(self.decoder_norm(y)).astype(jnp.float32)
        targets = jnp.asarray(self.targets)
        return y * std[..., targets] + mean[..., targets]

    def _check_values(self, values: Features) -> None:
        shape = jnp.shape(values)
        if len(shape) != 3 or shape[2] != self.num_channels or shape[1] < self.label_length:
            raise ValueError(
                f"expected values of shape [B, L >= {self.label_length}, {self.num_channels}] "
                f"(label_length observations or more of num_channels), got {shape}."
            )

    def _check_covariates(self, covariates: Features | None, batch: int, length: int) -> None:
        if (covariates is None) != (not self.num_covariates):
            raise ValueError(
                f"expected {'' if self.num_covariates else 'no '}covariates, since the model has "
                f"num_covariates={self.num_covariates}, got "
                f"{'none' if covariates is None else f'shape {covariates.shape}'}."
            )
        if covariates is not None and covariates.shape != (batch, length, self.num_covariates):
            raise ValueError(
                f"expected covariates of shape [{batch}, {length}, {self.num_covariates}], got "
                f"{covariates.shape}."
            )


def _concatenate(values: Array, covariates: Array | None) -> Array:
    """Concatenates values and covariates to the observations of ``ObservationEmbedding``."""
    return values if covariates is None else jnp.concatenate([values, covariates], axis=-1)
