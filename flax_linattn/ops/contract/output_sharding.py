"""How what a mechanism returns is split over explicit mesh axes: as what it is made of.

See :mod:`flax_linattn.ops.contract.meshes`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from flax_linattn.ops.contract.meshes import partition_axes
from flax_linattn.ops.contract.state import packed, unpacked
from flax_linattn.typing import Array, State


def of_outputs(q: Array, k: Array, v: Array) -> Any:
    """Of outputs [B, T, H, V] or [B, H, V]: batch, time and heads as the queries, V as the values.

    With a learned query [H, K] as the keys, one of which stands at each position.
    """
    return (*partition_axes(k if q.ndim == 2 else q)[:-1], partition_axes(v)[-1])


def of_given_outputs(q: Array, k: Array, v: Array, *, at_once: bool) -> Any:
    """The same of given queries [L, H, K] or [B, L, H, K]: [B, T, L, H, V] or [B, L, H, V].

    Args:
        q: the queries.
        k: keys [B, S, H, K], or [B, H, K] of a step.
        v: values, likewise.
        at_once: whether one output stands for all S tokens.
    """
    *lead, heads, _ = partition_axes(k)
    lead = lead[:1] if at_once else lead
    return (*lead, partition_axes(q)[-3], heads, partition_axes(v)[-1])


def of_state(
    state: State, before: State | None, k: Array, new_state: Callable[[int], State]
) -> Any:
    """Of the state after a call.

    Args:
        state: what the call returns.
        before: the state that it was given: the new one lies as that does, so that a loop can carry
            it. None = there was none: batch and heads as the keys.
        k: keys [B, S, H, K].
        new_state: makes a state for a number of heads; only its shapes are asked for.
    """
    state, segment_id = unpacked(state)
    rows, _, heads, _ = partition_axes(k)
    of_id: Any = (rows,)
    if before is None:
        axes = [
            (rows, *(heads if of_heads else None for of_heads in leaf[1:]))
            for leaf in axes_of_heads(new_state)
        ]
        of_tokens = jax.tree.unflatten(jax.tree.structure(state), axes)
    else:
        before, id_before = unpacked(before)
        of_tokens = jax.tree.map(partition_axes, before)
        of_id = of_id if id_before is None else partition_axes(id_before)
    return packed(of_tokens, None if segment_id is None else of_id)


def axes_of_heads(new_state: Callable[[int], State]) -> list[tuple[bool, ...]]:
    """Which axes of a state's leaves are those of the heads: the ones that grow with their number.

    A state of a mechanism of one's own needs not say it so.

    Args:
        new_state: makes a state for a number of heads; only its shapes are asked for.

    Example:
        >>> import jax.numpy as jnp
        >>> axes_of_heads(lambda heads: (jnp.zeros((3, heads, 4)), jnp.zeros(3)))
        [(False, True, False), (False,)]
    """
    one, two = (jax.tree.leaves(jax.eval_shape(partial(new_state, heads))) for heads in (1, 2))
    return [
        tuple(a != b for a, b in zip(x.shape, y.shape, strict=True))
        for x, y in zip(one, two, strict=True)
    ]


def of_merged(state_a: State, state_b: State) -> Any:
    """Of two states merged: as the first, and where that is whole as the second."""

    def either(a: Array, b: Array) -> Any:
        return tuple(x or y for x, y in zip(partition_axes(a), partition_axes(b), strict=True))

    return jax.tree.map(either, state_a, state_b)
