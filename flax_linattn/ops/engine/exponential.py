"""Sums of exponentials that never overflow: the state (m, u, w) and its operator.

Feng et al., "Attention as an RNN", 2024, section 3.2: a set of tokens with scores s_j is
summarised by the maximum m of its scores, u = sum exp(s_j - m) and w = sum exp(s_j - m) v_j.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from flax_linattn.ops.contract.numerics import exp_difference, safe_divide
from flax_linattn.ops.contract.state import exportable
from flax_linattn.typing import Array


@exportable
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

    def merge(self, other: ExponentialState) -> ExponentialState:
        """The union of two sets: the operator that appendix B proves associative."""
        m = jnp.maximum(self.m, other.m)
        factor, other_factor = exp_difference(self.m, m), exp_difference(other.m, m)
        return ExponentialState(
            m=m,
            u=factor * self.u + other_factor * other.u,
            w=_like(factor, self.w) * self.w + _like(other_factor, other.w) * other.w,
        )

    @property
    def mean(self) -> Array:
        """w / u, the weighted mean of the values; 0 of an empty set."""
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


def summarise(score: Array, v: Array, axis: int) -> ExponentialState:
    """The tokens along ``axis`` of scores, one for each channel, and of ``v`` of their shape."""
    m = jnp.max(score, axis=axis)
    weight = exp_difference(score, jnp.expand_dims(m, axis))
    return ExponentialState(m, jnp.sum(weight, axis=axis), jnp.sum(weight * v, axis=axis))


def _like(factor: Array, w: Array) -> Array:
    return factor if factor.ndim == w.ndim else factor[..., None]
