"""Validation of a mechanism's arguments.

Error messages say what was expected, what was found, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from flax_linattn.checks import OptionError
from flax_linattn.ops.contract.capabilities import PAIR_INPUTS, Capabilities
from flax_linattn.typing import Array, Parameters, State


def no_state_message(name: str) -> str:
    """Returns the error message for a mechanism without a state."""
    return (
        f"{name!r} needs the whole sequence at once: it has no state and no step; call attend on "
        "whole sequences, or choose a mechanism whose capabilities.recurrent is True."
    )


def resolve_queries(
    name: str, can: Capabilities, q: Array | None, latents: Array | None
) -> Array | None:
    """Returns the queries of a call: q, or the latents that take its place.

    Raises:
        ValueError: If both are given, the mechanism does not support latents, or the mechanism has
            one learned query and q has the shape of a query per token.
    """
    if latents is None:
        if q is not None and can.learned_query and getattr(q, "ndim", 2) > 2:
            hint = "pass external queries [L, H, K] or [B, L, H, K] as latents, or " * can.latents
            raise ValueError(
                f"{name!r} expects q as [H, K], one learned query for all tokens, got shape "
                f"{q.shape}; {hint}choose a mechanism with a query per token, such as softmax."
            )
        return q
    if not can.latents:
        raise ValueError(
            f"{name!r} does not support latents; pass queries as q, or choose a mechanism whose "
            "capabilities.latents is True."
        )
    if q is not None:
        raise ValueError("expected q=None with latents, which replace q; pass only one of them.")
    if getattr(latents, "ndim", 3) not in (3, 4):
        raise ValueError(
            f"expected latents as [L, H, K] or [B, L, H, K], got shape {np.shape(latents)}."
        )
    return latents


def check_arrays(
    name: str, can: Capabilities, q: Array, k: Array, v: Array, *, time: bool = True
) -> None:
    """Checks dtypes and shapes of q, k and v; ``time=False`` means a single token."""
    axes = {"q": "[B, T, H, K]", "k": "[B, S, H, K]", "v": "[B, S, H, V]"}
    if not time:
        axes = {each: axis.replace(", T", "").replace(", S", "") for each, axis in axes.items()}
    has_latents = can.latents and getattr(q, "ndim", 2) > 2
    query = "latents" if has_latents else "q"
    if has_latents:
        axes["q"] = "[L, H, K]" if q.ndim == 3 else "[B, L, H, K]"
    elif can.learned_query:
        axes["q"] = "[H, K] (one learned query, shared by batch and time)"
    arrays = zip((query, "k", "v"), axes.values(), (q, k, v), strict=True)
    for argument, layout, array in arrays:
        if not hasattr(array, "dtype"):
            raise TypeError(f"{argument} must be an array {layout}, got {type(array).__name__}.")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(
                f"{argument} must have a floating dtype, got {array.dtype}; cast it, "
                f"for example {argument}.astype(jnp.float32)."
            )
        rank = layout.split("]")[0].count(",") + 1
        if array.ndim != rank:
            raise ValueError(f"{name!r} expects {argument} as {layout}, got shape {array.shape}.")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(
            f"{query}, k and v must have the same dtype, got {q.dtype}, {k.dtype} and "
            f"{v.dtype}; cast them."
        )
    if has_latents and q.shape[-3] == 0:
        raise ValueError(f"expected at least one latent, {axes['q']}, got shape {q.shape}.")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"k {axes['k']} and v {axes['v']} must agree in all but the last axis, "
            f"got {k.shape} and {v.shape}."
        )
    if can.channelwise and k.shape[-1] != v.shape[-1]:
        raise ValueError(
            f"{name!r} attends in each channel separately, so v needs as many channels "
            f"as k, got {v.shape[-1]} and {k.shape[-1]}."
        )
    heads, key_heads = q.shape[-2], k.shape[-2]
    shares_keys = can.grouped_queries and key_heads > 0 and heads % key_heads == 0
    if q.shape[-1] != k.shape[-1] or not (heads == key_heads or shares_keys):
        raise ValueError(
            f"{query} {axes['q']} and k {axes['k']} must agree in heads and key dimension, "
            f"got {q.shape} and {k.shape}{_head_advice(can, heads, key_heads)}."
        )
    has_batch = q.ndim == 4 if can.latents else q.ndim > 2
    if has_batch and q.shape[0] != k.shape[0]:
        hint = "; latents [L, H, K] serve every row" if has_latents else ""
        raise ValueError(
            f"{query} and k must have the same batch size, got {q.shape[0]} and {k.shape[0]}{hint}."
        )


def _head_advice(can: Capabilities, heads: int, key_heads: int) -> str:
    """Returns the end of an error message about unequal numbers of heads."""
    if heads == key_heads:
        return ""
    if can.grouped_queries:
        return "; the heads of q must be a multiple of the heads of k, because they share them"
    if can.shared_query_key:
        return "; k is also the query, so heads cannot share it"
    advice = "; the state depends on the learned query, so heads cannot share k and v"
    return advice + ", but latents of one head can" * can.latents


def check_mask(name: str, mask: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Returns ``mask`` as an array after checking that it is Boolean and of the given shape."""
    if mask is None:
        return None
    mask = jnp.asarray(mask)
    if mask.dtype != jnp.bool_:
        raise TypeError(
            f"{name} must be Boolean, with True for valid tokens, got {mask.dtype}; use "
            "mask.astype(bool) if 1 marks valid tokens."
        )
    if mask.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {mask.shape}.")
    return mask


