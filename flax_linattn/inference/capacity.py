"""Free capacity of a stream's rows: observations so far against the room of caches."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from flax_linattn.checks import OptionError
from flax_linattn.inference.state import check_known_rows
from flax_linattn.models.backbone import BackboneState
from flax_linattn.models.moments import MomentsState
from flax_linattn.models.patch_forecaster import PatchState
from flax_linattn.models.pooling import CountedState
from flax_linattn.ops.engine.cache import KVCache
from flax_linattn.typing import State

Counts = NDArray[np.int64]


class Capacity:
    """Counts observations per row on the host, if a cache or table of positions limits them.

    No device is waited for, but for masks and resets that lie on one, and for a state that is set.
    Caches of this library end, and tables of positions that a model names in ``num_positions``. An
    observation takes one slot of a cache, or what a model says in ``tokens_per_observation``.

    Args:
        model: A model that streams.
        state: Of it.

    Attributes:
        taken: int64 [B], observations that each row has taken in.
    """

    def __init__(self, model: Any, state: State) -> None:
        self._positions: int | None = getattr(model, "num_positions", None)
        self._tokens: int = getattr(model, "tokens_per_observation", 1)
        caches = [cache for cache in _nodes(state, KVCache) if not cache.growable]
        slots = [cache.capacity // self._tokens for cache in caches]
        ends = [*slots, *([] if self._positions is None else [self._positions])]
        self._most = min(ends, default=None)
        self.taken = self.of(state)

    def of(self, state: State) -> Counts:
        """What each row of a state has taken in, as far as it says so; else 0."""
        said = [] if self._most is None else count_observations(state)
        if said:
            return -(-np.max(said, axis=0) // self._tokens)  # the first observation may have fewer
        size = jax.tree.leaves(state)[0].shape[0]
        return np.zeros(size, np.int64)

    def after(
        self, mask: ArrayLike | None, reset: ArrayLike | None = None, *, length: int | None = None
    ) -> Counts:
        """The counts after a call.

        Args:
            mask: Boolean array of shape [B], or [B, T] of a call on sequences: which observations
                it takes in.
            reset: Bool [B], which rows it empties first.
            length: T of a call on sequences.
        """
        if self._most is None:
            return self.taken
        size, taken = len(self.taken), self.taken
        if reset is not None:
            taken = np.where(check_known_rows("reset", reset, size), 0, taken)
        if mask is None:
            taken = taken + (1 if length is None else length)
        else:
            shape = (size,) if length is None else (size, length)
            real = check_known_rows("mask", mask, *shape)
            taken = taken + real.reshape(size, -1).sum(axis=1)
        if (taken > self._most).any():
            row = int(np.argmax(taken > self._most))
            begin = "or begin a new sequence (reset)"
            if self._most == self._positions:
                raise OptionError(
                    f"row {row} has no room for observation {self._most + 1}: the model has "
                    f"positions for {self._most}; make it with a larger max_length, {begin}."
                )
            raise OptionError(
                f"row {row} has no room for observation {self._most + 1}: its cache holds "
                f"{self._most}; make the stream with a larger max_length, {begin}.",
                "max_length",
            )
        return taken


def count_observations(state: State) -> list[Counts]:
    """The parts of a state that say how many observations each row has taken in, int64 [B] each.

    Example:
        >>> from flax_linattn import ops
        >>> count_observations(ops.get_mechanism("softmax").init_state(2, 1, 4, 4, max_length=3))
        [array([0, 0])]
    """
    counts = [node.position for node in _nodes(state, BackboneState)]
    counts += [cache.length for cache in _nodes(state, KVCache)]
    counts += [node.num_tokens for node in _nodes(state, MomentsState)]
    counts += [node.num_tokens for node in _nodes(state, CountedState)]
    for node in _nodes(state, PatchState):
        # Each observation is a token of one phase: the positions of all phases add up to the count.
        positions = node.phases[0]  # BackboneState.position [B, patch_length, targets]
        counts += list(np.moveaxis(np.sum(positions, axis=1, dtype=np.int64), -1, 0))
    return [np.asarray(count, np.int64) for count in counts]


def _nodes(state: State, kind: type[Any]) -> list[Any]:
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    return [leaf for leaf in leaves if isinstance(leaf, kind)]
