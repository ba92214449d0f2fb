"""A call on sequences: checked and prepared once, then handed on from layer to layer."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Int

from flax_linattn.nn.position import token_positions
from flax_linattn.ops.contract.masks import Runs, packed_runs
from flax_linattn.typing import Array, Mask, SegmentIds, State


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        *("mask", "segment_ids", "runs", "positions", "num_tokens", "state", "dropout_key"),
    ),
    meta_fields=("is_causal", "return_state", "form"),
)
@dataclasses.dataclass(frozen=True)
class Call:
    """What a module is asked for, beside its inputs.

    A public call checks its arguments, zeroes the padding of its inputs, and puts the arguments
    into a ``Call``. Its parts get both by their methods ``_map``, which check and zero nothing.

    Attributes:
        mask: bool [B, T], True = a valid token; None = all are.
        segment_ids: int [B, T], packed sequences; None = one in each row.
        runs: where packed sequences begin, see ``counted``.
        positions: int [B, T], of each token in its sequence, see ``counted``.
        num_tokens: int [B], tokens so far of the sequence in which a row ends, see ``counted``.
        state: of the module, from an earlier call; None = nothing came before.
        dropout_key: turns dropout on.
        is_causal: each token sees itself and the past.
        return_state: the state after the last token is wanted.
        form: see ``ops.Mechanism.attend``.
    """

    mask: Mask | None = None
    segment_ids: SegmentIds | None = None
    runs: Runs | None = None
    positions: Int[Array, "B T"] | None = None
    num_tokens: Int[Array, "B"] | None = None
    state: State | None = None
    dropout_key: Array | None = None
    is_causal: bool = False
    return_state: bool = False
    form: str = "auto"

    def replace(self, **changes: Any) -> Self:
        """The same call but for these attributes, as for a part of a module."""
        return dataclasses.replace(self, **changes)

    def counted(self, x: Array, before: Any = None) -> Self:
        """With ``runs``, ``positions`` and ``num_tokens``; as it is where it has them already.

        Args:
            x: inputs [B, T, ...].
            before: where earlier calls ended: a state with ``position`` [B], tokens so far of the
                current sequence, and ``segment_id`` [B], its id, or None if not packed.

        Example:
            >>> import jax.numpy as jnp
            >>> mask = jnp.array([[True, False, True]])
            >>> call = Call(mask=mask).counted(jnp.ones((1, 3, 8)))
            >>> call.positions.tolist(), call.num_tokens.tolist()
            ([[0, 0, 1]], [2])
        """
        if self.positions is not None:
            return self
        mask = jnp.ones(x.shape[:2], bool) if self.mask is None else self.mask
        num_before = jnp.zeros(x.shape[0], jnp.int32) if before is None else before.position
        runs = packed_runs(
            self.segment_ids, self.mask, None if before is None else before.segment_id
        )
        positions, num_tokens = token_positions(mask, runs, num_before)
        return self.replace(runs=runs, positions=positions, num_tokens=num_tokens)

    def last_segment(self, before: Any = None) -> Int[Array, "B"] | None:
        """The ``segment_id`` of the state after the call, with ``before`` as in ``counted``."""
        if self.runs is not None:
            return self.runs.last
        return None if before is None else before.segment_id
