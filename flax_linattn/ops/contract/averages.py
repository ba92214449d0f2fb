"""Weighted averages of the values, given the weights of all query-key pairs.

The references of most mechanisms end in one of these functions.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from flax_linattn.ops.contract.numerics import einsum, exp_difference, safe_divide
from flax_linattn.ops.contract.pair_inputs import PairInputs
from flax_linattn.typing import Array, Outputs, Values, Visible


def average_by_head(
    weight: Array, v: Values, drop: Callable[[Array], Array] | None = None
) -> Outputs:
    """Averages the values by weights [B, H, T, S], which are 0 for invisible tokens.

    ``drop`` applies dropout to the normalized weights.
    """
    weight = safe_divide(weight, jnp.sum(weight, axis=-1, keepdims=True))
    weight = weight if drop is None else drop(weight)
    return einsum("bhts,bshv->bthv", weight, v)


def softmax_by_head(score: Array, v: Values, pairs: Array, per_pair: PairInputs) -> Outputs:
    """Averages the values by the softmax of scores [B, H, T, S] over the visible pairs."""
    score = jnp.where(pairs, per_pair.add_bias(score, pairs), -jnp.inf)
    weight = exp_difference(score, jnp.max(score, axis=-1, keepdims=True))
    return per_pair.poison(average_by_head(weight, v, per_pair.drop), pairs)


def average_by_token(weight: Array, v: Values) -> Outputs:
    """Averages the values by weights [B, T, S, H], which are 0 for invisible tokens."""
    total = einsum("btsh,bshv->bthv", weight, v)
    return safe_divide(total, jnp.sum(weight, axis=2)[..., None])


def average_by_channel(weight: Array, v: Values) -> Outputs:
    """Averages each channel by its own weights [B, T, S, H, V], 0 for invisible tokens."""
    return safe_divide(jnp.sum(weight * v[:, None], axis=2), jnp.sum(weight, axis=2))


def softmax_by_channel(score: Array, v: Values, visible: Visible) -> Outputs:
    """Averages each channel by the softmax of its own scores [B, T, S, H, V].

    ``visible`` is Boolean [B or 1, T, S], or [B or 1, T, S, H or 1] for each head.
    """
    attended = visible.reshape(visible.shape + (1,) * (5 - visible.ndim))
    score = jnp.where(attended, score, -jnp.inf)
    weight = exp_difference(score, jnp.max(score, axis=2, keepdims=True))
    return average_by_channel(weight, v)