def check_segments(segment_ids: Array, shape: tuple[int, ...]) -> None:
    """Checks that ``segment_ids`` is an integer array of the given shape."""
    if not hasattr(segment_ids, "dtype"):
        raise TypeError(f"segment_ids must be an array, got {type(segment_ids).__name__}.")
    if not jnp.issubdtype(segment_ids.dtype, jnp.integer):
        raise TypeError(f"segment_ids must have an integer dtype, got {segment_ids.dtype}.")
    if segment_ids.shape != shape:
        raise ValueError(f"segment_ids must have shape {shape}, got {segment_ids.shape}.")


def check_options(
    name: str,
    can: Capabilities,
    queries: int,
    length: int,
    is_causal: bool,
    is_packed: bool,
    form: str,
    causal_alternative: str,
) -> None:
    """Checks that the mechanism supports the form, direction, lengths and packing of a call."""
    if form != "auto" and form not in can.forms:
        raise ValueError(
            f"{name!r} has no form {form!r}; its forms are: auto, {', '.join(can.forms)}."
        )
    if is_causal and not can.causal:
        raise ValueError(f"{name!r} has no causal form; {causal_alternative}.")
    if not is_causal and not can.noncausal:
        raise ValueError(f"{name!r} is causal only; pass is_causal=True.")
    if queries != length:
        if not can.cross:
            raise ValueError(
                f"{name!r} needs as many queries as keys, got T={queries}, S={length}."
            )
        if is_causal or is_packed:
            what = "is_causal=True" if is_causal else "segment_ids"
            raise ValueError(
                f"{what} needs queries and keys of the same sequence (T = S), got "
                f"T={queries}, S={length}; for earlier tokens pass initial_state."
            )
    if is_packed and not can.packed:
        raise ValueError(
            f"{name!r} does not support segment_ids; pad the sequences and pass a mask instead."
        )


def check_parameters(
    name: str,
    can: Capabilities,
    offered: tuple[str, ...],
    parameters: Mapping[str, ArrayLike | None],
) -> Parameters:
    """Returns the mechanism's own arguments that were passed, as arrays; rejects unknown names.

    Raises:
        ValueError: If an input per pair is not supported.
        TypeError: If the mechanism has no argument of a name.
    """
    unknown = sorted(set(parameters) - {*offered, *can.pair_inputs})
    for each in [each for each in unknown if each in PAIR_INPUTS and parameters[each] is not None]:
        check_pair_input(name, can, each)
    unknown = [each for each in unknown if each not in PAIR_INPUTS]
    if unknown:
        raise TypeError(
            f"{name!r} got the unknown argument {unknown[0]!r}; its own arguments are: "
            f"{', '.join(offered) or 'none'}."
        )
    return {key: jnp.asarray(value) for key, value in parameters.items() if value is not None}


