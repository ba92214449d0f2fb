"""Mixtures of log-normal distributions, for times to the next event in any unit."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, logsumexp
from jaxtyping import Float

from flax_linattn.typing import Array

_NUM_BISECTIONS = 40
"""Number of bisections, after which an interval of 1000 is 1e-9 wide."""
_MAX_Z = 40.0
"""Standard deviations beyond which float64 holds no probability of a normal distribution."""
_SERIES_Z = 20.0
"""Standard deviations beyond which a series gives the hazard of a normal distribution."""


class LogNormalMixture(NamedTuple):
    """A mixture of K log-normal distributions, for each entry of the leading axes.

    All values are natural logarithms, ``x = log(time)``, so that neither a second nor 1e9 years
    overflows. A density is that of the time, in units of 1 / time. Arguments broadcast with the
    leading axes.

    Source: Shchur, Bilos, Guennemann, "Intensity-free learning of temporal point processes" (2020).

    Attributes:
        log_weights: Logarithms of weights that sum to one, of shape [..., K].
        means: Means of the logarithm of the time, of shape [..., K].
        stds: Standard deviations of the logarithm of the time, above 0, of shape [..., K].

    Example:
        >>> one = LogNormalMixture(jnp.zeros(1), jnp.zeros(1), jnp.ones(1))
        >>> [round(float(x), 3) for x in (one.log_density(jnp.float32(0)), one.log_mean())]
        [-0.919, 0.5]
        >>> [round(float(one.log_quantile(p)), 3) for p in (0.025, 0.975)]
        [-1.96, 1.96]
    """

    log_weights: Float[Array, "... K"]
    means: Float[Array, "... K"]
    stds: Float[Array, "... K"]

    def log_density(self, x: Array) -> Array:
        """Log density of the time ``exp(x)``: x [...] -> [...]."""
        z = self._z_scores(x)
        normal = -0.5 * z * z - jnp.log(self.stds) - 0.5 * math.log(2 * math.pi)
        density: Array = logsumexp(self.log_weights + normal, axis=-1)
        return density - x

    def log_survival(self, x: Array) -> Array:
        """Log probability of a time later than ``exp(x)``, exact far out in the tail."""
        return jnp.minimum(logsumexp(self.log_weights + _log_ndtr(-self._z_scores(x)), axis=-1), 0)

    def log_distribution(self, x: Array) -> Array:
        """Log probability of a time up to ``exp(x)``, exact far out in the tail."""
        return jnp.minimum(logsumexp(self.log_weights + _log_ndtr(self._z_scores(x)), axis=-1), 0)

    def log_hazard(self, x: Array) -> Array:
        """Log intensity at ``exp(x)`` without an earlier event: log density minus log survival.

        It is a difference of two logarithms, exact to 0.01 up to 1,000 standard deviations in
        float32.
        """
        return self.log_density(x) - self.log_survival(x)

    def log_mean(self) -> Array:
        """Log of the expected time. A heavy tail may move it far from the median."""
        mean: Array = logsumexp(self.log_weights + self.means + 0.5 * self.stds**2, axis=-1)
        return mean

    def log_quantile(self, probability: float | Array, waited: Array | None = None) -> Array:
        """Log of the time by which the event occurs with a given probability.

        Args:
            probability: Above 0 and below 1; a number, or an array of the leading axes.
            waited: Log of the time that has passed without an event, of shape [...]; the quantile
                is then conditional on that. None or -inf for no such time.

        Returns:
            Quantiles of shape [...], by bisection; gradients treat them as constants.
        """
        probability = jnp.asarray(probability, self.means.dtype)
        spread = _MAX_Z * self.stds
        low, high = jnp.min(self.means - spread, -1), jnp.max(self.means + spread, -1)
        survived = jnp.zeros_like(low)
        if waited is not None:  # the quantile is that of the distribution beyond ``waited``
            # log1p(-passed) is more exact than log_survival while little has passed, since rounded
            # weights do not sum to one.
            passed = jnp.exp(self.log_distribution(waited))
            survived = jnp.where(passed < 0.5, jnp.log1p(-passed), self.log_survival(waited))
            low = jnp.maximum(low, waited)
            high = jnp.maximum(high, waited + _MAX_Z * jnp.max(self.stds, -1))
        above = jnp.log1p(-probability) + survived  # log probability of a time beyond the quantile
        below = jnp.log(-jnp.expm1(above))
        lower_half = above > math.log(0.5)

        def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = low + 0.5 * (high - low)
            # The smaller one of the two tails is exact.
            before = jnp.where(
                lower_half,
                self.log_distribution(middle) < below,
                self.log_survival(middle) > above,
            )
            return jnp.where(before, middle, low), jnp.where(before, high, middle)

        shape = jnp.broadcast_shapes(low.shape, above.shape)
        low, high = (jnp.broadcast_to(bound, shape) for bound in (low, high))
        low, high = jax.lax.fori_loop(0, _NUM_BISECTIONS, halve, (low, high))
        return jax.lax.stop_gradient(low + 0.5 * (high - low))

    def probability_by(self, x: Array, waited: Array | None = None) -> Array:
        """Probability of an event up to ``exp(x)``, given none up to ``exp(waited)``.

        Args:
            x: Log of a time since the last event, of shape [...].
            waited: Log of the time that has passed without an event, of shape [...]; None for no
                such time.

        Returns:
            Probabilities from 0 to 1, of shape [...].
        """
        if waited is None:
            return jnp.exp(self.log_distribution(x))
        left = self.log_survival(jnp.maximum(x, waited)) - self.log_survival(waited)
        return jnp.where(x > waited, -jnp.expm1(jnp.minimum(left, 0)), 0)

    def _z_scores(self, x: Array) -> Array:
        return (x[..., None] - self.means) / self.stds


@jax.custom_jvp
def _log_ndtr(z: Array) -> Array:
    """Log of the normal distribution function, with an exact gradient in the far tail.

    JAX's gradient is the exponential of a difference of two large numbers there: in float32 it is
    off by half at 5,000 standard deviations, and infinite at 100,000.
    """
    return log_ndtr(z)


@_log_ndtr.defjvp
def _log_ndtr_gradient(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (z,), (tangent,) = primals, tangents
    result = _log_ndtr(z)
    near, far = jnp.maximum(z, -_SERIES_Z), jnp.minimum(z, -_SERIES_Z)
    ratio = jnp.exp(-0.5 * near * near - 0.5 * math.log(2 * math.pi) - _log_ndtr(near))
    u = 1 / (far * far)
    series = -far / (1 - u * (1 - 3 * u * (1 - 5 * u * (1 - 7 * u))))
    return result, tangent * jnp.where(z < -_SERIES_Z, series, ratio)
