"""Forecasts after each observation: causal backbone, linear head. Trains in parallel, streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Unpack, overload

import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from flax_linattn.checks import OptionError, array, at_least
from flax_linattn.models.backbone import (
    Backbone,
    BackboneOptions,
    BackboneState,
    as_backbone,
    check_state,
)
from flax_linattn.models.embedding import ObservationEmbedding
from flax_linattn.models.layers import Layers
from flax_linattn.models.moments import Moments, MomentsState
from flax_linattn.models.quantiles import QuantileHead
from flax_linattn.nn.linear import linear
from flax_linattn.nn.meshes import automatic
from flax_linattn.ops.contract.masks import packed_runs, zero_padding
from flax_linattn.ops.contract.state import exportable
from flax_linattn.ops.engine.prefix import select
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, SegmentIds

FORECASTER_LAYERS = Layers(features=64, num_layers=2, hidden_features=128)
"""The layers of a forecaster unless others are given."""


@exportable
class ForecasterState(NamedTuple):
    """What a forecaster carries from call to call.

    Attributes:
        backbone: the backbone's state.
        moments: those of the observations so far; None without input normalisation.
    """

    backbone: BackboneState
    moments: MomentsState | None


class ForecasterOptions(BackboneOptions, total=False):
    """Options of a call of ``Forecaster``, see there."""

    every_step: bool
    positions: Int[Array, "P"] | None


class Forecaster(nnx.Module):
    """The next ``horizon`` values of a series, after each of its observations.

    Every observation is normalised by the mean and standard deviation of those so far, and the
    forecast brought back by the same: the input normalisation of the Non-stationary Transformer
    (Liu et al., 2022), taken over the past instead of a window, so that nothing looks ahead and
    the model streams. All steps of the horizon come from one linear layer.

    Args:
        backbone: a :class:`Backbone` that streams, for observations of the channels and the
            marks behind them; or the number of channels, for such a one.
        horizon: H, steps to forecast.
        num_marks: further inputs that are known and not forecast, such as calendar features.
        targets: which channels to forecast; default all.
        normalize: whether inputs are normalised.
        memory: tokens over which the normalisation forgets, see ``Moments``; None = none.
        quantiles: levels, rising, to forecast beside the mean, such as (0.1, 0.5, 0.9): a forecast
            then has a last axis of the mean and the quantiles, see ``QuantileHead``.
        layers: of the backbone for so many channels.
        rngs: holds the stream "params", and perhaps "dropout".
        **options: further arguments of that :class:`Backbone` (num_layers, mechanism with a
            causal form, kernel_size, position, max_length, ...).

    Raises:
        ValueError: an option out of range.

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

    def __init__(
        self,
        backbone: Backbone | int,
        horizon: int,
        *,
        num_marks: int = 0,
        targets: Sequence[int] | None = None,
        normalize: bool = True,
        memory: float | None = None,
        quantiles: Sequence[float] = (),
        layers: Layers | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        at_least(1, horizon=horizon)
        at_least(0, num_marks=num_marks)
        if memory is not None and not memory > 0:
            raise OptionError(f"expected memory above 0, or None, got {memory}.", "memory")
        if not isinstance(backbone, Backbone):
            at_least(1, num_channels=backbone)
            layers, options = (layers or FORECASTER_LAYERS).take(options)
            check_causal(layers)
            backbone = int(backbone) + num_marks
        backbone, of_head = as_backbone(backbone, layers, FORECASTER_LAYERS, rngs=rngs, **options)
        if not backbone.is_causal or not backbone.input_embedding.streams:
            raise ValueError(
                "a forecaster forecasts after every observation: it needs a backbone with "
                "is_causal=True and embedding_padding='causal'."
            )
        self.num_channels = _num_channels(backbone, num_marks)
        self.horizon = horizon
        self.targets = check_targets(targets, self.num_channels)
        self.moments = Moments(memory) if normalize else None
        self.backbone = backbone
        self.head = linear(
            backbone.layers.features, horizon * len(self.targets), rngs=rngs, **of_head
        )
        self.quantile_head = (
            QuantileHead(
                quantiles,
                backbone.layers.features,
                horizon,
                len(self.targets),
                rngs=rngs,
                **of_head,
            )
            if quantiles
            else None
        )

    @overload
    def __call__(
        self,
        x: Features,
        *,
        return_state: Literal[False] = False,
        **options: Unpack[ForecasterOptions],
    ) -> Array: ...

    @overload
    def __call__(
        self, x: Features, *, return_state: Literal[True], **options: Unpack[ForecasterOptions]
    ) -> tuple[Array, ForecasterState]: ...

    @overload
    def __call__(
        self, x: Features, *, return_state: bool, **options: Unpack[ForecasterOptions]
    ) -> Array | tuple[Array, ForecasterState]: ...

    @automatic(1)
    def __call__(
        self,
        x: Features,
        *,
        mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        state: ForecasterState | None = None,
        return_state: bool = False,
        every_step: bool = False,
        positions: Int[Array, "P"] | None = None,
        dropout_key: Array | None = None,
        form: str = "auto",
    ) -> Array | tuple[Array, ForecasterState]:
        """Forecasts from whole sequences.

        Args:
            x: float32 [B, T, num_channels + num_marks], T >= 1: channels first.
            mask: bool [B, T], True = a real token.
            segment_ids: int [B, T], packed sequences; with ``every_step`` or ``positions``.
            state: what an earlier call returned.
            return_state: return ``(forecasts, state)``.
            every_step: the forecasts after every observation instead of the last real one.
            positions: the forecasts after these observations.
            dropout_key: a key turns dropout on (training).
            form: see ``ops.Mechanism.attend``.

        Returns:
            Forecasts float32 [B, H, targets]; [B, T, H, targets] with ``every_step``, [B, P, H,
            targets] with ``positions``. Of a row without real tokens they mean nothing. With
            quantiles there is a last axis [1 + Q]: the mean, then the quantiles.

        Raises:
            ValueError: wrong shapes, or segments without every step or positions.
        """
        if segment_ids is not None and not every_step and positions is None:
            raise ValueError("packed sequences need every_step=True, or positions.")
        self._check_observations(x, "[B, T, {}]", 3)
        if state is not None:
            check_state(state, ForecasterState, batch_size=x.shape[0])
        x, (mean, std), moments = self._normalized(x, mask, segment_ids, state)
        options: BackboneOptions = {
            "mask": mask,
            "segment_ids": segment_ids,
            "state": None if state is None else state.backbone,
            "dropout_key": dropout_key,
            "form": form,
        }
        after: BackboneState | None = None
        if return_state:
            h, after = self.backbone(x, return_state=True, **options)
        else:
            h = self.backbone(x, **options)
        if not every_step and positions is None:
            last = jnp.full(x.shape[:1], x.shape[1] - 1)
            if mask is not None:
                last = x.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=1)
            h, mean, std = (
                jnp.take_along_axis(a, last[:, None, None], axis=1)[:, 0] for a in (h, mean, std)
            )
        elif positions is not None:
            h, mean, std = (a[:, positions] for a in (h, mean, std))
        y = self._forecasts(h, mean, std)
        return y if after is None else (y, ForecasterState(after, moments))

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that make one like it, as ``save_model`` keeps them."""
        return {
            "backbone": self.backbone,
            "horizon": self.horizon,
            "num_marks": self.backbone.observation_shape[0] - self.num_channels,
            "targets": self.targets,
            "normalize": self.moments is not None,
            "memory": None if self.moments is None else self.moments.memory,
            "quantiles": () if self.quantile_head is None else self.quantile_head.levels,
        }

    @property
    def streams(self) -> bool:
        """Whether ``init_state`` and ``step`` are offered, over observations."""
        return self.backbone.streams

    @property
    def num_positions(self) -> int | None:
        """Most observations of a sequence that have a position; None = any number."""
        return self.backbone.num_positions

    def forecast(
        self,
        values: Features,
        marks: Features | None = None,
        *,
        positions: Int[Array, "P"],
        dropout_key: Array | None = None,
    ) -> Float[Array, "B P H targets"]:
        """Forecasts from windows, as every forecaster does.

        Args:
            values: float32 [B, L, num_channels].
            marks: float32 [B, >= L, num_marks], of the window and perhaps of what follows.
            positions: the observations to forecast from.
            dropout_key: a key turns dropout on (training).
        """
        if marks is not None:
            values = jnp.concatenate([values, marks[:, : values.shape[1]]], axis=-1)
        return self(values, positions=positions, dropout_key=dropout_key)

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> ForecasterState:
        """The state before the first observation; see ``Backbone.init_state``."""
        moments = None
        if self.moments is not None:
            moments = self.moments.init_state(batch_size, self.num_channels)
        backbone = self.backbone.init_state(batch_size, max_length, dtype=dtype)
        return ForecasterState(backbone, moments)

    @automatic(1)
    def step(
        self, x: FeaturesStep, state: ForecasterState, *, mask: Array | None = None
    ) -> tuple[Float[Array, "B H targets"], ForecasterState]:
        """Takes in one observation a row: x [B, num_channels + num_marks] -> forecasts, new state.

        ``mask`` bool [B]: where False the state stays as it is, and the forecast means nothing.
        """
        self._check_observations(x, "[B, {}]", 2)
        check_state(state, ForecasterState, batch_size=x.shape[0])
        x = jnp.asarray(x)
        moments = state.moments
        mean, std = self._neutral(x)
        if self.moments is not None and moments is not None:
            values = x[:, : self.num_channels].astype(jnp.float32)
            new = self.moments.merge(moments, self.moments.lift(values))
            moments = new if mask is None else select(mask, new, moments)
            mean, std = self.moments.read(moments)
        h, backbone = self.backbone.step(
            _scaled(x, mean, std, self.num_channels), state.backbone, mask=mask
        )
        return self._forecasts(h, mean, std), ForecasterState(backbone, moments)

    def _check_observations(self, x: Array, shape: str, ndim: int) -> None:
        (size,) = self.backbone.observation_shape
        array(shape.format(size), observations=x)
        if x.ndim != ndim or x.shape[-1] != size:
            raise ValueError(f"expected observations {shape.format(size)}, got {x.shape}.")

    def _normalized(
        self,
        x: Features,
        mask: Mask | None,
        segment_ids: SegmentIds | None,
        state: ForecasterState | None,
    ) -> tuple[Features, tuple[Array, Array], MomentsState | None]:
        """The inputs of the backbone, what they were normalised by, and the moments after them."""
        x = zero_padding(x, mask)
        if self.moments is None:
            return x, self._neutral(x), None
        carried = None if state is None else state.backbone.segment_id
        runs = packed_runs(segment_ids, mask, carried)
        before = None if state is None else state.moments
        moments, after = self.moments(
            x[..., : self.num_channels].astype(jnp.float32),
            self.moments.init_state(x.shape[0], self.num_channels) if before is None else before,
            mask=mask,
            starts=None if runs is None else runs.starts,
        )
        return _scaled(x, *moments, self.num_channels), moments, after

    def _neutral(self, x: Array) -> tuple[Array, Array]:
        zeros = jnp.zeros((*x.shape[:-1], self.num_channels), jnp.float32)
        return zeros, zeros + 1

    def _forecasts(self, h: Array, mean: Array, std: Array) -> Array:
        targets = jnp.asarray(self.targets)
        y = rearrange(self.head(h), "... (h c) -> ... h c", h=self.horizon).astype(jnp.float32)
        y = y * std[..., None, targets] + mean[..., None, targets]
        return y if self.quantile_head is None else self.quantile_head(h, y, std[..., targets])


def _num_channels(backbone: Backbone, num_marks: int) -> int:
    """Channels of the observations of a backbone, without the marks behind them.

    Raises:
        ValueError: it takes something else, or other marks.
    """
    embedding = backbone.input_embedding
    if len(embedding.observation_shape) != 1:
        raise ValueError(
            "a forecaster takes observations of channels, and the backbone one of shape "
            f"{embedding.observation_shape}."
        )
    (width,) = embedding.observation_shape
    if isinstance(embedding, ObservationEmbedding):
        own = width - embedding.num_channels
        if own and own != num_marks:
            raise OptionError(
                f"the backbone's embedding has {own} marks, got num_marks={num_marks}.",
                "num_marks",
            )
    if width <= num_marks:
        raise OptionError(
            f"expected a channel before the marks, got observations of {width} and "
            f"num_marks={num_marks}.",
            "num_marks",
        )
    return width - num_marks


def check_causal(layers: Layers) -> None:
    """Refuses a mechanism that forecasts cannot use.

    Raises:
        ValueError: one has no causal form.
    """
    for mechanism in layers.mechanisms:
        if not mechanism.capabilities.causal:
            raise OptionError(
                f"{mechanism.name!r} has no causal form, which forecasts need; choose another "
                "mechanism.",
                "mechanism",
            )


def check_targets(targets: Sequence[int] | None, num_channels: int) -> tuple[int, ...]:
    """The channels to forecast, as a tuple; all by default.

    Raises:
        ValueError: none, or one that is not there.
    """
    chosen = tuple(range(num_channels)) if targets is None else tuple(targets)
    if not chosen or not all(0 <= index < num_channels for index in chosen):
        raise OptionError(
            f"targets must be one or more of the channels 0 to {num_channels - 1}, got {chosen}.",
            "targets",
        )
    return chosen


def _scaled(x: Array, mean: Array, std: Array, num_channels: int) -> Array:
    """The channels normalised, the marks as they are."""
    values = (x[..., :num_channels].astype(jnp.float32) - mean) / std
    return jnp.concatenate([values.astype(x.dtype), x[..., num_channels:]], axis=-1)
