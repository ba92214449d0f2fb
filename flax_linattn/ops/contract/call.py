"""Checked arguments of a call: padding is zeroed, and shapes and dtypes agree."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.capabilities import Capabilities
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
    meta_fields=("is_causal", "form", "return_state"),
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


def zero_queries(q: Array, query_mask: Array | None) -> Array:
    """Zeroes padded queries; a learned query [H, K] has no padding, whatever its shape."""
    return q if q.ndim == 2 else masks.zero_padding(q, query_mask)
