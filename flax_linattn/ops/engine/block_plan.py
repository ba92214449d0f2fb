"""Blocks of queries and keys, and the loops over them for some batches and heads at a time.

Channels with their own weights count as heads here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn.ops.contract.masks import Visibility
from flax_linattn.ops.contract.numerics import match_varying_axes
from flax_linattn.ops.engine.forms import BlockSizes
from flax_linattn.typing import Array, Visible


@dataclasses.dataclass(frozen=True)
class BlockPlan:
    """Block sizes and lengths, known when the program is traced.

    Attributes:
        sizes: Batches, heads, queries and keys per block.
        queries: Number of queries T.
        keys: Number of keys S.
    """

    sizes: BlockSizes
    queries: int
    keys: int

    def block_pairs(self, visibility: Visibility) -> np.ndarray[Any, Any]:
        """Lists the pairs of query and key blocks to compute, [pairs, 2], row by row."""
        rows, columns = self.sizes.queries, self.sizes.keys
        row, column = np.indices((-(-self.queries // rows), -(-self.keys // columns)))
        nonempty = np.ones_like(row, bool)
        if visibility.is_causal:  # the block's first key comes before its last query
            nonempty = column * columns - visibility.cached < (row + 1) * rows
        if visibility.window is not None:  # its last key comes within the first query's window
            last = (column + 1) * columns - 1 - visibility.cached
            recent = row * rows - visibility.window < last
            if visibility.sinks and visibility.query_segment is not None:
                recent |= True  # a segment, and its sinks, may begin anywhere
            elif visibility.sinks:  # the first keys of the cache or of the call
                for first in {0, visibility.cached}:
                    until = first + visibility.sinks
                    recent |= (column * columns < until) & ((column + 1) * columns > first)
            nonempty &= recent
        return np.stack([row[nonempty], column[nonempty]], axis=1).astype(np.int32)

    def visible(self, visibility: Visibility, row: Array, column: Array) -> Visible:
        """Returns the visibility [B or 1, rows, columns] of a block, False beyond the ends."""
        query = row * self.sizes.queries + jnp.arange(self.sizes.queries, dtype=jnp.int32)
        key = column * self.sizes.keys + jnp.arange(self.sizes.keys, dtype=jnp.int32)
        return visibility.block(query, key, self.keys) & (query < self.queries)[:, None]

    def map_heads(
        self, function: Callable[..., Any], results: Any, per_batch: Any, *trees: Any
    ) -> Any:
        """Calls ``function(per_batch, *trees)`` for some batches and heads at a time.

        Arrays and results have shape [B, T, H, ...]; any other layout would be copied as a whole.

        Args:
            function: Function of slices of ``per_batch`` and ``trees`` that returns the same slices
                of the results.
            results: Tree of arrays into which the results are written.
            per_batch: Tree of arrays of shape [B, ...], shared by all heads.
            *trees: Trees of arrays of shape [B, T, H, ...].
        """

        def without_sums(_: None, *some: Any) -> tuple[Any, None]:
            return function(*some), None

        return self.map_heads_with_sums(without_sums, results, None, per_batch, *trees)[0]

    def map_heads_with_sums(
        self, function: Callable[..., Any], results: Any, sums: Any, per_batch: Any, *trees: Any
    ) -> tuple[Any, Any]:
        """Extends ``map_heads`` to a function that also adds to sums over all batches and heads.

        Args:
            function: Function (sums, per_batch, *trees) -> (slices of the results, sums).
            results: Tree of arrays, as in ``map_heads``.
            sums: Tree of arrays of any shapes, shared by all batches and heads.
            per_batch: Tree of arrays, as in ``map_heads``.
            *trees: Trees of arrays, as in ``map_heads``.

        Returns:
            The results and the sums.
        """
        batches, heads = self.sizes.batches, self.sizes.heads
        batch, _, num_heads = jax.tree.leaves(trees)[0].shape[:3]
        if (batches, heads) == (batch, num_heads):
            return function(sums, per_batch, *trees)

        def body(i: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            b, h = i // (num_heads // heads) * batches, i % (num_heads // heads) * heads

            def take_batches(x: Array) -> Array:
                return jax.lax.dynamic_slice_in_dim(x, b, batches, axis=0)

            def take_heads(x: Array) -> Array:
                return jax.lax.dynamic_slice_in_dim(take_batches(x), h, heads, axis=2)

            def put(x: Array, some: Array) -> Array:
                return jax.lax.dynamic_update_slice(x, some, (b, 0, h, 0)[: x.ndim])

            results, sums = carry
            some = jax.tree.map(take_batches, per_batch), *jax.tree.map(take_heads, trees)
            some_results, sums = function(sums, *some)
            return jax.tree.map(put, results, some_results), sums

        steps = (batch // batches) * (num_heads // heads)
        begin = match_varying_axes((results, sums, per_batch, trees))[:2]
        return jax.lax.fori_loop(0, steps, body, begin)


def take_block(x: Array, size: int, index: Array, axis: int) -> Array:
    """Returns block number ``index`` of ``size`` tokens."""
    return jax.lax.dynamic_slice_in_dim(x, index * size, size, axis=axis)


def put_block(x: Array, values: Array, index: Array, axis: int) -> Array:
    """Returns ``x`` with a block overwritten."""
    return jax.lax.dynamic_update_slice_in_dim(x, values, index * values.shape[axis], axis=axis)


def add_to_block(x: Array, values: Array, index: Array, axis: int) -> Array:
    """Returns ``x`` with values added to a block."""
    return put_block(x, take_block(x, values.shape[axis], index, axis) + values, index, axis)
