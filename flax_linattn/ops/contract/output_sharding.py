"""Sharding of a mechanism's results over explicit mesh axes, derived from its inputs.

See :mod:`flax_linattn.ops.contract.meshes`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from flax_linattn.ops.contract.meshes import partition_axes
from flax_linattn.ops.contract.state import pack_state, unpack_state
from flax_linattn.typing import Array, State


def output_axes(q: Array, k: Array, v: Array) -> Any:
    """Returns the mesh axes of outputs [B, T, H, V] or [B, H, V].

    Batch, time and heads are sharded like the queries, or like the keys for a learned query [H, K];
    channels are sharded like the values.
    """
    return (*partition_axes(k if q.ndim == 2 else q)[:-1], partition_axes(v)[-1])


def latent_output_axes(latents: Array, k: Array, v: Array, *, is_pooled: bool) -> Any:
    """Returns the mesh axes of outputs of latents, [B, T, L, H, V] or [B, L, H, V].

    Args:
        latents: Latents of shape [L, H, K] or [B, L, H, K].
        k: Keys of shape [B, S, H, K], or [B, H, K] in ``step``.
        v: Values, with the leading axes of the keys.
        is_pooled: Whether one output stands for all S tokens.
    """
    *lead, heads, _ = partition_axes(k)
    lead = lead[:1] if is_pooled else lead
    return (*lead, partition_axes(latents)[-3], heads, partition_axes(v)[-1])


def state_axes(
    state: State, before: State | None, k: Array, new_state: Callable[[int], State]
) -> Any:
    """Returns the mesh axes of the state after a call.

    Args:
        state: State that the call returns.
        before: State that the call received; the new state is sharded like it, so that a loop can
            carry it. None means there was none, so batch and heads are sharded like the keys.
        k: Keys of shape [B, S, H, K].
        new_state: Function from a number of heads to a state, of which only the shapes are used.
    """
    state, segment_id = unpack_state(state)
    rows, _, heads, _ = partition_axes(k)
    id_axes: Any = (rows,)
    if before is None:
        axes = [
            (rows, *(heads if is_head else None for is_head in leaf[1:]))
            for leaf in head_axes(new_state)
        ]
        token_axes = jax.tree.unflatten(jax.tree.structure(state), axes)
    else:
        before, id_before = unpack_state(before)
        token_axes = jax.tree.map(partition_axes, before)
        id_axes = id_axes if id_before is None else partition_axes(id_before)
    return pack_state(token_axes, None if segment_id is None else id_axes)


def head_axes(new_state: Callable[[int], State]) -> list[tuple[bool, ...]]:
    """Finds the axes of a state's leaves whose size depends on the number of heads.

    So user-defined mechanisms need not declare them.

    Args:
        new_state: Function from a number of heads to a state, of which only the shapes are used.

    Example:
        >>> import jax.numpy as jnp
        >>> head_axes(lambda heads: (jnp.zeros((3, heads, 4)), jnp.zeros(3)))
        [(False, True, False), (False,)]
    """
    one, two = (jax.tree.leaves(jax.eval_shape(partial(new_state, heads))) for heads in (1, 2))
    return [
        tuple(a != b for a, b in zip(x.shape, y.shape, strict=True))
        for x, y in zip(one, two, strict=True)
    ]


def merged_state_axes(state_a: State, state_b: State) -> Any:
    """Returns the mesh axes of merged states: of the first where it has any, else the second."""

    def either(a: Array, b: Array) -> Any:
        return tuple(x or y for x, y in zip(partition_axes(a), partition_axes(b), strict=True))

    return jax.tree.map(either, state_a, state_b)
