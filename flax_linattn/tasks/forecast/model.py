"""The models of forecasting runs, and their loss."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn import models, training
from flax_linattn.tasks.forecast.options import ForecastConfig
from flax_linattn.tasks.forecast.spec import ForecastSpec
from flax_linattn.typing import Array

Model = models.Forecaster | models.EncoderDecoder | models.PatchForecaster


def build_forecaster(
    config: ForecastConfig,
    data_spec: ForecastSpec,
    placement: training.Placement = training.ONE_DEVICE,
) -> Model:
    """Builds the model of a run, with new parameters."""
    model, length = config.model, config.data.context_length
    shared: dict[str, Any] = {
        "num_covariates": len(data_spec.time_features) + data_spec.num_flags,
        "targets": data_spec.targets,
        "max_length": length,
        "layers": config.layers.map_mechanisms(placement.mechanism),
        "rngs": nnx.Rngs(config.seed),
    }
    channels, horizon = data_spec.num_inputs, config.data.horizon
    position: Literal["sinusoidal", "none"] = "sinusoidal" if model.absolute_positions else "none"
    if model.levels:
        shared["quantiles"] = model.levels
    if model.model == "patch":
        return models.PatchForecaster(
            channels,
            horizon,
            patch_length=model.patch_length,
            context=length if model.linear_path else 0,
            fixed_map=model.ridge,
            channel_maps=model.ridge_maps == "channel",
            memory=length,
            missing=data_spec.missing_flags,
            known_future=data_spec.known_inputs,
            channel_mechanism=model.channel_mechanism or None,
            position=position,
            **shared,
        )
    shared["normalize"] = model.normalize
    if model.model == "decoder":
        return models.Forecaster(channels, horizon, memory=length, position=position, **shared)
    return models.EncoderDecoder(
        channels,
        horizon,
        label_length=model.label_length,
        num_decoder_layers=model.num_decoder_layers,
        is_causal=model.causal,
        **shared,
    )


def forecast_windows(
    model: Model,
    batch: dict[str, Array],
    context_length: int,
    positions: Array,
    dropout_key: Array | None = None,
) -> Array:
    """Forecasts [B, P, H, targets] of windows, from each of these observations.

    With quantiles [B, P, H, targets, 1 + Q]: the mean, then the quantiles.
    """
    features = batch.get("time_features")
    if "missing" in batch:
        flags = [batch["missing"], *([] if features is None else [features])]
        features = jnp.concatenate([part[:, :context_length] for part in flags], axis=-1)
    how: dict[str, Any] = {"positions": positions, "dropout_key": dropout_key}
    if isinstance(model, models.PatchForecaster) and model.known_future:
        steps = positions[:, None] + 1 + jnp.arange(model.horizon)
        known = batch["values"][..., jnp.asarray(model.known_future)]
        how["ahead"] = known[:, steps]
    return model.forecast(batch["values"][:, :context_length], features, **how)


@dataclasses.dataclass(frozen=True)
class ForecastLoss:
    """Mean squared error of forecasts, for ``training.fit``; metrics add the absolute error.

    Missing true values (``known`` is False) are ignored. A model with quantiles adds the mean of
    their pinball losses; its mean and quantile forecasts have only the features in common.

    In training, a decoder forecasts from several positions of a window, evenly spaced from a random
    offset on, and a patch model from the last position and from the ends of earlier patches. In
    validation both forecast from the last position, as the encoder-decoder always does.
    """

    context_length: int
    horizon: int
    targets: tuple[int, ...]
    positions: int | None
    patch_length: int | None = None
    levels: tuple[float, ...] = ()

    def __call__(
        self, model: Model, batch: dict[str, Array], dropout_key: Array | None
    ) -> tuple[Array, dict[str, tuple[Array, Array]]]:
        """The loss, and (sum, weight) of the metrics."""
        last = jnp.array([self.context_length - 1])
        if dropout_key is not None and self.positions is not None and self.patch_length:
            last = last - self.patch_length * jnp.arange(self.positions)
        elif dropout_key is not None and self.positions is not None:
            dropout_key, key = jax.random.split(dropout_key)
            stride = self.context_length // self.positions
            begin = jax.random.randint(key, (), 0, stride)
            last = self.context_length - 1 - begin - stride * jnp.arange(self.positions)
        forecasts = forecast_windows(model, batch, self.context_length, last, dropout_key)
        future = last[:, None] + 1 + jnp.arange(self.horizon)
        targets = jnp.array(self.targets)
        truth = batch["values"][:, future][..., targets]
        point = forecasts[..., 0] if self.levels else forecasts
        errors = (point - truth).reshape(truth.shape[0], -1)
        weight = batch["weight"]
        count = jnp.sum(weight)
        pinballs = jnp.zeros_like(errors)
        if self.levels:
            pinballs = training.pinball_loss(truth, forecasts[..., 1:], self.levels)
            pinballs = jnp.mean(pinballs, axis=-1).reshape(errors.shape)
        if "known" in batch:
            known = batch["known"][:, future][..., targets].reshape(errors.shape)
            errors, pinballs = jnp.where(known, errors, 0.0), jnp.where(known, pinballs, 0.0)
            count = jnp.sum(jnp.mean(known, axis=1, dtype=weight.dtype) * weight)
        square = jnp.sum(jnp.mean(jnp.square(errors), axis=1) * weight)
        absolute = jnp.sum(jnp.mean(jnp.abs(errors), axis=1) * weight)
        pinball = jnp.sum(jnp.mean(pinballs, axis=1) * weight)
        # A batch without any known value has loss 0, not 0 / 0.
        return (square + pinball) / jnp.maximum(count, jnp.finfo(count.dtype).tiny), {
            "loss": (square + pinball, count),
            "mse": (square, count),
            "mae": (absolute, count),
            **({"pinball": (pinball, count)} if self.levels else {}),
        }


def make_loss(config: ForecastConfig, data_spec: ForecastSpec) -> ForecastLoss:
    """The loss of a run."""
    model, length = config.model, config.data.context_length
    shared = (length, config.data.horizon, data_spec.targets)
    if model.model == "patch":
        ends = min(model.positions, max(1, length // model.patch_length))
        return ForecastLoss(*shared, ends, model.patch_length, model.levels)
    positions = min(model.positions, length) if model.model == "decoder" else None
    return ForecastLoss(*shared, positions, levels=model.levels)
