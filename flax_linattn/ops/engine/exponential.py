"""Sums of exponentials that never overflow: the state (m, u, w) and its merge.

Feng et al., "Attention as an RNN", 2024, section 3.2: a set of tokens with scores s_j is summarized
by the maximum m of its scores, u = sum exp(s_j - m) and w = sum exp(s_j - m) v_j. Relative to m,
the largest weight is 1: no score overflows, and u >= 1, so w / u never divides by a small number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from flax_linattn.ops.contract.numerics import exp_difference, safe_divide
from flax_linattn.ops.contract.state import register_state
from flax_linattn.ops.engine import decays
from flax_linattn.typing import Array


@register_state
class ExponentialState(NamedTuple):
    """Summary (m, u, w) of a set of tokens, with the leading axes of the scores.

    Attributes:
        m: Maximum of the scores [...], -inf when empty.
        u: Sum of exp(score - m) [...].
        w: Sum of exp(score - m) v: [..., V], or [...] where every channel has its own score.
    """

    m: Float[Array, "..."]
    u: Float[Array, "..."]
    w: Float[Array, "..."]

    def merge(
        self, other: ExponentialState, weigh: Callable[[Array, Array], Array] = exp_difference
    ) -> ExponentialState:
        """Merges the summaries of two sets: the operator that appendix B proves associative.

        Args:
            other: State of the same shapes.
            weigh: Function (score, maximum) -> weight of the score relative to the weight of the
                maximum.
        """
        # Both factors are at most 1, and one of them is 1. An empty set has m = -inf and weight 0.
        m = jnp.maximum(self.m, other.m)
        factor, other_factor = weigh(self.m, m), weigh(other.m, m)
        return ExponentialState(
            m=m,
            u=factor * self.u + other_factor * other.u,
            w=_expand_like(factor, self.w) * self.w + _expand_like(other_factor, other.w) * other.w,
        )

    @property
    def mean(self) -> Array:
        """Weighted mean w / u of the values; 0 for an empty set."""
        return safe_divide(self.w, _expand_like(self.u, self.w))


@register_state
class ForgettingState(NamedTuple):
    """Summary of a span whose scores decay with every token, and the decay over the span.

    The largest score is m + fallen. The score m and its decay are stored separately, because their
    sum would round away the smaller of the two.

    Attributes:
        log_decay: Sum of the log-decays of the tokens [...]; None if the state is not mergeable.
        m: Score of the token with the largest weight [...], -inf when empty.
        fallen: Sum of the log-decays since that token [...].
        u: Sum of exp(score - m - fallen) [...].
        w: Sum of exp(score - m - fallen) v: [..., V] or [...].
    """

    log_decay: Float[Array, "..."]
    m: Float[Array, "..."]
    fallen: Float[Array, "..."]
    u: Float[Array, "..."]
    w: Float[Array, "..."]

    @classmethod
    def from_sums(cls, log_decay: Array, sums: Sums) -> ForgettingState:
        """Makes the state of a span from its sums and its total log-decay."""
        score, fallen = sums.level
        fallen = jnp.zeros_like(score) if fallen is None else fallen
        return cls(log_decay, score, fallen, sums.u, sums.w)

    @property
    def sums(self) -> Sums:
        """Sums of the span alone, without the decay that it applies to earlier tokens."""
        return Sums(Level(self.m, self.fallen), self.u, self.w)

    def merge(self, later: ForgettingState) -> ForgettingState:
        """Merges two consecutive spans; associative, because decays add up."""
        # All later tokens lower the earlier scores alike, so the level alone decays, not u and w.
        sums = self.sums.decay(later.log_decay).merge(later.sums)
        return ForgettingState.from_sums(decays.add_to_total(self.log_decay, later.log_decay), sums)


class Level(NamedTuple):
    """Scores as unevaluated sums of an original score and its decay so far.

    ``fallen`` is None where scores do not decay.
    """

    score: Array
    fallen: Array | None

    def decay(self, log_decay: Array | None) -> Level:
        """Applies the log-decay of one or more tokens; None leaves the level unchanged."""
        if self.fallen is None or log_decay is None:
            return self
        return Level(self.score, self.fallen + log_decay)

    def exp_relative_to(self, other: Level) -> Array:
        """Computes e^(self - other), 0 where self is -inf; an other of -inf stands for no token."""
        finite = jnp.where(jnp.isneginf(other.score), jnp.zeros_like(other.score), other.score)
        # Like parts are subtracted first: score + fallen would round away digits of the smaller
        # one, although the differences of both parts may be small.
        difference = self.score - finite
        if self.fallen is not None and other.fallen is not None:
            difference = difference + (self.fallen - other.fallen)
        return jnp.exp(difference)

    def maximum(self, other: Level) -> Level:
        """Returns the larger of two levels; the first one gets the gradient of a tie."""
        if self.fallen is None or other.fallen is None:
            return Level(jnp.where(self.score >= other.score, self.score, other.score), None)
        lead = self.score + self.fallen >= other.score + other.fallen
        return Level(
            jnp.where(lead, self.score, other.score), jnp.where(lead, self.fallen, other.fallen)
        )

    def where(self, keep: Array) -> Level:
        """Replaces the score by -inf where ``keep`` [B, ...] is False."""
        keep = keep.reshape(keep.shape + (1,) * (self.score.ndim - keep.ndim))
        return Level(jnp.where(keep, self.score, -jnp.inf), self.fallen)


class Sums(NamedTuple):
    """Sums u and w relative to a level; the carry of the scans."""

    level: Level
    u: Array
    w: Array

    def decay(self, log_decay: Array | None) -> Sums:
        """Applies the total log-decay of later tokens."""
        return self._replace(level=self.level.decay(log_decay))

    def merge(self, other: Sums) -> Sums:
        """Merges two sets of tokens, both decayed to the same position."""
        level = self.level.maximum(other.level)
        a, b = self.level.exp_relative_to(level), other.level.exp_relative_to(level)
        w = _expand_like(a, self.w) * self.w + _expand_like(b, other.w) * other.w
        return Sums(level, a * self.u + b * other.u, w)

    @property
    def mean(self) -> Array:
        """Weighted mean w / u; 0 for an empty set."""
        return safe_divide(self.w, _expand_like(self.u, self.w))


def empty_state(
    shape: tuple[int, ...], value_shape: tuple[int, ...], dtype: jnp.dtype
) -> ExponentialState:
    """Returns the summary of no tokens, (-inf, 0, 0)."""
    return ExponentialState(
        m=jnp.full(shape, -jnp.inf, dtype),
        u=jnp.zeros(shape, dtype),
        w=jnp.zeros(value_shape, dtype),
    )


def empty_forgetting_state(
    shape: tuple[int, ...], value_shape: tuple[int, ...], dtype: jnp.dtype
) -> ForgettingState:
    """Returns the state of no tokens, (0, -inf, 0, 0, 0)."""
    none = empty_state(shape, value_shape, dtype)
    zeros = (jnp.zeros(shape, dtype) for _ in range(2))  # an array each: steps reuse their memory
    return ForgettingState(next(zeros), none.m, next(zeros), none.u, none.w)


def summarize(
    score: Array,
    v: Array,
    axis: int,
    weigh: Callable[[Array, Array], Array] = exp_difference,
) -> ExponentialState:
    """Summarizes tokens along ``axis``, with a score for each channel and values of that shape.

    The maximum is a constant to gradients: it cancels from the mean, the only result with a
    gradient.
    """
    m = jax.lax.stop_gradient(jnp.max(score, axis=axis))
    weight = weigh(score, jnp.expand_dims(m, axis))
    return ExponentialState(m, jnp.sum(weight, axis=axis), jnp.sum(weight * v, axis=axis))


def _expand_like(factor: Array, w: Array) -> Array:
    return factor if factor.ndim == w.ndim else factor[..., None]
