"""Sums of exponentials that never overflow: the state (m, u, w) and its operator.

Feng et al., "Attention as an RNN", 2024, section 3.2: a set of tokens with scores s_j is
summarised by the maximum m of its scores, u = sum exp(s_j - m) and w = sum exp(s_j - m) v_j.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from flax_linattn.ops.contract.numerics import exp_difference, safe_divide
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array


@register_state
class ExponentialState(NamedTuple):
    """Summary of a set of tokens; its leading axes are those of the scores.

    Attributes:
        m: maximum of the scores [...], -inf when empty.
        u: sum of exp(score - m) [...].
        w: sum of exp(score - m) v: [..., V], or [...] where every channel has its own score.
    """

    m: Float[Array, "..."]
    u: Float[Array, "..."]
    w: Float[Array, "..."]

    def merge(
        self, other: ExponentialState, weigh: Callable[[Array, Array], Array] = exp_difference
    ) -> ExponentialState:
        """The union of two sets: the operator that appendix B proves associative.

        Args:
            other: of the same shape.
            weigh: (score, maximum) -> the weight of a score relative to that of the maximum.
        """
        m = jnp.maximum(self.m, other.m)
        factor, other_factor = weigh(self.m, m), weigh(other.m, m)
        return ExponentialState(
            m=m,
            u=factor * self.u + other_factor * other.u,
            w=_like(factor, self.w) * self.w + _like(other_factor, other.w) * other.w,
        )

    @property
    def mean(self) -> Array:
        """w / u, the weighted mean of the values; 0 of an empty set."""
        return safe_divide(self.w, _like(self.u, self.w))


@register_state
class ForgettingState(NamedTuple):
    """A summary whose scores fall with every token: those of earlier spans by a span's decay.

    The largest score is m + fallen: a score that was large, and how far it has fallen, are kept
    apart, or else the one would lose digits of the other.

    Attributes:
        log_decay: sum of the log-decays of the tokens [...].
        m: the score of the token that weighs most [...], -inf when empty.
        fallen: sum of the log-decays since that token [...].
        u: sum of exp(score - m - fallen) [...].
        w: sum of exp(score - m - fallen) v: [..., V] or [...].
    """

    log_decay: Float[Array, "..."]
    m: Float[Array, "..."]
    fallen: Float[Array, "..."]
    u: Float[Array, "..."]
    w: Float[Array, "..."]

    @classmethod
    def of(cls, log_decay: Array, sums: Sums) -> ForgettingState:
        """The state of a span with these sums, over which what came before falls so far."""
        score, fallen = sums.level
        fallen = jnp.zeros_like(score) if fallen is None else fallen
        return cls(log_decay, score, fallen, sums.u, sums.w)

    @property
    def sums(self) -> Sums:
        """What is left of it where nothing came before."""
        return Sums(Level(self.m, self.fallen), self.u, self.w)

    def merge(self, later: ForgettingState) -> ForgettingState:
        """One span and then another: associative, since decays add up."""
        sums = self.sums.fall(later.log_decay).merge(later.sums)
        return ForgettingState.of(self.log_decay + later.log_decay, sums)


class Level(NamedTuple):
    """Scores as the sum of two numbers, of which the second tells how far the first has fallen.

    ``fallen`` is None where scores never fall.
    """

    score: Array
    fallen: Array | None

    def fall(self, log_decay: Array | None) -> Level:
        """After one more token, or several; None = without a decay."""
        if self.fallen is None or log_decay is None:
            return self
        return Level(self.score, self.fallen + log_decay)

    def over(self, other: Level) -> Array:
        """e^(self - other), 0 where this is -inf; an other of -inf stands for no token."""
        finite = jnp.where(jnp.isneginf(other.score), jnp.zeros_like(other.score), other.score)
        difference = self.score - finite
        if self.fallen is not None and other.fallen is not None:
            difference = difference + (self.fallen - other.fallen)
        return jnp.exp(difference)

    def larger(self, other: Level) -> Level:
        """The larger of two, the first if they are equal: gradients, too, are its alone then."""
        if self.fallen is None or other.fallen is None:
            return Level(jnp.where(self.score >= other.score, self.score, other.score), None)
        lead = self.score + self.fallen >= other.score + other.fallen
        return Level(
            jnp.where(lead, self.score, other.score), jnp.where(lead, self.fallen, other.fallen)
        )

    def among(self, keep: Array) -> Level:
        """-inf where ``keep`` is False; it has the leading axes of the scores."""
        keep = keep.reshape(keep.shape + (1,) * (self.score.ndim - keep.ndim))
        return Level(jnp.where(keep, self.score, -jnp.inf), self.fallen)


class Sums(NamedTuple):
    """What scans work on: u and w relative to a level, scores that fall or not."""

    level: Level
    u: Array
    w: Array

    def fall(self, log_decay: Array | None) -> Sums:
        """After more tokens, whose log-decays sum to that."""
        return self._replace(level=self.level.fall(log_decay))

    def merge(self, other: Sums) -> Sums:
        """The union of two sets of tokens, both as they are after the last one."""
        level = self.level.larger(other.level)
        a, b = self.level.over(level), other.level.over(level)
        w = _like(a, self.w) * self.w + _like(b, other.w) * other.w
        return Sums(level, a * self.u + b * other.u, w)

    @property
    def mean(self) -> Array:
        """w / u; 0 of an empty set."""
        return safe_divide(self.w, _like(self.u, self.w))


def empty(
    shape: tuple[int, ...], value_shape: tuple[int, ...], dtype: jnp.dtype
) -> ExponentialState:
    """The summary of no tokens: (-inf, 0, 0)."""
    return ExponentialState(
        m=jnp.full(shape, -jnp.inf, dtype),
        u=jnp.zeros(shape, dtype),
        w=jnp.zeros(value_shape, dtype),
    )


def nothing_yet(
    shape: tuple[int, ...], value_shape: tuple[int, ...], dtype: jnp.dtype
) -> ForgettingState:
    """The state of no tokens: (0, -inf, 0, 0, 0)."""
    none = empty(shape, value_shape, dtype)
    zeros = (jnp.zeros(shape, dtype) for _ in range(2))  # an array each: steps reuse their memory
    return ForgettingState(next(zeros), none.m, next(zeros), none.u, none.w)


def summarise(
    score: Array,
    v: Array,
    axis: int,
    weigh: Callable[[Array, Array], Array] = exp_difference,
) -> ExponentialState:
    """The tokens along ``axis`` of scores, one for each channel, and of ``v`` of their shape.

    The maximum is a constant to gradients: it cancels from the mean, which is all that has one.
    """
    m = jax.lax.stop_gradient(jnp.max(score, axis=axis))
    weight = weigh(score, jnp.expand_dims(m, axis))
    return ExponentialState(m, jnp.sum(weight, axis=axis), jnp.sum(weight * v, axis=axis))


def _like(factor: Array, w: Array) -> Array:
    return factor if factor.ndim == w.ndim else factor[..., None]
