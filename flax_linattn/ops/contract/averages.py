"""Averages of the values by weights of all pairs: what the references end in."""

from __future__ import annotations

import jax.numpy as jnp

from flax_linattn.ops.contract.numerics import einsum, exp_difference, safe_divide
from flax_linattn.typing import Array, Outputs, Values, Visible


def average_by_head(weight: Array, v: Values) -> Outputs:
    """By weights [B, H, T, S], 0 where a token is not seen."""
    weight = safe_divide(weight, jnp.sum(weight, axis=-1, keepdims=True))
    return einsum("bhts,bshv->bthv", weight, v)


def average_by_token(weight: Array, v: Values) -> Outputs:
    """By weights [B, T, S, H], 0 where a token is not seen."""
    total = einsum("btsh,bshv->bthv", weight, v)
    return safe_divide(total, jnp.sum(weight, axis=2)[..., None])


def average_by_channel(weight: Array, v: Values) -> Outputs:
    """By weights [B, T, S, H, V] of each channel, 0 where a token is not seen."""
    return safe_divide(jnp.sum(weight * v[:, None], axis=2), jnp.sum(weight, axis=2))


def softmax_by_channel(score: Array, v: Values, visible: Visible) -> Outputs:
    """By e^score for the scores [B, T, S, H, V] of each channel."""
    score = jnp.where(visible[..., None, None], score, -jnp.inf)
    weight = exp_difference(score, jnp.max(score, axis=2, keepdims=True))
    return average_by_channel(weight, v)
