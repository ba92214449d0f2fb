"""Forecasts after each observation: causal backbone, linear head. Trains in parallel, streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jaxtyping import Float, Int

from flax_linattn import ops
from flax_linattn.models.backbone import Backbone, BackboneState
from flax_linattn.models.moments import Moments, MomentsState
from flax_linattn.nn.attention import resolve_mechanism
from flax_linattn.nn.linear import linear
from flax_linattn.ops.contract.masks import segment_runs, zero_padding
from flax_linattn.ops.engine.prefix import select
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, SegmentIds


class ForecasterState(NamedTuple):
    """What a forecaster carries from call to call.

    Attributes:
        backbone: the backbone's state.
        moments: those of the observations so far; None without input normalisation.
    """

    backbone: BackboneState
    moments: MomentsState | None


class Forecaster(nnx.Module):
    """The next ``horizon`` values of a series, after each of its observations.

    Every observation is normalised by the mean and standard deviation of those so far, and the
    forecast brought back by the same: the input normalisation of the Non-stationary Transformer
    (Liu et al., 2022), taken over the past instead of a window, so that nothing looks ahead and
    the model streams. All steps of the horizon come from one linear layer.

    Args:
        num_channels: observed channels.
        horizon: H, steps to forecast.
        num_marks: further inputs that are known and not forecast, such as calendar features.
        targets: which channels to forecast; default all.
        normalize: whether inputs are normalised.
        memory: tokens over which the normalisation forgets, see ``Moments``; None = none.
        features: C.
        num_layers: blocks.
        num_heads: heads of each block.
        hidden_features: width of the feed-forward layers, default 4 C.
        mechanism: a name or a mechanism, with a causal form.
        rngs: holds the stream "params".
        **backbone: further arguments of :class:`Backbone` (norm, activation, dropout_rate,
            kernel_size, position, max_length, dtype, remat).

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
        num_channels: int,
        horizon: int,
        *,
        num_marks: int = 0,
        targets: Sequence[int] | None = None,
        normalize: bool = True,
        memory: float | None = None,
        features: int = 128,
        num_layers: int = 2,
        num_heads: int = 8,
        hidden_features: int | None = None,
        mechanism: Any = "aaren",
        rngs: nnx.Rngs,
        **backbone: Any,
    ) -> None:
        if num_channels < 1 or horizon < 1 or num_marks < 0:
            raise ValueError(
                "expected num_channels and horizon of at least 1 and num_marks of at least 0, got "
                f"{num_channels}, {horizon} and {num_marks}."
            )
        if memory is not None and not memory > 0:
            raise ValueError(f"expected memory above 0, or None, got {memory}.")
        mechanism = resolve_causal(mechanism)
        self.num_channels = num_channels
        self.horizon = horizon
        self.targets = check_targets(targets, num_channels)
        self.moments = Moments(memory) if normalize else None
        self.backbone = Backbone(
            num_channels + num_marks,
            features,
            num_layers=num_layers,
            num_heads=num_heads,
            hidden_features=hidden_features,
            mechanism=mechanism,
            is_causal=True,
            embedding_padding="causal",
            rngs=rngs,
            **backbone,
        )
        self.head = linear(features, horizon * len(self.targets), rngs=rngs)

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
    ) -> Any:
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
            targets] with ``positions``. Of a row without real tokens they mean nothing.

        Raises:
            ValueError: wrong shapes, or segments without every step or positions.
        """
        if segment_ids is not None and not every_step and positions is None:
            raise ValueError("packed sequences need every_step=True, or positions.")
        keep_state = return_state or state is not None
        x, (mean, std), moments = self._normalized(x, mask, segment_ids, state)
        result: Any = self.backbone(
            x,
            mask=mask,
            segment_ids=segment_ids,
            state=None if state is None else state.backbone,
            return_state=keep_state,
            dropout_key=dropout_key,
            form=form,
        )
        backbone: Any
        h, backbone = result if keep_state else (result, None)
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
        return (y, ForecasterState(backbone, moments)) if return_state else y

    def init_state(self, batch_size: int, max_length: int | None = None) -> ForecasterState:
        """The state before the first observation; see ``Backbone.init_state``."""
        moments = None
        if self.moments is not None:
            moments = self.moments.init_state(batch_size, self.num_channels)
        return ForecasterState(self.backbone.init_state(batch_size, max_length), moments)

    def step(
        self, x: FeaturesStep, state: ForecasterState, *, mask: Array | None = None
    ) -> tuple[Float[Array, "B H targets"], ForecasterState]:
        """Takes in one observation a row: x [B, num_channels + num_marks] -> forecasts, new state.

        ``mask`` bool [B]: where False the state stays as it is, and the forecast means nothing.
        """
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
        runs = None
        if segment_ids is not None:
            carried = None if state is None else state.backbone.segment_id
            runs = segment_runs(segment_ids, mask, carried)
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
        return y * std[..., None, targets] + mean[..., None, targets]


def resolve_causal(mechanism: str | ops.Mechanism) -> ops.Mechanism:
    """A mechanism, by name or itself, for a forecaster.

    Raises:
        ValueError: it has no causal form.
    """
    found = resolve_mechanism(mechanism)
    if not found.capabilities.causal:
        raise ValueError(
            f"{found.name!r} has no causal form, which forecasts need; choose another mechanism."
        )
    return found


def check_targets(targets: Sequence[int] | None, num_channels: int) -> tuple[int, ...]:
    """The channels to forecast, as a tuple; all by default.

    Raises:
        ValueError: none, or one that is not there.
    """
    found = tuple(range(num_channels)) if targets is None else tuple(targets)
    if not found or not all(0 <= index < num_channels for index in found):
        raise ValueError(
            f"targets must be one or more of the channels 0 to {num_channels - 1}, got {found}."
        )
    return found


def _scaled(x: Array, mean: Array, std: Array, num_channels: int) -> Array:
    """The channels normalised, the marks as they are."""
    values = (x[..., :num_channels].astype(jnp.float32) - mean) / std
    return jnp.concatenate([values.astype(x.dtype), x[..., num_channels:]], axis=-1)
