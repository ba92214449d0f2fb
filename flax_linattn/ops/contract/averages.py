"""Weighted averages of the values, given the weights of all query-key pairs.

The references of most mechanisms end in one of these functions.
"""

from __future__ import annotations

import jax.numpy as jnp

from flax_linattn.ops.contract.numerics import einsum, exp_difference, safe_divide
from flax_linattn.typing import Array, Outputs, Values, Visible


def average_by_head(weight: Array, v: Values) -> Outputs:
    """Averages the values by weights [B, H, T, S], which are 0 for invisible tokens."""
    weight = safe_divide(weight, jnp.sum(weight, axis=-1, keepdims=True))
    return einsum("bhts,bshv->bthv", weight, v)


def average_by_token(weight: Array, v: Values) -> Outputs:
    """Averages the values by weights [B, T, S, H], which are 0 for invisible tokens."""
    total = einsum("btsh,bshv->bthv", weight, v)
    return safe_divide(total, jnp.sum(weight, axis=2)[..., None])


def average_by_channel(weight: Array, v: Values) -> Outputs:
    """Averages each channel by its own weights [B, T, S, H, V], 0 for invisible tokens."""
    return safe_divide(jnp.sum(weight * v[:, None], axis=2), jnp.sum(weight, axis=2))


def softmax_by_channel(score: Array, v: Values, visible: Visible) -> Outputs:
    """Averages each channel by the softmax of its own scores [B, T, S, H, V]."""
    score = jnp.where(visible[..., None, None], score, -jnp.inf)
    weight = exp_difference(score, jnp.max(score, axis=2, keepdims=True))
    return average_by_channel(weight, v)