def check_pair_input(name: str, can: Capabilities, which: str, option: str | None = None) -> None:
    """Raises unless the mechanism supports an input per pair of a query and a key.

    Args:
        name: Name of the mechanism.
        can: Capabilities of the mechanism.
        which: Name of the input, such as "bias".
        option: Name of the argument or option that needs the input; default ``which``.

    Raises:
        OptionError: If the mechanism does not support the input.
    """
    if which in can.pair_inputs:
        return
    reason = "it does not form the weights of single pairs"
    if can.constant_memory:
        reason = "its state has a constant size, so past tokens are not kept apart"
    elif can.channelwise:
        reason = "each channel has its own weights"
    raise OptionError(
        f"{name!r} does not support {option or which}: {reason}; omit it, or choose a mechanism "
        f"whose capabilities.{PAIR_INPUTS[which]} is True, such as softmax.",
        option or which,
        "mechanism",
    )


def check_state_like(name: str, state: State, expected: State) -> None:
    """Checks that a state has the structure, shapes and dtypes of ``expected``.

    Raises:
        ValueError: If structures or shapes differ. The message names the first differing leaf and
            never prints its numbers.
        TypeError: If dtypes differ, or a leaf is not an array.
    """
    hint = f"make one with init_state(...) or attend(..., return_state=True) of {name!r}"
    structure: object = jax.tree.structure(expected)
    if structure != jax.tree.structure(state):
        want, got = type(expected).__name__, type(state).__name__
        if want == got:  # of another structure within
            want, got = (f"{want} of {_describe_leaves(tree)}" for tree in (expected, state))
        raise ValueError(
            f"the state does not belong to {name!r}: expected {want}, got {got}; {hint}."
        )
    leaves = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(state), strict=True)
    for (path, want), got in leaves:
        leaf = jax.tree_util.keystr(path)
        if not _is_array(got):
            raise TypeError(
                f"{leaf} of the state must be an array {_describe(want)}, got "
                f"{_describe(got)}; {hint}."
            )
        if got.shape != want.shape:
            raise ValueError(
                f"{leaf} of the state must have shape {want.shape} for these inputs, got "
                f"{got.shape}; {hint}."
            )
        if got.dtype != want.dtype:
            raise TypeError(
                f"{leaf} of the state must have dtype {want.dtype} for these inputs, got "
                f"{got.dtype}; create it with init_state(..., dtype=...) and the dtype of "
                "the inputs."
            )


def check_carried_segment(segment_id: Array | None, batch: int) -> None:
    """Checks that the segment id of a ``PackedState`` is an integer array [B], or None."""
    if segment_id is None:
        return
    if not _is_array(segment_id) or not jnp.issubdtype(segment_id.dtype, jnp.integer):
        raise TypeError(
            f"a PackedState's segment_id must be an integer array [B], got {_describe(segment_id)}."
        )
    if segment_id.shape != (batch,):
        raise ValueError(
            f"a PackedState's segment_id must have shape {(batch,)} for these inputs, "
            f"got {segment_id.shape}; pass the state that attend returned for the same "
            "batch size."
        )


def _is_array(leaf: object) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _describe(leaf: Any) -> str:
    """Returns dtype and shape of an array, or the type name of anything else."""
    return f"{leaf.dtype}{list(leaf.shape)}" if _is_array(leaf) else type(leaf).__name__


def _describe_leaves(tree: State) -> str:
    """Lists the leaves of a state without their values: ".m float32[2, 3], ..."."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda leaf: leaf is None)
    lines = [f"{jax.tree_util.keystr(path)} {_describe(leaf)}" for path, leaf in leaves]
    return ", ".join(lines[:4]) + (", ..." if len(lines) > 4 else "")
