"""Arguments of a call on sequences, validated once and passed from layer to layer."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Int

from flax_linattn.nn.position import token_positions
from flax_linattn.ops.contract.masks import Segments, find_packed_segments
from flax_linattn.typing import Array, Mask, Parameters, SegmentIds, State


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        *("mask", "segment_ids", "segments", "positions", "num_tokens", "state", "dropout_key"),
        "pair_inputs",
    ),
    meta_fields=("is_causal", "return_state", "form"),
)
@dataclasses.dataclass(frozen=True)
class Call:
    """Validated arguments of a call on sequences, other than its inputs.

    The public call of a module validates its arguments, zeroes the padding of its inputs, and
    builds a ``Call``. The parts of the module receive both through their ``_map`` methods, which
    validate nothing and always return the outputs and the state.

    Attributes:
        mask: Boolean array of shape [B, T]; True marks valid tokens. None if all are valid.
        segment_ids: Integer array of shape [B, T]; ids of packed sequences. None for one sequence
            per row.
        segments: Boundaries of packed sequences; set by ``with_positions``.
        positions: Integer array of shape [B, T], the position of each token in its sequence; set by
            ``with_positions``.
        num_tokens: Integer array of shape [B], the length so far of the last sequence of each row;
            set by ``with_positions``.
        state: State of the module after an earlier call; None in the first call.
        dropout_key: Random key that enables dropout; None disables it.
        pair_inputs: Inputs per pair of a query and a key, by name (``ops.contract.pair_inputs``).
        is_causal: Whether each token attends only to itself and earlier tokens.
        return_state: Whether the state after the last token is needed.
        form: Form of the computation; see ``ops.Mechanism.attend``.
    """

    mask: Mask | None = None
    segment_ids: SegmentIds | None = None
    segments: Segments | None = None
    positions: Int[Array, "B T"] | None = None
    num_tokens: Int[Array, "B"] | None = None
    state: State | None = None
    dropout_key: Array | None = None
    pair_inputs: Parameters | None = None
    is_causal: bool = False
    return_state: bool = False
    form: str = "auto"

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with other values of these attributes, such as the state of one part."""
        return dataclasses.replace(self, **changes)

    def with_positions(self, x: Array, before: Any = None) -> Self:
        """Returns a copy with ``segments``, ``positions`` and ``num_tokens``, unless they are set.

        Args:
            x: Inputs of shape [B, T, ...].
            before: State after earlier calls, with ``position`` [B], the length so far of the
                current sequence, and ``segment_id`` [B], its id, or None if not packed.

        Example:
            >>> import jax.numpy as jnp
            >>> mask = jnp.array([[True, False, True]])
            >>> call = Call(mask=mask).with_positions(jnp.ones((1, 3, 8)))
            >>> call.positions.tolist(), call.num_tokens.tolist()
            ([[0, 0, 1]], [2])
        """
        if self.positions is not None:
            return self
        mask = jnp.ones(x.shape[:2], bool) if self.mask is None else self.mask
        num_before = jnp.zeros(x.shape[0], jnp.int32) if before is None else before.position
        segments = find_packed_segments(
            self.segment_ids, self.mask, None if before is None else before.segment_id
        )
        positions, num_tokens = token_positions(mask, segments, num_before)
        return self.replace(segments=segments, positions=positions, num_tokens=num_tokens)

    def last_segment(self, before: Any = None) -> Int[Array, "B"] | None:
        """Returns the id of each row's last segment, which the next state carries."""
        if self.segments is not None:
            return self.segments.last
        return None if before is None else before.segment_id
