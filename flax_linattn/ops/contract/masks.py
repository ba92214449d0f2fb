"""Masks and packed segments: which queries attend to which keys, decided once for all mechanisms.

A *segment* is a maximal span of valid tokens with one segment id. Tokens attend to each other only
within a segment; an id that occurs again later starts a new segment. Padding belongs to no segment:
ids at masked positions are ignored, so padding in the middle of a segment does not split it.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from flax_linattn.ops.contract.numerics import overwrite
from flax_linattn.typing import Array, Mask, SegmentIds, Visible

NO_SEGMENT = -(2**31)
"""Segment id of a packed state before any valid token: the first id of the next call continues
it."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Segments:
    """Start positions of packed segments, and the segment id at the end of each sequence.

    Attributes:
        starts: Boolean array of shape [B, T], True at the first valid token of each segment
            but the first; the first counts as a start only if its id differs from the carried one.
        last: Integer array of shape [B], the segment id at the end of each sequence; ``NO_SEGMENT``
            if it has no valid token and no id was carried in.
    """

    starts: Bool[Array, "B T"]
    last: Int[Array, "B"]

    @property
    def index(self) -> Int[Array, "B T"]:
        """Number of starts up to and including each position; equal within a segment."""
        return jnp.cumsum(self.starts, axis=1, dtype=jnp.int32)


def zero_padding(x: Array, mask: Array | None) -> Array:
    """Zeroes ``x`` [B, T, ...] where ``mask`` [B, T] is False, NaN and gradients included.

    The mask may have fewer axes than x. If its shape does not fit, x is returned unchanged, and the
    caller rejects the mask. A NumPy array becomes a JAX array, in float64 only where that is
    enabled.

    Example:
        >>> import jax.numpy as jnp
        >>> zero_padding(jnp.array([[1.0], [jnp.nan]]), jnp.array([True, False])).tolist()
        [[1.0], [0.0]]
    """
    x = jnp.asarray(x)
    if mask is None or x.shape[: mask.ndim] != mask.shape:
        return x
    return overwrite(x, ~mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), 0)


def static_max_length(length: int, mask: Array | None) -> int:
    """Returns the maximum number of valid tokens per sequence, or 0 if the mask is traced."""
    if mask is None:
        return length
    if isinstance(mask, jax.core.Tracer):
        return 0
    # NumPy, because jnp results are unknown while another array is being traced.
    return int(np.max(np.sum(np.asarray(mask), axis=1), initial=0))


def previous_real_index(mask: Mask) -> Int[Array, "B T"]:
    """Returns the index of the last valid token strictly before each position, or -1.

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
    """Finds the segments of equal ids among the valid tokens.

    Args:
        segment_ids: Integer array of shape [B, T].
        mask: Boolean array of shape [B, T]; True marks valid tokens. None means all are valid.
        carried: Integer array of shape [B], the id in which an earlier call ended; a first valid
            token with another id starts a new segment. None means the first segment continues.

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
    """Returns ``find_segments`` for a packed call, and None without ``segment_ids``.

    Args:
        segment_ids: Integer array of shape [B, T], or None.
        mask: Boolean array of shape [B, T]; True marks valid tokens.
        carried: Integer array of shape [B], the id in which an earlier call ended, if it is known.

    Example:
        >>> find_packed_segments(None, None, None) is None
        True
    """
    return None if segment_ids is None else find_segments(segment_ids, mask, carried)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("real", "query_segment", "key_segment", "is_sink"),
    meta_fields=("is_causal", "cached", "window", "sinks"),
)
@dataclasses.dataclass(frozen=True)
class Visibility:
    """Rule for which queries attend to which keys; it makes any block of the matrix.

    Keys are ``cached`` tokens of earlier calls, to which all queries may attend, followed by those
    of this call.

    Attributes:
        is_causal: Whether a query attends only to keys up to its own position.
        cached: Number of keys that come before the first query.
        real: Boolean array of shape [B, S]; True marks valid tokens. None means all are valid.
        query_segment: Integer array of shape [B, T], the segment of each query
            (``Segments.index``). None means that there is one segment.
        key_segment: Integer array of shape [B, S], the segment of each key.
        window: Number of positions that a query attends to, its own included. None means all.
        sinks: Number of first tokens of a segment that stay visible outside the window.
        is_sink: Boolean array of shape [B, S]; True marks these tokens. None means none.
    """

    is_causal: bool = False
    cached: int = 0
    real: Array | None = None
    query_segment: Array | None = None
    key_segment: Array | None = None
    window: int | None = None
    sinks: int = 0
    is_sink: Array | None = None

    @property
    def is_plain_causal(self) -> bool:
        """Whether the matrix is the causal triangle and nothing else."""
        arrays = (self.real, self.query_segment, self.key_segment)
        whole = self.is_causal and self.cached == 0 and self.window is None
        return whole and all(x is None for x in arrays)

    def block(self, query: Int[Array, "T"], key: Int[Array, "S"], num_keys: int) -> Visible:
        """Returns a Boolean block [B or 1, T', S']; keys from ``num_keys`` on are invisible."""
        visible = jnp.broadcast_to(key < num_keys, (1, query.shape[0], key.shape[0]))
        if self.is_causal:
            visible = visible & (query[:, None] >= key - self.cached)
        if self.window is not None:
            recent = query[:, None] - self.window < key - self.cached
            if self.is_sink is not None:
                recent = recent | jnp.take(self.is_sink, key, axis=1, mode="clip")[:, None, :]
            visible = visible & recent
        if self.real is not None:
            visible = visible & jnp.take(self.real, key, axis=1, mode="clip")[:, None, :]
        if self.query_segment is not None and self.key_segment is not None:
            of_query = jnp.take(self.query_segment, query, axis=1, mode="clip")
            of_key = jnp.take(self.key_segment, key, axis=1, mode="clip")
            visible = visible & (of_query[:, :, None] == of_key[:, None, :])
        return visible


def visible_rows(
    index: Int[Array, "T"],
    num_keys: int,
    *,
    is_causal: bool = False,
    mask: Mask | None = None,
    segment_index: Int[Array, "B S"] | None = None,
) -> Visible:
    """Returns some rows of the visibility matrix of self-attention, Boolean [B or 1, T, S].

    Args:
        index: Positions of the queries.
        num_keys: Number of keys S.
        is_causal: Whether a query attends only to keys up to its own position.
        mask: Boolean array of shape [B, S]; True marks valid tokens.
        segment_index: Integer array of shape [B, S], the segment of each position
            (``Segments.index``).

    Example:
        >>> import jax.numpy as jnp
        >>> visible_rows(jnp.array([0, 2]), 3, is_causal=True).astype(int).tolist()
        [[[1, 0, 0], [1, 1, 1]]]
    """
    keys = jnp.arange(num_keys, dtype=index.dtype)
    return Visibility(is_causal, 0, mask, segment_index, segment_index).block(index, keys, num_keys)


def visibility(
    num_queries: int,
    num_keys: int,
    *,
    is_causal: bool = False,
    mask: Mask | None = None,
    segments: Segments | None = None,
) -> Visible:
    """Returns the dense visibility matrix, Boolean [B or 1, T, S], for references.

    Example:
        >>> visibility(2, 2, is_causal=True).astype(int).tolist()
        [[[1, 0], [1, 1]]]
    """
    segment_index = None if segments is None else segments.index
    return visible_rows(
        jnp.arange(num_queries),
        num_keys,
        is_causal=is_causal,
        mask=mask,
        segment_index=segment_index,
    )
