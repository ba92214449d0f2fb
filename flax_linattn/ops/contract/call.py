"""Checked calls of a mechanism: padding is zeroed, shapes and dtypes agree."""

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
    data_fields=("q", "k", "v", "mask", "query_mask", "runs", "state", "parameters", "per_token"),
    meta_fields=("is_causal", "form", "return_state"),
)
@dataclasses.dataclass(frozen=True)
class Call:
    """One checked call of ``attend``; fields as its arguments.

    Attributes:
        runs: where packed segments begin; None = nothing is packed.
        state: of the tokens before; None = there are none.
        parameters: the mechanism's own arguments, those that were given.
        per_token: its ``token_arguments`` [B, S, ...], in the dtype of sums, 0 at padding.
    """

    q: Array
    k: Keys
    v: Values
    mask: Mask | None
    query_mask: Array | None
    runs: masks.Segments | None
    state: State | None
    parameters: Parameters
    per_token: Parameters
    is_causal: bool
    form: str
    return_state: bool

    @property
    def num_queries(self) -> int:
        """T; L of given queries."""
        return self.k.shape[1] if self.q.ndim == 2 else self.q.shape[1]

    @property
    def starts(self) -> Array | None:
        """Bool [B, S], True = a packed segment begins here; None = nothing is packed."""
        return None if self.runs is None else self.runs.starts


class StepCall(NamedTuple):
    """One checked call of ``step``; fields as its arguments."""

    q: Array
    k: KeyStep
    v: ValueStep
    state: State
    mask: Array | None
    parameters: Parameters
    per_token: Parameters


def num_queries(can: Capabilities, q: Array, k: Array) -> int:
    """T; a learned query, and those given in its place, stand for one at every key."""
    return k.shape[1] if can.learned_query else q.shape[1]


def num_given(can: Capabilities, q: Array) -> int | None:
    """L, of queries given where one is learned otherwise; None = they are not."""
    return q.shape[-3] if can.given_queries and q.ndim > 2 else None


def reads_at_once(can: Capabilities, q: Array, is_causal: bool) -> bool:
    """Whether queries are given and have one output each, not one after every token."""
    return num_given(can, q) is not None and not is_causal


def of_each_row(can: Capabilities, q: Array, k: Array) -> Array:
    """Given queries [L, H, K] as [B, L, H, K], of every row; any others as they are."""
    shared = num_given(can, q) is not None and q.ndim == 3
    return jnp.broadcast_to(q, (k.shape[0], *q.shape)) if shared else q


def zero_queries(q: Array, query_mask: Array | None) -> Array:
    """Zeroes padded queries; a learned query [H, K] has no padding, whatever its shape."""
    return q if q.ndim == 2 else masks.zero_padding(q, query_mask)
