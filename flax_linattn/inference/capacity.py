"""Free capacity of the rows of a stream: observations so far vs. capacity of caches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool
from numpy.typing import NDArray

from flax_linattn.checks import OptionError
from flax_linattn.inference.state import check_known_rows
from flax_linattn.models.backbone import BackboneState
from flax_linattn.models.moments import MomentsState
from flax_linattn.models.patch_forecaster import PatchState
from flax_linattn.models.pooling import CountedState
from flax_linattn.ops.engine.cache import KVCache
from flax_linattn.typing import Array, State

Counts = NDArray[np.int64]


class Capacity:
    """Counts observations per row on the host, if a cache or table of positions limits them.

    Counting waits for a device only for masks, resets and states on that device. Limits are the
    caches of this library, and the table of positions that a model names in ``num_positions``. An
    observation takes one slot of a cache, or ``tokens_per_observation`` of the model.

    Args:
        model: A model that streams.
        state: State of the model.

    Attributes:
        counts: Number of observations of each row so far, int64 [B].
    """

    def __init__(self, model: Any, state: State) -> None:
        self._positions: int | None = getattr(model, "num_positions", None)
        self._tokens: int = getattr(model, "tokens_per_observation", 1)
        caches = [cache for cache in _nodes(state, KVCache) if not cache.growable]
        slots = [cache.capacity // self._tokens for cache in caches]
        ends = [*slots, *([] if self._positions is None else [self._positions])]
        self._limit = min(ends, default=None)
        self.counts = self.read_counts(state)

    def read_counts(self, state: State) -> Counts:
        """Number of observations in each row of a state, if the state has counters; else 0."""
        counters = [] if self._limit is None else count_observations(state)
        if counters:
            # Rounded up: the first observation may have fewer tokens.
            return -(-np.max(counters, axis=0) // self._tokens)
        size = jax.tree.leaves(state)[0].shape[0]
        return np.zeros(size, np.int64)

    def count_after(
        self, mask: ArrayLike | None, reset: ArrayLike | None = None, *, length: int | None = None
    ) -> Counts:
        """Counts after a call; raises OptionError if a row exceeds the capacity.

        Args:
            mask: Boolean array of shape [B], or [B, T] for a call on sequences; True marks
                observations that are processed.
            reset: Boolean array of shape [B]; True marks rows that are reset first.
            length: T of a call on sequences.
        """
        if self._limit is None:
            return self.counts
        size, counts = len(self.counts), self.counts
        if reset is not None:
            counts = np.where(check_known_rows("reset", reset, size), 0, counts)
        if mask is None:
            counts = counts + (1 if length is None else length)
        else:
            shape = (size,) if length is None else (size, length)
            real = check_known_rows("mask", mask, *shape)
            counts = counts + real.reshape(size, -1).sum(axis=1)
        if (counts > self._limit).any():
            row = int(np.argmax(counts > self._limit))
            if self._limit == self._positions:
                raise OptionError(
                    f"row {row} has no capacity for observation {self._limit + 1}, because the "
                    f"model has positions for {self._limit}; make the model with a larger "
                    "max_length, or reset the row."
                )
            raise OptionError(
                f"row {row} has no capacity for observation {self._limit + 1}, because its cache "
                f"holds {self._limit}; make the stream with a larger max_length, or reset the row.",
                "max_length",
            )
        return counts


def count_observations(state: State) -> list[Counts]:
    """Counters in a state: number of observations or tokens of each row, int64 [B] each.

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
        positions = np.asarray(node.phases[0], np.int64)  # BackboneState.position [B, P, targets]
        counts += list(np.moveaxis(positions.sum(axis=1), -1, 0))
    return [np.asarray(count, np.int64) for count in counts]


def has_overflowed(state: State) -> Bool[Array, "B"]:
    """Whether a cache in the state lost tokens of a row because it was full, Boolean [B].

    Outside ``jit`` a full cache is an error. Under ``jit`` values are unknown, so outputs of the
    row are NaN from then on; this function finds the cause, and can end a loop.

    Args:
        state: State of any model or mechanism, also under ``jit`` and in a loop.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import inference, ops
        >>> softmax = ops.get_mechanism("softmax")
        >>> state = softmax.init_state(2, 1, 4, 4, max_length=1)
        >>> x, step = jnp.ones((2, 1, 4)), jax.jit(softmax.step)
        >>> for real in ([True, True], [False, True]):
        ...     y, state = step(x, x, x, state, jnp.array(real))
        >>> inference.has_overflowed(state).tolist(), jnp.isnan(y).any(axis=(1, 2)).tolist()
        ([False, True], [False, True])
    """
    lost = jnp.zeros(jax.tree.leaves(state)[0].shape[0], bool)
    for cache in _nodes(state, KVCache):
        lost = lost | cache.has_overflowed
    return lost


def _nodes(state: State, kind: type[Any]) -> list[Any]:
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    return [leaf for leaf in leaves if isinstance(leaf, kind)]
