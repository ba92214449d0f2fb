"""Array operations on time in tiles and in tokens, for scans with a hand-derived gradient."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from flax_linattn.typing import Array

Tree = TypeVar("Tree")


def swap_heads(x: Array) -> Array:
    """Swaps time and heads: [B, T, H, ...] to [B, H, T, ...], and back."""
    return jnp.swapaxes(x, 1, 2)


def fill(x: Array, size: int, **how: Any) -> Array:
    """Pads ``x`` [B, T, ...] at the end to a multiple of ``size``; options as in ``jnp.pad``."""
    filler = -x.shape[1] % size
    return jnp.pad(x, ((0, 0), (0, filler), *((0, 0),) * (x.ndim - 2)), **how) if filler else x


def split_tiles(tree: Tree, size: int) -> Tree:
    """Splits leaves [B, n size, ...] into [B, n, size, ...]."""

    def reshape(x: Array) -> Array:
        return x.reshape(x.shape[0], x.shape[1] // size, size, *x.shape[2:])

    return jax.tree.map(reshape, tree)


def join_tiles(tree: Tree, length: int) -> Tree:
    """Joins leaves [B, n, size, ...] to [B, T, ...]; inverts ``fill`` and ``split_tiles``."""

    def reshape(x: Array) -> Array:
        return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])

    return trim(jax.tree.map(reshape, tree), length)


def trim(tree: Tree, length: int) -> Tree:
    """Returns the first T positions of leaves [B, T', ...]."""
    return jax.tree.map(lambda x: x[:, :length], tree)


def shift_right(first: Tree, after: Tree) -> Tree:
    """Returns the values before each position: ``first`` [B, ...], then ``after`` but the last."""
    return jax.tree.map(lambda f, a: jnp.concatenate([f[:, None], a[:, :-1]], axis=1), first, after)


def shift_left(before: Tree, last: Tree) -> Tree:
    """Returns the values after each position: ``before`` but the first, then ``last`` [B, ...]."""
    return jax.tree.map(lambda b, e: jnp.concatenate([b[:, 1:], e[:, None]], axis=1), before, last)


def take_position(tree: Tree, index: int) -> Tree:
    """Takes leaves [B, ...] of [B, T, ...] at a fixed index."""
    return jax.tree.map(lambda x: x[:, index], tree)


def take_token(x: Array, t: Array) -> Array:
    """Returns ``x[:, t]`` for the index of a loop."""
    return jax.lax.dynamic_index_in_dim(x, t, axis=1, keepdims=False)


def gather_time(x: Array, index: Array) -> Array:
    """Gathers [B, S, ...] at ``index`` [B, T], giving [B, T, ...]."""
    index = index.reshape(*index.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index, axis=1)


def put_token(x: Array, value: Array, t: Array) -> Array:
    """Returns ``x`` with ``value`` at time ``t``; in place if a loop carries x."""
    return jax.lax.dynamic_update_index_in_dim(x, value, t, axis=1)
