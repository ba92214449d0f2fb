"""Causality for NaN and infinity: no output depends on what a later token holds.

Causal forms multiply what a query does not attend to by a weight of 0, and 0 times NaN is NaN: a
token that holds NaN would reach earlier outputs of its block, other packed segments, and all
gradients. So causal attention replaces what is not finite by 0, and overwrites with NaN the outputs
that attend to it. Outputs before it, their gradients and the gradients of the tokens before it
are as if the token were zero. Heads do not affect each other. An initial state that is not
finite is replaced likewise where packed segments follow that do not continue it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.call import Call
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.numerics import accumulation_dtype, einsum, overwrite
from flax_linattn.ops.contract.token_arguments import TokenArgument
from flax_linattn.typing import Array, State

HEADROOM = 2.0**-16
"""Largest number that counts as finite, as a fraction of the largest float: 5e33 in float32."""


class NonFinite(NamedTuple):
    """Which tokens and queries of a call hold NaN or infinity.

    Attributes:
        tokens: Boolean array of shape [B, S, H]: the key, the value or a per-token input.
        queries: Boolean array of shape [B, T, H]; None for queries that belong to no token.
    """

    tokens: Array
    queries: Array | None

    @classmethod
    def nowhere(cls, call: Call, can: Capabilities) -> NonFinite:
        """Returns marks of a call whose tokens and queries are finite."""
        no_query = can.learned_query or can.shared_query_key
        tokens, queries = (jnp.zeros(x.shape[:3], bool) for x in (call.k, call.q))
        return cls(tokens, None if no_query else queries)

    def poison_outputs(self, y: Array, attended: Array) -> Array:
        """Overwrites with NaN the outputs [B, T, H, V] or [B, T, L, H, V] that read a marked token.

        Args:
            y: Outputs of shape [B, T, H, V] or [B, T, L, H, V].
            attended: Boolean array of shape [B, T, H], from ``attends_to_marked``.
        """
        marked = attended if self.queries is None else attended | self.queries
        marked = marked[:, :, None, :, None] if y.ndim == 5 else marked[..., None]
        return overwrite(y, marked, jnp.nan)


def replace_non_finite(
    call: Call, can: Capabilities, arguments: Sequence[TokenArgument]
) -> tuple[Call, NonFinite]:
    """Replaces the tokens and queries of a call that are not finite by zeros, and marks them.

    Args:
        call: Checked call, whose arrays may hold any number.
        can: Capabilities of the mechanism.
        arguments: Declarations of its per-token inputs.
    """
    # The delta rule multiplies keys by each other.
    bad_key = _overflows(call.k, squared=can.unit_vectors)
    bad_value = _overflows(call.v)
    tokens, per_token = bad_key | bad_value, dict(call.per_token)
    for each in arguments:
        x = per_token[each.name]
        # Per-token inputs of a call are within their limits or NaN, but a state may hold anything.
        bad = ~((x >= each.low) & (x <= each.high))
        if not each.accepts_negative_infinity:
            bad = bad | ~jnp.isfinite(x)
        per_token[each.name] = overwrite(x, bad, 0)
        head = each.axes.find("H")
        marked = jnp.any(bad, axis=tuple(2 + i for i in range(len(each.axes)) if i != head))
        tokens = tokens | (marked[..., None] if head < 0 else marked)
    q, queries = call.q, None
    if not (can.learned_query or can.shared_query_key):
        queries = _overflows(q)
        q = overwrite(q, queries[..., None], 0)
    k = overwrite(call.k, bad_key[..., None], 0)
    v = overwrite(call.v, bad_value[..., None], 0)
    call = dataclasses.replace(call, q=q, k=k, v=v, per_token=per_token)
    return call, NonFinite(tokens, queries)


def _overflows(x: Array, *, squared: bool = False) -> Array:
    """Returns which vectors [B, T, H, K] hold NaN, infinity or a number near overflow."""
    x = x.astype(accumulation_dtype(x.dtype))
    factor = (math.sqrt(jnp.finfo(x.dtype).max) if squared else 1.0) / HEADROOM
    # A sum of x times a factor is not finite where x is not, or the product overflows. As a product
    # of matrices it takes half the time of comparisons and their reduction.
    weights = jnp.full(x.shape[-1], factor, x.dtype)
    return ~jnp.isfinite(einsum("bthk,k->bth", jax.lax.stop_gradient(x), weights))


def attends_to_marked(
    tokens: Array,
    starts: Array | None = None,
    window: int | None = None,
    before: Array | None = None,
) -> Array:
    """Returns whether each position or an earlier one of its segment is marked.

    Args:
        tokens: Boolean array of shape [B, S, H].
        starts: Boolean array of shape [B, S]; True marks the first token of a packed segment; None
            means that there is one segment.
        window: Number of positions that each attends to, its own included; None means all.
        before: Boolean array of shape [B, H]; True marks the state before the first token. None
            means that it is not marked.

    Example:
        >>> import jax.numpy as jnp
        >>> marked = jnp.array([False, True, False, False])[None, :, None]
        >>> attends_to_marked(marked).ravel().tolist()
        [False, True, True, True]
        >>> attends_to_marked(marked, jnp.array([[False, False, False, True]])).ravel().tolist()
        [False, True, True, False]
    """
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[:, None]
    if starts is None and window is None and before is None:
        first = jnp.min(jnp.where(tokens, index, tokens.shape[1]), axis=1, keepdims=True)
        return index >= first
    # The state before the first token has index -1, and nothing marked has index -2.
    latest = jax.lax.cummax(jnp.where(tokens, index, -2), axis=1)
    if before is not None:
        latest = jnp.maximum(latest, jnp.where(before, -1, -2)[:, None])
    first = jnp.full_like(index, -1)
    if window is not None:
        first = jnp.maximum(first, index - window + 1)
    if starts is not None:
        first = jnp.maximum(first, jax.lax.cummax(jnp.where(starts[..., None], index, -1), axis=1))
    return latest >= first


def poison_state(state: State, marked: Array, one_head: State, two_heads: State) -> State:
    """Overwrites with NaN the floating leaves of a state in the heads that hold a marked token.

    Args:
        state: State after the last token.
        marked: Boolean array of shape [B, H].
        one_head: Shapes of the state of one head, which show with ``two_heads`` where heads are.
        two_heads: Shapes of the state of two heads.
    """
    nan = jax.tree.map(lambda _: jnp.nan, state)
    return jax.tree.map(partial(_replace_heads, marked), state, nan, one_head, two_heads)


def replace_state(
    state: State, empty: State, decays: Sequence[str], one_head: State, two_heads: State
) -> tuple[State, Array]:
    """Replaces a state by ``empty`` in the heads that are not finite, and marks them.

    Returns:
        The state, and a Boolean array of shape [B, H].

    Args:
        state: State before the first token; its arrays may hold anything.
        empty: State of no tokens, of the same structure and shapes. Its infinities are valid.
        decays: Names of the leaves in which -inf is valid, as a sum of log-decays.
        one_head: As in ``poison_state``.
        two_heads: As in ``poison_state``.
    """

    def marked_heads(path: Any, leaf: Array, valid: Array, one: Array, two: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.zeros((leaf.shape[0], 1), bool)
        maximum = jnp.finfo(leaf.dtype).max * HEADROOM
        is_decay = jax.tree_util.keystr(path[-1:], simple=True) in decays
        minimum = -jnp.inf if is_decay else -maximum
        bad = ~((leaf == valid) | (leaf >= minimum) & (leaf <= maximum))
        axis = _head_axis(one, two)
        bad = jnp.any(bad, axis=tuple(i for i in range(1, leaf.ndim) if i != axis))
        return bad if axis is not None else bad[:, None]

    by_leaf = jax.tree_util.tree_map_with_path(marked_heads, state, empty, one_head, two_heads)
    marked = functools.reduce(jnp.logical_or, jax.tree.leaves(by_leaf))
    replace = partial(_replace_heads, marked)
    return jax.tree.map(replace, state, empty, one_head, two_heads), marked


def _head_axis(one: Any, two: Any) -> int | None:
    """Returns the axis of a leaf that has the size H; None if there is none."""
    sizes = zip(one.shape, two.shape, strict=True)
    return next((i for i, pair in enumerate(sizes) if pair == (1, 2)), None)


def _replace_heads(marked: Array, leaf: Array, value: Array, one: Any, two: Any) -> Array:
    """Replaces a floating leaf of a state in the heads of ``marked`` [B, H], or [B, 1] for all."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    axis, shape = _head_axis(one, two), [leaf.shape[0]] + [1] * (leaf.ndim - 1)
    if axis is None:
        marked = jnp.any(marked, axis=1)
    else:
        shape[axis] = marked.shape[1]
    return overwrite(leaf, marked.reshape(shape), value)
