"""Forecaster: a causal backbone and a linear head, which forecasts after each observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from flax_linattn.checks import OptionError, check_integers
from flax_linattn.models.backbone import Backbone, BackboneState
from flax_linattn.models.embedding import ObservationEmbedding
from flax_linattn.models.head import Head, resolve_backbone
from flax_linattn.models.layers import FORECASTER_LAYERS, Layers, check_causal
from flax_linattn.models.moments import Moments, MomentsState
from flax_linattn.models.quantiles import QuantileHead
from flax_linattn.nn.call import Call
from flax_linattn.nn.linear import linear
from flax_linattn.ops.contract.state import register_state
from flax_linattn.ops.engine.prefix import select
from flax_linattn.typing import Array, Features, FeaturesStep


@register_state
class ForecasterState(NamedTuple):
    """State that a forecaster carries from call to call.

    Attributes:
        backbone: State of the backbone.
        moments: Moments of the observations so far; None without input normalization.
    """

    backbone: BackboneState
    moments: MomentsState | None


class SeriesHead(Head):
    """Base class of heads that forecast series: forecasts from windows, and quantiles."""

    horizon: int
    targets: tuple[int, ...]
    quantile_head: QuantileHead | None

    def _set_quantiles(
        self, levels: Sequence[float], *, per_target: bool, rngs: nnx.Rngs, **options: Any
    ) -> None:
        """Makes the quantile head, if there are levels."""
        shape = (self.layers.features, self.horizon, len(self.targets))
        self.quantile_head = (
            QuantileHead(levels, *shape, per_target=per_target, rngs=rngs, **options)
            if levels
            else None
        )

    @property
    def quantiles(self) -> tuple[float, ...]:
        """Levels of the quantiles that are forecast in addition to the mean."""
        return () if self.quantile_head is None else self.quantile_head.levels

    def forecast(
        self,
        values: Features,
        covariates: Features | None = None,
        *,
        positions: Int[Array, "P"],
        ahead: Float[Array, "B P H F"] | None = None,
        dropout_key: Array | None = None,
    ) -> Float[Array, "B P H targets"]:
        """Forecasts from windows, with the interface that all forecasters share.

        Args:
            values: Past values, float32 of shape [B, L, num_channels].
            covariates: Covariates of the window, and optionally of later steps, float32 of shape
                [B, >= L, num_covariates].
            positions: Integer array of shape [P]; the observations after which to forecast.
            ahead: Known future covariates of the horizons, if the model has any.
            dropout_key: Random key that enables dropout; None disables it.
        """
        if covariates is not None:
            values = jnp.concatenate([values, covariates[:, : values.shape[1]]], axis=-1)
        if ahead is not None:
            batch, length = values.shape[:2]
            known = jnp.zeros((batch, length, ahead.shape[2] * ahead.shape[3]), values.dtype)
            known = known.at[:, positions].set(rearrange(ahead, "b n h f -> b n (h f)"))
            values = jnp.concatenate([values, known], axis=-1)
        return self(values, positions=positions, dropout_key=dropout_key)


class Forecaster(SeriesHead):
    """Forecasts the next ``horizon`` values of a series after each of its observations.

    Every observation is normalized by the mean and standard deviation of those so far, and the
    forecast is scaled back by the same: the input normalization of the Non-stationary Transformer
    (Liu et al., 2022), computed over the past instead of a window, so that the model is causal and
    streams. One linear layer gives all steps of the horizon.

    A call returns forecasts float32 [B, H, targets] after the last valid observation; with
    ``every_step`` [B, T, H, targets] after every one, with ``positions`` [B, P, H, targets] after
    some. Packed sequences need one of these options. Forecasts of a row without tokens are
    undefined.

    Args:
        backbone: A :class:`Backbone` that streams, for observations of the channels followed by the
            covariates; or the number of channels, to build one.
        horizon: Number of steps H to forecast.
        num_covariates: Number of covariates, further inputs that are known and not forecast, such
            as time features.
        targets: Indices of the channels to forecast; default all.
        normalize: Whether to normalize the inputs.
        memory: Time constant, in tokens, of the normalization's moments, see ``Moments``; None
            weights all tokens equally.
        quantiles: Increasing levels to forecast in addition to the mean, such as (0.1, 0.5, 0.9):
            the last axis of a forecast then holds the mean and the quantiles, see ``QuantileHead``.
        layers: Options of the layers of a new backbone.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **options: Further arguments of a new :class:`Backbone` (num_layers, mechanism with a causal
            form, kernel_size, position, max_length, ...).

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> model = models.Forecaster(3, 4, features=16, num_layers=2, num_heads=4,
        ...                           mechanism="aaren", rngs=nnx.Rngs(0))
        >>> x = jnp.sin(jnp.arange(60.0)).reshape(2, 10, 3)
        >>> every = model(x, every_step=True)                # after each prefix
        >>> state = model.init_state(2)
        >>> for t in range(10):
        ...     y, state = model.step(x[:, t], state)
        >>> y.shape, bool(jnp.allclose(every[:, -1], y, atol=1e-5))
        ((2, 4, 3), True)
    """

    state_type = ForecasterState
    output_axes = 1
    option_names = ("backbone", "horizon", "targets", "quantiles")

    def __init__(
        self,
        backbone: Backbone | int,
        horizon: int,
        *,
        num_covariates: int = 0,
        targets: Sequence[int] | None = None,
        normalize: bool = True,
        memory: float | None = None,
        quantiles: Sequence[float] = (),
        layers: Layers | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        check_integers(1, horizon=horizon)
        check_integers(0, num_covariates=num_covariates)
        if memory is not None and not memory > 0:
            raise OptionError(f"memory must be above 0, or None, got {memory}.", "memory")
        if not isinstance(backbone, Backbone):
            check_integers(1, num_channels=backbone)
            layers, options = (layers or FORECASTER_LAYERS).take(options)
            check_causal(layers)
            backbone = int(backbone) + num_covariates
        backbone, head_parameters = resolve_backbone(
            backbone, layers, FORECASTER_LAYERS, rngs=rngs, **options
        )
        if not backbone.is_causal or not backbone.input_embedding.streams:
            raise ValueError(
                "expected a causal backbone, since a forecaster forecasts after every observation; "
                "make the backbone with is_causal=True and embedding_padding='causal'."
            )
        self.num_channels = _num_channels(backbone, num_covariates)
        self.horizon = horizon
        self.targets = check_targets(targets, self.num_channels)
        self.moments = Moments(memory) if normalize else None
        self.backbone = backbone
        self.head = linear(
            backbone.layers.features, horizon * len(self.targets), rngs=rngs, **head_parameters
        )
        self._set_quantiles(quantiles, per_target=False, rngs=rngs, **head_parameters)

    def read(self, h: Array, mean: Array, std: Array) -> Array:
        """Computes forecasts float32 [..., H, targets] from features and the moments of the inputs.

        With quantiles there is a last axis [1 + Q]: the mean, then the quantiles.
        """
        targets = jnp.asarray(self.targets)
        y = rearrange(self.head(h), "... (h c) -> ... h c", h=self.horizon).astype(jnp.float32)
        y = y * std[..., None, targets] + mean[..., None, targets]
        return y if self.quantile_head is None else self.quantile_head(h, y, std[..., targets])

    def _map(
        self,
        x: Array,
        call: Call,
        *,
        every_step: bool = False,
        positions: Int[Array, "P"] | None = None,
    ) -> tuple[Array, ForecasterState | None]:
        """Computes forecasts from normalized observations, and undoes the normalization."""
        if call.segment_ids is not None and not every_step and positions is None:
            raise ValueError(
                "packed sequences have several ends; pass every_step=True, or positions."
            )
        state: ForecasterState | None = call.state
        before = None if state is None else state.backbone
        call = call.with_positions(x, before)
        x, (mean, std), moments = self._normalize_inputs(x, call)
        h, after = self.backbone._map(x, call.replace(state=before))
        if positions is not None and not every_step:
            h, mean, std = (a[:, positions] for a in (h, mean, std))
        elif not every_step:
            last = jnp.full(x.shape[:1], x.shape[1] - 1)
            if call.mask is not None:
                last = x.shape[1] - 1 - jnp.argmax(call.mask[:, ::-1], axis=1)
            h, mean, std = (
                jnp.take_along_axis(a, last[:, None, None], axis=1)[:, 0] for a in (h, mean, std)
            )
        y = self.read(h, mean, std)
        return y, None if after is None else ForecasterState(after, moments)

    @property
    def options(self) -> dict[str, Any]:
        return super().options | {
            "num_covariates": self.backbone.observation_shape[0] - self.num_channels,
            "normalize": self.moments is not None,
            "memory": None if self.moments is None else self.moments.memory,
        }

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> ForecasterState:
        """Returns the state before the first observation; see ``Backbone.init_state``."""
        moments = None
        if self.moments is not None:
            moments = self.moments.init_state(batch_size, self.num_channels)
        backbone = self.backbone.init_state(batch_size, max_length, dtype=dtype)
        return ForecasterState(backbone, moments)

    def _map_step(
        self, x: FeaturesStep, state: ForecasterState, mask: Array | None
    ) -> tuple[Float[Array, "B H targets"], ForecasterState]:
        """Computes forecasts [B, H, targets] and the new state."""
        x = jnp.asarray(x)
        moments = state.moments
        mean, std = self._neutral(x)
        if self.moments is not None and moments is not None:
            values = x[:, : self.num_channels].astype(jnp.float32)
            new = self.moments.merge(moments, self.moments.lift(values))
            moments = new if mask is None else select(mask, new, moments)
            mean, std = self.moments.read(moments)
        x = _standardize(x, mean, std, self.num_channels)
        h, backbone = self.backbone._map_step(x, state.backbone, mask)
        return self.read(h, mean, std), ForecasterState(backbone, moments)

    def _normalize_inputs(
        self, x: Features, call: Call
    ) -> tuple[Features, tuple[Array, Array], MomentsState | None]:
        """Normalizes inputs; returns them, the mean and std used, and the moments after them."""
        if self.moments is None:
            return x, self._neutral(x), None
        before = None if call.state is None else call.state.moments
        moments, after = self.moments(
            x[..., : self.num_channels].astype(jnp.float32),
            self.moments.init_state(x.shape[0], self.num_channels) if before is None else before,
            mask=call.mask,
            starts=None if call.segments is None else call.segments.starts,
        )
        return _standardize(x, *moments, self.num_channels), moments, after

    def _neutral(self, x: Array) -> tuple[Array, Array]:
        zeros = jnp.zeros((*x.shape[:-1], self.num_channels), jnp.float32)
        return zeros, zeros + 1


def _num_channels(backbone: Backbone, num_covariates: int) -> int:
    """Number of channels of a backbone's observations, without their covariates."""
    embedding = backbone.input_embedding
    if len(embedding.observation_shape) != 1:
        raise ValueError(
            "expected a backbone for observations of shape (channels,), got one for observations "
            f"of shape {embedding.observation_shape}; make it with an ObservationEmbedding."
        )
    (width,) = embedding.observation_shape
    if isinstance(embedding, ObservationEmbedding):
        own = width - embedding.num_channels
        if own and own != num_covariates:
            raise OptionError(
                f"the backbone's embedding has {own} covariates, got "
                f"num_covariates={num_covariates}; pass the same number.",
                "num_covariates",
            )
    if width <= num_covariates:
        raise OptionError(
            f"expected at least one channel before the covariates, got observations of {width} "
            f"values and num_covariates={num_covariates}; pass a smaller number.",
            "num_covariates",
        )
    return width - num_covariates


def check_targets(targets: Sequence[int] | None, num_channels: int) -> tuple[int, ...]:
    """Returns the indices of the channels to forecast as a tuple; all by default."""
    chosen = tuple(range(num_channels)) if targets is None else tuple(targets)
    if not chosen or not all(0 <= index < num_channels for index in chosen):
        raise OptionError(
            f"targets must be one or more of the channels 0 to {num_channels - 1}, got {chosen}.",
            "targets",
        )
    return chosen


def _standardize(x: Array, mean: Array, std: Array, num_channels: int) -> Array:
    """Standardizes the channels, and leaves the covariates unchanged."""
    values = (x[..., :num_channels].astype(jnp.float32) - mean) / std
    return jnp.concatenate([values.astype(x.dtype), x[..., num_channels:]], axis=-1)
