"""Quantile head: quantiles around a point forecast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax.scipy.special import ndtri
from jaxtyping import Float

from flax_linattn.checks import OptionError
from flax_linattn.fitted_variable import FittedVariable
from flax_linattn.nn.linear import linear
from flax_linattn.typing import Array

ZEROS = nnx.initializers.zeros


class QuantileHead(nnx.Module):
    """Forecasts quantiles of each step of a horizon, in addition to the mean.

    A quantile is the point forecast + std * (the normal quantile + a linear map of the features) +
    a correction. The map is initially 0, and so is the correction, float32 [H, targets, Q], which
    calibration sets (``FittedVariable``). Gradients of the quantiles do not reach the point
    forecast, except by the features that both share: it remains a forecast of the mean.

    Quantiles are sorted, so they do not cross. Sorting never increases the sum of the pinball
    losses over the levels, whatever the true value is (Chernozhukov, Fernandez-Val and Galichon,
    "Quantile and Probability Curves Without Crossing", 2010, prove it for the distance to the true
    quantiles). Sums of positive gaps would not cross either, but tie the outer levels to the inner
    ones.

    Args:
        levels: Q increasing levels between 0 and 1.
        in_features: Number of input features.
        horizon: Number of steps H to forecast.
        num_targets: Number C of channels to forecast.
        per_target: Whether features are given for each target; the targets then share weights.
        rngs: Random number generators; "params" initializes the parameters.
        **options: Options of ``nn.linear``.

    Raises:
        ValueError: If levels are not between 0 and 1, or do not increase.

    Example:
        >>> head = QuantileHead((0.1, 0.5, 0.9), 8, 4, 2, rngs=nnx.Rngs(0))
        >>> y = head(jnp.ones((3, 8)), jnp.zeros((3, 4, 2)), jnp.ones((3, 2)))
        >>> y.shape, y[0, 0, 0].round(2)                # the mean, then the quantiles
        ((3, 4, 2, 4), Array([ 0.  , -1.28,  0.  ,  1.28], dtype=float32))
    """

    def __init__(
        self,
        levels: Sequence[float],
        in_features: int,
        horizon: int,
        num_targets: int,
        *,
        per_target: bool = False,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        self.levels = check_levels(levels)
        self.per_target = per_target
        count = horizon * len(self.levels) * (1 if per_target else num_targets)
        options = {"kernel_init": ZEROS, "bias_init": ZEROS} | options
        self.projection = linear(in_features, count, rngs=rngs, **options)
        shape = (horizon, num_targets, len(self.levels))
        self.correction = FittedVariable(jnp.zeros(shape, jnp.float32))

    def __call__(
        self, h: Array, point: Float[Array, "... H C"], std: Float[Array, "... C"]
    ) -> Float[Array, "... H C levels"]:
        """Returns the point forecasts followed, on a new last axis, by the quantiles.

        Args:
            h: Features of shape [..., F], or [..., C, F] if ``per_target``.
            point: Forecasts of the mean, float32.
            std: Standard deviations of the targets.

        Returns:
            float32 [..., H, C, 1 + Q].
        """
        horizon, _, size = self.correction.shape
        pattern = "... c (h q) -> ... h c q" if self.per_target else "... (h c q) -> ... h c q"
        maps = self.projection(h).astype(jnp.float32)
        offsets = rearrange(maps, pattern, h=horizon, q=size)
        offsets = offsets + ndtri(jnp.asarray(self.levels, jnp.float32))
        quantiles = jax.lax.stop_gradient(point)[..., None] + offsets * std[..., None, :, None]
        # Corrections apply to sorted quantiles; they may make these cross, so sort again.
        quantiles = jnp.sort(jnp.sort(quantiles, axis=-1) + self.correction[...], axis=-1)
        return jnp.concatenate([point[..., None], quantiles], axis=-1)


def check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """Returns levels of quantiles as a tuple; raises unless they increase between 0 and 1."""
    chosen = tuple(float(level) for level in levels)
    if not all(0 < level < 1 for level in chosen) or list(chosen) != sorted(set(chosen)):
        raise OptionError(
            "quantiles must be increasing levels between 0 and 1, such as 0.1, 0.5, 0.9, got "
            f"{', '.join(f'{level:g}' for level in chosen)}.",
            "quantiles",
        )
    return chosen
