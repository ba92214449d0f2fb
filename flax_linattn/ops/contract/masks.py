"""Masks and packed segments: who sees whom, decided once for every mechanism.

A *run* is a maximal stretch of real tokens of one segment id. Tokens see each other
only inside a run. Padding belongs to no run: ids at masked positions are ignored, so
padding in the middle of a segment does not split it.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from flax_linattn.typing import Array, Mask, SegmentIds, Visible

NO_SEGMENT = -(2**31)
"""The id of a packed state that has met no id yet: it continues in whichever comes first."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Segments:
    """Where packed segments begin.

    Attributes:
        starts: bool [B, T], True at the first real token of each run but the first one;
            the first run counts as a start only where it differs from the carried id.
        last: int32 [B], the segment id in which the sequence ends; ``NO_SEGMENT`` if it holds
            no real token and no id was carried in.
    """

    starts: Bool[Array, "B T"]
    last: Int[Array, "B"]

    @property
    def index(self) -> Int[Array, "B T"]:
        """Number of starts up to and including each position: equal inside a run."""
        return jnp.cumsum(self.starts, axis=1, dtype=jnp.int32)


def zero_padding(x: Array, mask: Array | None) -> Array:
    """Zeroes ``x`` [B, T, ...] where ``mask`` [B, T] is False, NaN and gradients included.

    The mask may span fewer leading axes than x. One of another shape is left for the caller
    to refuse, and no mask changes nothing. A NumPy array becomes one of JAX, of a dtype that JAX
    has: float64 only where that is enabled.

    Example:
        >>> import jax.numpy as jnp
        >>> zero_padding(jnp.array([[1.0], [jnp.nan]]), jnp.array([True, False])).tolist()
        [[1.0], [0.0]]
    """
    x = jnp.asarray(x)
    if mask is None or x.shape[: mask.ndim] != mask.shape:
        return x
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, jnp.zeros_like(x))


def static_max_length(length: int, mask: Array | None) -> int:
    """Real tokens of the longest row; 0 where the mask is known at run time only."""
    if mask is None:
        return length
    if isinstance(mask, jax.core.Tracer):
        return 0
    # Not jnp, whose results are unknown wherever something is being traced.
    return int(np.max(np.sum(np.asarray(mask), axis=1), initial=0))


def previous_real_index(mask: Mask) -> Int[Array, "B T"]:
    """Index of the last real token strictly before each position, -1 where there is none.

    Example:
        >>> import jax.numpy as jnp
        >>> previous_real_index(jnp.array([[False, True, False, True]])).tolist()
        [[-1, -1, 1, 1]]
    """
    positions = jnp.arange(mask.shape[1], dtype=jnp.int32)
    latest = jax.lax.cummax(jnp.where(mask, positions, -1), axis=1)
    return jnp.pad(latest, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]


def find_segments(
    segment_ids: SegmentIds, mask: Mask | None = None, carried: Int[Array, "B"] | None = None
) -> Segments:
    """Finds the runs of equal ids among the real tokens.

    Args:
        segment_ids: int [B, T].
        mask: bool [B, T], True = a real token; default all.
        carried: int32 [B], the id in which an earlier call ended; a first real token with
            another id starts a new run. Default: the first run continues what came before.

    Example:
        >>> import jax.numpy as jnp
        >>> find_segments(jnp.array([[7, 7, 3, 3]])).starts.tolist()
        [[False, False, True, False]]
    """
    if mask is None:
        mask = jnp.ones(segment_ids.shape, bool)
    segment_ids = segment_ids.astype(jnp.int32)
    if carried is None:
        carried = jnp.full(segment_ids.shape[0], NO_SEGMENT, jnp.int32)
    if segment_ids.shape[1] == 0:
        return Segments(mask, carried)
    before = previous_real_index(mask)
    ids_before = jnp.take_along_axis(segment_ids, jnp.maximum(before, 0), axis=1)
    outside = jnp.where(carried[:, None] == NO_SEGMENT, segment_ids, carried[:, None])
    starts = mask & (segment_ids != jnp.where(before >= 0, ids_before, outside))
    at_end = jnp.where(mask[:, -1], segment_ids.shape[1] - 1, before[:, -1])
    last = jnp.take_along_axis(segment_ids, jnp.maximum(at_end, 0)[:, None], axis=1)[:, 0]
    return Segments(starts, jnp.where(at_end >= 0, last, carried))


