"""Patch forecaster: parallel over patches of each channel, one step per observation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange, repeat
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from flax_linattn.checks import OptionError, check_choice, check_integers
from flax_linattn.fitted_variable import FittedVariable
from flax_linattn.models.backbone import Backbone, BackboneState
from flax_linattn.models.channel_mixing import ChannelMixing
from flax_linattn.models.embedding import ObservationEmbedding
from flax_linattn.models.forecaster import SeriesHead, check_targets
from flax_linattn.models.head import split_options
from flax_linattn.models.known_future import KnownFuture
from flax_linattn.models.layers import Layers, check_causal
from flax_linattn.models.moments import Moments, MomentsState
from flax_linattn.nn.call import Call
from flax_linattn.nn.dropout import split_key
from flax_linattn.nn.linear import PositionLinear, linear
from flax_linattn.ops.contract.state import register_state
from flax_linattn.ops.engine.prefix import select
from flax_linattn.typing import Array, FeaturesStep

PATCH_LAYERS = Layers(features=64, num_layers=2, hidden_features=128)
"""Default layers of a patch forecaster."""

ZEROS = nnx.initializers.zeros


@register_state
class PatchState(NamedTuple):
    """State that a patch forecaster carries from call to call; its size does not grow.

    Attributes:
        moments: Moments and number of the observations so far.
        recent: The last W observations, the newest last, a float32 array of shape [B, W, targets].
            If there are fewer, the first one is repeated; zeros before the first. With ``missing``
            [B, W, 2 targets]: the values, followed by flags of missing ones (1).
        phases: The backbone's state of each phase and target, leaves [B, patch_length, targets,
            ...]: observation t, counted from 0, belongs to phase t modulo the patch length.
    """

    moments: MomentsState
    recent: Float[Array, "B W N"]
    phases: tuple[Array, ...]


class PatchForecaster(SeriesHead):
    """Forecasts the next ``horizon`` values of each channel from patches and a linear map.

    A token is a patch of consecutive values of one channel, and all channels share the weights, as
    in PatchTST (Nie et al., "A Time Series is Worth 64 Words", 2023): channels are independent,
    unless ``channel_mechanism`` makes each attend to all others before the forecast. Departures, so
    that it streams: attention is causal; patches end at the observation to forecast from, and do
    not overlap; each is normalized by the running mean and standard deviation at its end
    (``Moments``), and the forecast is scaled back by the moments of the last patch; a head reads
    the last token only.

    Patches end at t, t - P, t - 2 P, ..., so a stream has P states, one for each phase t mod P, and
    an observation is one step of one of them. In parallel a phase costs T / P tokens.

    A linear map of the differences of the last ``context`` values from the last one is added to the
    head, as in NLinear (Zeng et al., "Are Transformers Effective for Time Series Forecasting?",
    2023): the forecast is last + map(differences) + std * head. Initially the map is a mean and the
    head 0, so that training starts from the mean of the last values. Without the map
    (``context=0``) the forecast is running mean + std * head. Values before the first observation
    count as equal to it.

    A call returns forecasts float32 [B, H, targets] after the last valid observation; with
    ``every_step`` [B, T, H, targets] after every one, with ``positions`` [B, N, H, targets] after
    some, which must be multiples of the patch length apart: others get NaN. Only the phases needed
    are computed: one, or all of them with ``every_step`` or ``return_state``. Forecasts of a row
    without tokens are undefined.

    Args:
        num_channels: Number of channels of an observation.
        horizon: Number of steps H to forecast.
        patch_length: Number of values P in a patch.
        context: Number of last values that the linear map receives; 0 for no map.
        fixed_map: Whether the linear map stays fixed in training, for example because ridge
            regression fitted it. Calibration may then set ``share``, the weight of the head's
            contribution, and ``known_share``, the weight of the contribution of known future
            covariates.
        channel_maps: Whether each target has its own linear map, kernel [targets, context, H],
            instead of a shared one, [context, H].
        num_covariates: Number of covariates after the channels, such as time features; each token
            receives those at the end of its patch.
        missing: Whether the first ``num_channels`` covariates flag missing values (1; else 0). A
            missing value is 0 in a token, next to its flag, and has no weight in the normalization.
            Only the linear map uses the value at a missing entry: pass the last known value.
        known_future: Indices of channels that are known over the horizon. An observation holds
            their values of each step, [H, F] flattened, after the covariates, see ``KnownFuture``.
        targets: Indices of the channels to forecast; default all. Other channels have no effect,
            except those in ``known_future``.
        memory: Time constant, in observations, of the normalization's moments, see ``Moments``;
            None weights all observations equally.
        position: Position embedding of the patches: "sinusoidal" or "none".
        channel_mechanism: Non-causal mechanism of attention across targets after the backbone, see
            ``ChannelMixing``; None for independent targets.
        quantiles: Increasing levels to forecast in addition to the mean, such as (0.1, 0.5, 0.9):
            the last axis of a forecast then holds the mean and the quantiles, see ``QuantileHead``.
        max_length: Maximum number of observations of a sequence, for mechanisms that learn
            something for each position.
        layers: Options of the backbone's layers.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **options: Options of ``layers`` by name, and dtype and initializers of the parameters
            (``nn.ParameterOptions``).

    Attributes:
        backbone: Backbone from patches of a channel, [rows, patches, P + num_covariates], to
            features.

    Raises:
        ValueError: If an option is unknown or out of range, or the mechanism has no causal form.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.PatchForecaster(3, 4, patch_length=4, context=8, features=16,
        ...                                num_layers=1, num_heads=4, rngs=nnx.Rngs(0))
        >>> x = jnp.sin(jnp.arange(60.0)).reshape(2, 10, 3)
        >>> stream = inference.Stream(model, batch_size=2)
        >>> for t in range(10):
        ...     y = stream.step(x[:, t])
        >>> at_once, _ = inference.prefill(model, x)          # model(x), compiled
        >>> y.shape, bool(jnp.allclose(at_once, y, atol=1e-5))
        ((2, 4, 3), True)
    """

    state_type = PatchState
    output_axes = 1
    option_names = (
        *("num_channels", "horizon", "patch_length", "context", "num_covariates", "missing"),
        *("known_future", "targets", "quantiles", "max_length", "layers", "param_dtype"),
    )

    def __init__(
        self,
        num_channels: int,
        horizon: int,
        *,
        patch_length: int = 16,
        context: int = 96,
        fixed_map: bool = False,
        channel_maps: bool = False,
        num_covariates: int = 0,
        missing: bool = False,
        known_future: Sequence[int] = (),
        targets: Sequence[int] | None = None,
        memory: float | None = None,
        position: Literal["sinusoidal", "none"] = "sinusoidal",
        channel_mechanism: str | None = None,
        quantiles: Sequence[float] = (),
        max_length: int | None = None,
        layers: Layers | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        check_integers(1, num_channels=num_channels, horizon=horizon, patch_length=patch_length)
        check_integers(1, max_length=max_length)
        check_integers(0, context=context)
        check_integers(num_channels if missing else 0, num_covariates=num_covariates)
        check_choice(("sinusoidal", "none"), position=position)
        if memory is not None and not memory > 0:
            raise OptionError(f"memory must be above 0, or None, got {memory}.", "memory")
        layers, options, head_parameters = split_options(layers or PATCH_LAYERS, options)
        check_causal(layers)
        self.num_channels = int(num_channels)
        self.horizon = int(horizon)
        self.patch_length = int(patch_length)
        self.context = int(context)
        self.num_covariates = int(num_covariates)
        self.targets = check_targets(targets, self.num_channels)
        self.known_future = (
            check_targets(known_future, self.num_channels) if len(known_future) else ()
        )
        if channel_mechanism and len(self.targets) == 1:
            raise OptionError(
                "channel_mechanism needs several channels to forecast, but there is one; remove "
                "it, or forecast several channels.",
                "channel_mechanism",
                "targets",
            )
        self.max_length = max_length
        self.missing = bool(missing)
        self.moments = Moments(memory, self.missing)
        embedding_options = {
            k: v for k, v in options.items() if k in ("param_dtype", "kernel_init")
        }
        embedding = ObservationEmbedding(
            self.patch_length,
            layers.features,
            num_covariates=self.num_covariates
            + self.missing * (self.patch_length - self.num_channels),
            kernel_size=1,
            position=position,
            dtype=layers.compute_dtype,
            rngs=rngs,
            **embedding_options,
        )
        self.backbone = Backbone(
            embedding,
            layers,
            max_length=None if max_length is None else -(-max_length // self.patch_length),
            rngs=rngs,
            **options,
        )
        initial = {"kernel_init": ZEROS, "bias_init": ZEROS} if self.context else {}
        self.head = linear(layers.features, self.horizon, rngs=rngs, **initial | head_parameters)
        linear_layer: Any = partial(PositionLinear, len(self.targets)) if channel_maps else linear
        self.linear_map = (
            linear_layer(
                self.context,
                self.horizon,
                use_bias=False,
                param_dtype=self.backbone.param_dtype,
                kernel_init=nnx.initializers.constant(1 / self.context),
                rngs=rngs,
            )
            if self.context
            else None
        )
        if fixed_map and self.linear_map is None:
            raise OptionError(
                "fixed_map needs a linear map, but context=0 removes it; remove fixed_map, or "
                "choose a context above 0.",
                "fixed_map",
                "context",
            )
        self.share = FittedVariable(jnp.ones((), jnp.float32)) if fixed_map else None
        self.added = (
            KnownFuture(
                len(self.known_future),
                len(self.targets),
                param_dtype=self.backbone.param_dtype,
                rngs=rngs,
            )
            if self.known_future
            else None
        )
        self.known_share = (
            FittedVariable(jnp.ones((), jnp.float32)) if fixed_map and self.known_future else None
        )
        self._set_quantiles(quantiles, per_target=True, rngs=rngs, **head_parameters)
        self.mixing = (
            ChannelMixing(len(self.targets), layers, channel_mechanism, rngs=rngs, **options)
            if channel_mechanism
            else None
        )

    def read(
        self, h: Array, context: Array, mean: Array, std: Array, known: tuple[Array, ...]
    ) -> Array:
        """Computes forecasts [..., H, C] from features [..., C, F].

        Further inputs are the last values ``context`` [..., context, C], moments [..., C] and known
        future covariates.
        """
        y = rearrange(self.head(h).astype(jnp.float32), "... c h -> ... h c") * std[..., None, :]
        if self.share is not None:
            y = self.share[...] * y
        if self.linear_map is None:
            y = y + mean[..., None, :]
        else:
            context = context[..., : len(self.targets)]
            last = context[..., -1:, :]
            differences = rearrange(context - last, "... l c -> ... c l")
            mapped = self.linear_map(differences)
            if self.share is not None:
                mapped = jax.lax.stop_gradient(mapped)
            y = y + last + rearrange(mapped, "... c h -> ... h c")
        if self.added is not None:
            added = self.added(*known) * std[..., None, :]
            y = y + (added if self.known_share is None else self.known_share[...] * added)
        return y if self.quantile_head is None else self.quantile_head(h, y, std)

    def _map(
        self,
        x: Array,
        call: Call,
        *,
        every_step: bool = False,
        positions: Int[Array, "N"] | None = None,
    ) -> tuple[Array, PatchState]:
        """Computes the forecasts of the requested phases."""
        state: PatchState | None = call.state
        mask, return_state = call.mask, call.return_state
        batch, length = x.shape[:2]
        x = x.astype(jnp.float32)
        number = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))
        count = jnp.full(batch, length, jnp.int32)
        if mask is not None:  # real tokens first
            order = jnp.argsort(~mask, axis=1, stable=True)
            x = jnp.take_along_axis(x, order[..., None], axis=1)
            count = jnp.sum(mask, axis=1, dtype=jnp.int32)
            number = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
            mask = jnp.arange(length, dtype=jnp.int32) < count[:, None]

        values, covariates, known = self._split_inputs(x)
        before = self._initial_state(batch) if state is None else state
        moments, last_moments = self.moments(values, before.moments, mask=mask)
        history = jnp.concatenate([_fill_empty(before, values[:, 0]), values], axis=1)

        at = jnp.maximum(count - 1, 0)[:, None]
        if every_step:
            at = number
        elif positions is not None:
            at = number[:, positions]
        size = self.patch_length
        everything = every_step or return_state
        key_mixing = None
        if self.mixing is not None:
            dropout_key, key_mixing = split_key(call.dropout_key, 2)
            call = call.replace(dropout_key=dropout_key)
        starts = jnp.arange(size, dtype=jnp.int32)[None] if everything else at[:, :1] % size
        starts = jnp.broadcast_to(starts, (batch, starts.shape[1]))
        h, phases = self._features(history, covariates, moments, count, starts, call)
        in_phase = at % size if everything else jnp.zeros_like(at)
        h = _take(rearrange(h, "b s k c f -> b (s k) c f"), in_phase * h.shape[2] + at // size)
        if self.mixing is not None:
            h = self.mixing(h, dropout_key=key_mixing)
        context = self._last_values(history, at, self.context)
        mean, std = (_take(moment, at) for moment in moments)
        y = self.read(h, context, mean, std, tuple(_take(part, at) for part in known))
        if not everything:
            in_first_phase = (at % size == starts).reshape(*at.shape, *[1] * (y.ndim - 2))
            y = jnp.where(in_first_phase, y, jnp.nan)
        y = y if every_step or positions is not None else y[:, 0]
        last = jnp.arange(self._window, dtype=jnp.int32) + count[:, None]
        return y, PatchState(last_moments, _take(history, last), phases)

    @property
    def options(self) -> dict[str, Any]:
        """Constructor arguments of an equal model, as ``save_model`` stores them."""
        embedding = self.backbone.input_embedding
        assert isinstance(embedding, ObservationEmbedding)
        return super().options | {
            "fixed_map": self.share is not None,
            "channel_maps": isinstance(self.linear_map, PositionLinear),
            "memory": self.moments.memory,
            "position": embedding.position,
            "channel_mechanism": None if self.mixing is None else self.mixing.mechanism,
        }

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation, see ``Embedding``."""
        known = self.horizon * len(self.known_future)
        return (self.num_channels + self.num_covariates + known,)

    @property
    def streams(self) -> bool:
        """Whether ``init_state`` and ``step`` are available, with a state of constant size."""
        return self.backbone.streams and self.backbone.constant_memory

    @property
    def num_positions(self) -> int | None:
        """None: the number of observations is unlimited."""
        return None

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> PatchState:
        """Returns the state before the first observation; it does not grow, and is float32."""
        self._check_streams()
        rows = self.backbone.init_state(batch_size * self.patch_length * len(self.targets))
        shape = (batch_size, self.patch_length, len(self.targets))
        phases = tuple(leaf.reshape(*shape, *leaf.shape[1:]) for leaf in jax.tree.leaves(rows))
        return self._initial_state(batch_size)._replace(phases=phases)

    def _map_step(
        self, x: FeaturesStep, state: PatchState, mask: Array | None
    ) -> tuple[Float[Array, "B H targets"], PatchState]:
        """Forecasts [B, H, targets] and the new state."""
        values, covariates, known = self._split_inputs(jnp.asarray(x, jnp.float32))
        moments = self.moments.merge(state.moments, self.moments.lift(values))
        mean, std = self.moments.read(moments)
        history = jnp.concatenate([_fill_empty(state, values), values[:, None]], axis=1)
        now = jnp.zeros((x.shape[0], 1), jnp.int32)
        patch = self._last_values(history, now, self.patch_length)[:, 0]
        tokens = self._tokens(patch, covariates, mean, std)

        row = jnp.arange(x.shape[0], dtype=jnp.int32)
        phase = state.moments.num_tokens % self.patch_length
        of_phase = self._rows(tuple(leaf[row, phase] for leaf in state.phases))
        h, after = self.backbone._map_step(
            rearrange(tokens, "b c p -> (b c) p"),
            of_phase,
            None if mask is None else jnp.repeat(mask, len(self.targets)),
        )
        phases = tuple(
            leaf.at[row, phase].set(new.reshape(leaf.shape[0], *leaf.shape[2:]))
            for leaf, new in zip(state.phases, jax.tree.leaves(after), strict=True)
        )
        h = rearrange(h, "(b c) f -> b c f", c=len(self.targets))
        if self.mixing is not None:
            h = self.mixing(h)
        y = self.read(h, self._last_values(history, now, self.context)[:, 0], mean, std, known)
        recent = history[:, 1:]
        if mask is not None:
            moments = select(mask, moments, state.moments)
            recent = select(mask, recent, state.recent)
        return y, PatchState(moments, recent, phases)

    @property
    def _window(self) -> int:
        """Number of past observations that the state stores."""
        return max(self.patch_length, self.context) - 1

    def _check_packs(self) -> None:
        """Raises a ValueError: each row holds one sequence."""
        raise ValueError(
            "a patch forecaster does not support packed sequences; pass each series in its own row."
        )

    def _check_streams(self) -> None:
        """Raises a ValueError if a mechanism has no state of constant size."""
        if not self.streams:
            names = ", ".join(sorted({m.name for m in self.backbone.mechanisms}))
            raise ValueError(
                f"a patch forecaster streams with a state of constant size, which the mechanism "
                f"{names} does not have; choose another one, such as aaren, or forecast windows."
            )

    def _initial_state(self, batch_size: int) -> PatchState:
        """Returns the initial state, but without the phases."""
        count = len(self.targets)
        recent = jnp.zeros((batch_size, self._window, count * (1 + self.missing)), jnp.float32)
        return PatchState(self.moments.init_state(batch_size, count), recent, ())

    def _split_inputs(self, x: Array) -> tuple[Array, Array, tuple[Array, ...]]:
        """Splits inputs into targets (with missing flags), other covariates and known covariates.

        Known covariates are values at the present step [..., F] and over the horizon [..., H, F],
        or empty.
        """
        known: tuple[Array, ...] = ()
        if self.known_future:
            width = self.num_channels + self.num_covariates
            x, ahead = jnp.split(x, [width], axis=-1)
            ahead = rearrange(ahead, "... (h f) -> ... h f", h=self.horizon)
            known = x[..., jnp.asarray(self.known_future)], ahead
        targets, rest = jnp.asarray(self.targets), x[..., self.num_channels :]
        if not self.missing:
            return x[..., targets], rest, known
        values = jnp.concatenate([x[..., targets], rest[..., targets]], axis=-1)
        return values, rest[..., self.num_channels :], known

    def _tokens(self, patch: Array, covariates: Array, mean: Array, std: Array) -> Array:
        """Makes the backbone's inputs: patches [..., P, C], covariates [..., M] -> [..., C, P + M].

        With ``missing``, [..., P, 2 C] and [..., M] -> [..., C, 2 P + M].
        """
        patch, *missing = jnp.split(patch, 1 + self.missing, axis=-1)
        patch = (patch - mean[..., None, :]) / std[..., None, :]
        for flags in missing:
            patch = jnp.where(flags > 0, 0.0, patch)
        parts = [rearrange(part, "... p c -> ... c p") for part in (patch, *missing)]
        shape = (*parts[0].shape[:-1], covariates.shape[-1])
        shared = jnp.broadcast_to(covariates[..., None, :], shape)
        return jnp.concatenate([*parts, shared], axis=-1)

    def _features(
        self,
        history: Array,
        covariates: Array,
        moments: tuple[Array, Array],
        count: Int[Array, "B"],
        starts: Int[Array, "B S"],
        call: Call,
    ) -> tuple[Float[Array, "B S K targets C"], tuple[Array, ...]]:
        """Features of every patch of some phases, and the state after them by phase.

        ``history`` holds earlier values, then the values of the call; its first ``count`` are
        valid; ``starts`` are the first observations of the phases.
        """
        batch, length = covariates.shape[:2]
        size = self.patch_length
        num_patches = -(-length // size)
        ends = starts[..., None] + size * jnp.arange(num_patches, dtype=jnp.int32)
        real = ends < count[:, None, None]
        at = rearrange(jnp.minimum(ends, length - 1), "b s k -> b (s k)")
        tokens = self._tokens(
            self._last_values(history, at, size),
            _take(covariates, at),
            *(_take(m, at) for m in moments),
        )
        channels = len(self.targets)
        tokens = rearrange(tokens, "b (s k) c p -> (b s c) k p", k=num_patches)
        state: PatchState | None = call.state
        phase, before = None, None
        if state is not None:  # starts then hold all phases, or one
            phase = (state.moments.num_tokens[:, None] + starts) % size
            row = jnp.arange(batch, dtype=jnp.int32)[:, None]
            before = self._rows(tuple(leaf[row, phase] for leaf in state.phases))
        mask = repeat(real, "b s k -> (b s c) k", c=channels)
        h, after = self.backbone._map(tokens, call.replace(mask=mask, state=before))
        phases = tuple(
            leaf.reshape(batch, size, channels, *leaf.shape[1:]) for leaf in jax.tree.leaves(after)
        )
        if phase is not None and phases:
            back = jnp.argsort(phase, axis=1)
            phases = tuple(leaf[row, back] for leaf in phases)
        return rearrange(h, "(b s c) k f -> b s k c f", b=batch, c=channels), phases

    def _last_values(self, history: Array, at: Int[Array, "B N"], size: int) -> Array:
        """Last values up to some observations, counted after the window: [B, N, size, C]."""
        first = self._window + 1 - size
        offsets = jnp.arange(first, first + size, dtype=jnp.int32)
        taken = _take(history, (at[..., None] + offsets).reshape(at.shape[0], -1))
        return taken.reshape(*at.shape, size, history.shape[-1])

    def _rows(self, phases: tuple[Array, ...]) -> BackboneState:
        """Backbone state whose rows merge all leading axes of leaves [..., targets, ...]."""
        like = jax.eval_shape(lambda: self.backbone.init_state(1))
        count = math.prod(phases[0].shape[: 1 + phases[0].ndim - jax.tree.leaves(like)[0].ndim])
        leaves = [
            leaf.reshape(count, *one.shape[1:])
            for leaf, one in zip(phases, jax.tree.leaves(like), strict=True)
        ]
        state: BackboneState = jax.tree.unflatten(jax.tree.structure(like), leaves)
        return state


def _take(x: Array, at: Int[Array, "B N"]) -> Array:
    """Gathers x [B, T, ...] at indices of each row: [B, N, ...]."""
    return x[jnp.arange(x.shape[0], dtype=jnp.int32)[:, None], at]


def _fill_empty(state: PatchState, first: Array) -> Array:
    """Replaces the last observations of empty rows by ``first`` [B, C]."""
    empty = state.moments.num_tokens == 0
    return jnp.where(empty[:, None, None], first[:, None], state.recent)
