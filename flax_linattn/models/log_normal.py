"""Mixtures of log-normal distributions: of the time to the next event, in any unit."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, logsumexp
from jaxtyping import Float

from flax_linattn.typing import Array

_NUM_BISECTIONS = 40
"""After which an interval of 1000 is 1e-9 wide."""
_MAX_Z = 40.0
"""Deviations beyond which lies no share of a normal distribution that float64 can hold."""
_SERIES_Z = 20.0
"""Deviations beyond which the hazard of a normal distribution is told by a series."""


class LogNormalMixture(NamedTuple):
    """A mixture of K log-normal distributions, for each entry of the leading axes.

    All values go in and out as natural logarithms, ``x = log(time)``: a second and 1e9 years are
    then equally far from overflow. A density is that of the time, in one over its unit. Arguments
    broadcast with the leading axes.

    Source: Shchur, Bilos, Guennemann, "Intensity-free learning of temporal point processes" (2020).

    Attributes:
        log_weights: [..., K], of weights that sum to one.
        means: [..., K], of the logarithm of the time.
        deviations: [..., K], its standard deviations, above 0.

    Example:
        >>> one = LogNormalMixture(jnp.zeros(1), jnp.zeros(1), jnp.ones(1))
        >>> [round(float(x), 3) for x in (one.log_density(jnp.float32(0)), one.log_mean())]
        [-0.919, 0.5]
        >>> [round(float(one.log_quantile(share)), 3) for share in (0.025, 0.975)]
        [-1.96, 1.96]
    """

    log_weights: Float[Array, "... K"]
    means: Float[Array, "... K"]
    deviations: Float[Array, "... K"]

    def log_density(self, x: Array) -> Array:
        """Log density of the time ``exp(x)``: x [...] -> [...]."""
        z = self._z_scores(x)
        normal = -0.5 * z * z - jnp.log(self.deviations) - 0.5 * math.log(2 * math.pi)
        density: Array = logsumexp(self.log_weights + normal, axis=-1)
        return density - x

    def log_survival(self, x: Array) -> Array:
        """Log probability of a later time than ``exp(x)``, exact far out in the tail."""
        return jnp.minimum(logsumexp(self.log_weights + _log_ndtr(-self._z_scores(x)), axis=-1), 0)

    def log_distribution(self, x: Array) -> Array:
        """Log probability of a time up to ``exp(x)``, exact far out in the tail."""
        return jnp.minimum(logsumexp(self.log_weights + _log_ndtr(self._z_scores(x)), axis=-1), 0)

    def log_hazard(self, x: Array) -> Array:
        """Log intensity at ``exp(x)``, where nothing has come before: density over survival.

        The difference of two logarithms: right to 0.01 up to 1,000 deviations in float32.
        """
        return self.log_density(x) - self.log_survival(x)

    def log_mean(self) -> Array:
        """Log of the expected time. A heavy tail may move it far from the median."""
        mean: Array = logsumexp(self.log_weights + self.means + 0.5 * self.deviations**2, axis=-1)
        return mean

    def log_quantile(self, share: float | Array, waited: Array | None = None) -> Array:
        """Log of the time that a share of all times does not exceed.

        Args:
            share: Above 0 and below 1; a number, or an array of the leading axes.
            waited: [...], log of a time that has passed without an event; the quantile is then of
                the times beyond. -inf = none, as None.

        Returns:
            [...], by bisection: a constant to gradients.
        """
        shares = jnp.asarray(share, self.means.dtype)
        spread = _MAX_Z * self.deviations
        low, high = jnp.min(self.means - spread, -1), jnp.max(self.means + spread, -1)
        survived = jnp.zeros_like(low)
        if waited is not None:  # of what is left, as little lies as far beyond
            # Where hardly any went by, one less these is exact: rounded weights do not sum to one.
            gone = jnp.exp(self.log_distribution(waited))
            survived = jnp.where(gone < 0.5, jnp.log1p(-gone), self.log_survival(waited))
            low = jnp.maximum(low, waited)
            high = jnp.maximum(high, waited + _MAX_Z * jnp.max(self.deviations, -1))
        above = jnp.log1p(-shares) + survived  # log of the share of all times beyond the quantile
        below = jnp.log(-jnp.expm1(above))
        lower_half = above > math.log(0.5)

        def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = low + 0.5 * (high - low)
            # Of the two tails the smaller one is exact.
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
        """Probability of an event up to ``exp(x)``, where none came up to ``exp(waited)``.

        Args:
            x: [...], log of a time since the last event.
            waited: [...], log of the time that has passed without an event; None = none has.

        Returns:
            [...], from 0 to 1.
        """
        if waited is None:
            return jnp.exp(self.log_distribution(x))
        left = self.log_survival(jnp.maximum(x, waited)) - self.log_survival(waited)
        return jnp.where(x > waited, -jnp.expm1(jnp.minimum(left, 0)), 0)

    def _z_scores(self, x: Array) -> Array:
        return (x[..., None] - self.means) / self.deviations


@jax.custom_jvp
def _log_ndtr(z: Array) -> Array:
    """Log of the normal distribution function, with a gradient that is right in the far tail too.

    There jax's is the exponential of a difference of two large numbers: in float32 off by half at
    5,000 deviations, and infinite at 100,000.
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