def find_packed_segments(
    segment_ids: SegmentIds | None, mask: Mask | None, carried: Int[Array, "B"] | None
) -> Segments | None:
    """``find_segments`` of a call that may be packed or not; None where it is not.

    Args:
        segment_ids: int [B, T], or None.
        mask: bool [B, T], True = a real token.
        carried: int32 [B], the id in which an earlier call ended, if that is known.

    Example:
        >>> find_packed_segments(None, None, None) is None
        True
    """
    return None if segment_ids is None else find_segments(segment_ids, mask, carried)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("real", "query_run", "key_run"),
    meta_fields=("is_causal", "cached", "window"),
)
@dataclasses.dataclass(frozen=True)
class Visibility:
    """Who sees whom, told by query and by key, so that any block of it can be made.

    Keys are ``cached`` tokens of earlier calls, which all queries may see, and then those of this
    call.

    Attributes:
        is_causal: a query sees keys up to its own position.
        cached: number of keys that come before the first query.
        real: bool [B, S], True = a real token; None = all.
        query_run: int [B, T], which run each query belongs to (``Segments.index``); None = all one.
        key_run: int [B, S], the same for keys.
        window: a query sees its own position and those before it, so many in all; None = all.
    """

    is_causal: bool = False
    cached: int = 0
    real: Array | None = None
    query_run: Array | None = None
    key_run: Array | None = None
    window: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing but the order decides."""
        arrays = (self.real, self.query_run, self.key_run)
        whole = self.is_causal and self.cached == 0 and self.window is None
        return whole and all(x is None for x in arrays)

    def block(self, query: Int[Array, "T"], key: Int[Array, "S"], num_keys: int) -> Visible:
        """Bool [B or 1, T', S'] for some queries and keys; no key from ``num_keys`` on is seen."""
        visible = jnp.broadcast_to(key < num_keys, (1, query.shape[0], key.shape[0]))
        if self.is_causal:
            visible = visible & (query[:, None] >= key - self.cached)
        if self.window is not None:
            visible = visible & (query[:, None] - self.window < key - self.cached)
        if self.real is not None:
            visible = visible & jnp.take(self.real, key, axis=1, mode="clip")[:, None, :]
        if self.query_run is not None and self.key_run is not None:
            of_query = jnp.take(self.query_run, query, axis=1, mode="clip")
            of_key = jnp.take(self.key_run, key, axis=1, mode="clip")
            visible = visible & (of_query[:, :, None] == of_key[:, None, :])
        return visible


def visible_rows(
    index: Int[Array, "T"],
    num_keys: int,
    *,
    is_causal: bool = False,
    mask: Mask | None = None,
    run: Int[Array, "B S"] | None = None,
) -> Visible:
    """Some rows of the matrix of who sees whom in self-attention: bool [B or 1, T, S].

    Args:
        index: positions of the queries.
        num_keys: S.
        is_causal: a query sees keys up to its own position.
        mask: bool [B, S], True = a real token.
        run: which run each position belongs to (``Segments.index``).

    Example:
        >>> import jax.numpy as jnp
        >>> visible_rows(jnp.array([0, 2]), 3, is_causal=True).astype(int).tolist()
        [[[1, 0, 0], [1, 1, 1]]]
    """
    keys = jnp.arange(num_keys, dtype=index.dtype)
    return Visibility(is_causal, 0, mask, run, run).block(index, keys, num_keys)


def visibility(
    num_queries: int,
    num_keys: int,
    *,
    is_causal: bool = False,
    mask: Mask | None = None,
    runs: Segments | None = None,
) -> Visible:
    """The dense bool [B or 1, T, S] matrix of who sees whom (small lengths; references).

    Example:
        >>> visibility(2, 2, is_causal=True).astype(int).tolist()
        [[[1, 0], [1, 1]]]
    """
    run = None if runs is None else runs.index
    return visible_rows(jnp.arange(num_queries), num_keys, is_causal=is_causal, mask=mask, run=run)
