"""Token-by-token recurrence, in which the references of gated mechanisms end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from flax_linattn.typing import Array, State, Visible


def reference_recurrence(
    token: Callable[[State, Any], tuple[State, Array]], before: State, tokens: Any, visible: Visible
) -> Array:
    """Returns the outputs of a plain loop over tokens.

    A token that attends to itself is valid; the state restarts at a token that attends to no
    earlier one.

    Args:
        token: Function (state, leaves [B, ...] of one token) -> (state, outputs [B, H, V]).
        before: State before the first token.
        tokens: Tree of arrays of shape [B, T, ...].
        visible: Causal Boolean array of shape [B or 1, T, T].

    Returns:
        Outputs of shape [B, T, H, V], 0 at padding.
    """
    batch = jax.tree.leaves(tokens)[0].shape[0]
    real = jnp.broadcast_to(jnp.diagonal(visible, axis1=1, axis2=2), (batch, visible.shape[1]))
    fresh = jnp.broadcast_to(~jnp.any(jnp.tril(visible, -1), axis=2), real.shape)

    def choose(condition: Array, x: State, y: State) -> State:
        def choose_leaf(a: Array, b: Array) -> Array:
            return jnp.where(condition.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

        return jax.tree.map(choose_leaf, x, y)

    def body(state: State, now: Any) -> tuple[State, Array]:
        real, fresh, here = now
        after, y = token(choose(fresh, before, state), here)
        return choose(real, after, state), choose(real, y, jnp.zeros_like(y))

    by_time = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (real, fresh, tokens))
    return jnp.moveaxis(jax.lax.scan(body, before, by_time)[1], 0, 1)
