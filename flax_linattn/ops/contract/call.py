"""Checked arguments of a call: padding is zeroed, and shapes and dtypes agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.pair_inputs import split_groups
from flax_linattn.typing import Array, Keys, KeyStep, Mask, Parameters, State, Values, ValueStep


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        "q",
        "k",
        "v",
        "mask",
        "query_mask",
        "segments",
        "state",
        "parameters",
        "per_token",
    ),
    meta_fields=("is_causal", "form", "return_state", "group_size"),
)
@dataclasses.dataclass(frozen=True)
class Call:
    """Checked arguments of one call of ``attend``, each under its own name.

    Attributes:
        segments: Start positions of packed segments; None means that nothing is packed.
        state: State after the earlier tokens; None means that there are none.
        parameters: The mechanism's own arguments that were passed, by name.
        per_token: Per-token inputs (``token_arguments``) of shape [B, S, ...], by name, in the
            accumulation dtype, 0 at padding.
        group_size: Number of query heads per key head. Families see one query head of each group
            in ``q``; the group counts where they choose a form by the number of scores.
    """

    q: Array
    k: Keys
    v: Values
    mask: Mask | None
    query_mask: Array | None
    segments: masks.Segments | None
    state: State | None
    parameters: Parameters
    per_token: Parameters
    is_causal: bool
    form: str
    return_state: bool
    group_size: int = 1

    @property
    def num_queries(self) -> int:
        """Number of queries T, or L of latents."""
        return self.k.shape[1] if self.q.ndim == 2 else self.q.shape[1]

    @property
    def starts(self) -> Array | None:
        """Boolean array [B, S]; True marks the starts of packed segments. None means no packing."""
        return None if self.segments is None else self.segments.starts


class StepCall(NamedTuple):
    """Checked arguments of one call of ``step``, each under its own name."""

    q: Array
    k: KeyStep
    v: ValueStep
    state: State
    mask: Array | None
    parameters: Parameters
    per_token: Parameters


def num_queries(can: Capabilities, q: Array, k: Array) -> int:
    """Returns the number of outputs per sequence; a learned query has one at every key."""
    return k.shape[1] if can.learned_query else q.shape[1]


def count_latents(can: Capabilities, q: Array) -> int | None:
    """Returns the number L of latents, or None if there are none."""
    return q.shape[-3] if can.latents and q.ndim > 2 else None


def pools_sequence(can: Capabilities, q: Array, is_causal: bool) -> bool:
    """Returns whether latents pool the sequence: one output each, not one per token."""
    return count_latents(can, q) is not None and not is_causal


def broadcast_queries(can: Capabilities, q: Array, k: Array) -> Array:
    """Broadcasts latents [L, H, K] to [B, L, H, K]; returns queries unchanged."""
    shared = count_latents(can, q) is not None and q.ndim == 3
    return jnp.broadcast_to(q, (k.shape[0], *q.shape)) if shared else q


def attend_by_group(
    attend: Callable[[Array, Parameters], tuple[Array, State]],
    q: Array,
    k: Array,
    parameters: Parameters,
    *,
    has_state: bool,
) -> tuple[Array, State]:
    """Attends with queries of H heads to keys and values of G heads, H a multiple of G.

    Query head h attends to key head h // (H // G). Keys, values and states are not repeated: they
    do not depend on queries, so all H / G members of a group share them.

    Args:
        attend: Function from queries [..., G, K] and parameters to outputs [..., G, V] and the
            state.
        q: Queries of shape [..., H, K].
        k: Keys of shape [..., G, K].
        parameters: The mechanism's own arguments, of which inputs per pair may have H heads.
        has_state: Whether to return the state of G heads, or None.
    """
    heads, key_heads = q.shape[-2], k.shape[-2]
    if heads == key_heads:
        y, state = attend(q, parameters)
        return y, state if has_state else None
    q = q.reshape(*q.shape[:-2], key_heads, heads // key_heads, q.shape[-1])
    # In front, because JAX 0.10 takes the mapped axis of primal_only's outputs to be there.
    q = jnp.moveaxis(q, -2, 0)
    parameters, axes = split_groups(parameters, heads, key_heads)

    def outputs(q: Array, parameters: Parameters) -> Array:
        return attend(q, parameters)[0]

    y = jax.vmap(outputs, in_axes=(0, axes), out_axes=-2)(q, parameters)
    y = y.reshape(*y.shape[:-3], heads, y.shape[-1])
    if not has_state:
        return y, None
    # The state comes from a call of its own, of the first members: jax.vmap multiplies the gradient
    # of an output without the mapped axis by its size if it belongs to a custom_vjp function.
    first = {
        name: x if axes[name] is None else jnp.take(x, 0, axis=axes[name])
        for name, x in parameters.items()
    }
    return y, attend(q[0], first)[1]


def zero_queries(q: Array, query_mask: Array | None) -> Array:
    """Zeroes padded queries; a learned query [H, K] has no padding, whatever its shape."""
    return q if q.ndim == 2 else masks.zero_padding(q, query_mask)
