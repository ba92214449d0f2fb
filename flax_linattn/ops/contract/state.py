"""States: what they are made for, and the packed segment that they ended in."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Int

from flax_linattn.typing import Array, State


class StateSizes(NamedTuple):
    """What a state is made for.

    Attributes:
        batch_size: B.
        num_heads: H.
        key_dim: K.
        value_dim: V.
        max_length: most tokens that a cache is to hold; None = it grows.
        dtype: of sums, float32 or float64.
    """

    batch_size: int
    num_heads: int
    key_dim: int
    value_dim: int
    max_length: int | None
    dtype: jnp.dtype


class PackedState(NamedTuple):
    """A state that also knows in which packed segment it ended.

    ``attend`` returns it when it was given ``segment_ids``; the next call takes it as
    ``initial_state`` and starts afresh in every row whose first id is another one.

    Attributes:
        state: the mechanism's own state.
        segment_id: int32 [B]; -2**31 where no real token has come with an id yet.
    """

    state: State
    segment_id: Int[Array, "B"]


def packed(state: State, segment_id: Array | None) -> State:
    """``state``, with the segment that it ended in where that is known."""
    return state if segment_id is None else PackedState(state, segment_id)


def unpacked(state: State) -> tuple[State, Array | None]:
    """``packed`` undone: the mechanism's own state, and the segment that it ended in."""
    if isinstance(state, PackedState):
        return state.state, state.segment_id
    return state, None
