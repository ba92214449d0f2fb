"""Time in tiles and in tokens: the array handling of scans with a gradient of their own."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from flax_linattn.typing import Array

Tree = TypeVar("Tree")


def fill(x: Array, size: int, **how: Any) -> Array:
    """``x`` [B, T, ...] padded at the end to a multiple of ``size``; ``how`` as in ``jnp.pad``."""
    filler = -x.shape[1] % size
    return jnp.pad(x, ((0, 0), (0, filler), *((0, 0),) * (x.ndim - 2)), **how) if filler else x


def split_tiles(tree: Tree, size: int) -> Tree:
    """Leaves [B, n size, ...] -> [B, n, size, ...]."""

    def reshape(x: Array) -> Array:
        return x.reshape(x.shape[0], x.shape[1] // size, size, *x.shape[2:])

    return jax.tree.map(reshape, tree)


def join_tiles(tree: Tree, length: int) -> Tree:
    """Leaves [B, n, size, ...] -> [B, T, ...]: ``split_tiles`` and ``fill`` undone."""

    def reshape(x: Array) -> Array:
        return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])

    return trim(jax.tree.map(reshape, tree), length)


def trim(tree: Tree, length: int) -> Tree:
    """The first T of leaves [B, T', ...]."""
    return jax.tree.map(lambda x: x[:, :length], tree)


def shift_right(first: Tree, after: Tree) -> Tree:
    """What stands before each position: ``first`` [B, ...], then all of ``after`` but the last."""
    return jax.tree.map(lambda f, a: jnp.concatenate([f[:, None], a[:, :-1]], axis=1), first, after)


def shift_left(before: Tree, last: Tree) -> Tree:
    """What stands after each position: all of ``before`` but the first, then ``last`` [B, ...]."""
    return jax.tree.map(lambda b, e: jnp.concatenate([b[:, 1:], e[:, None]], axis=1), before, last)


def take_position(tree: Tree, index: int) -> Tree:
    """Leaves [B, T, ...] -> [B, ...] at a fixed index."""
    return jax.tree.map(lambda x: x[:, index], tree)


def take_token(x: Array, t: Array) -> Array:
    """``x[:, t]`` at an index that a loop counts."""
    return jax.lax.dynamic_index_in_dim(x, t, axis=1, keepdims=False)


def gather_time(x: Array, index: Array) -> Array:
    """[B, S, ...] at ``index`` [B, T] -> [B, T, ...]."""
    index = index.reshape(*index.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index, axis=1)


def put_token(x: Array, value: Array, t: Array) -> Array:
    """``x`` with ``value`` at time ``t``; in place where a loop carries x."""
    return jax.lax.dynamic_update_index_in_dim(x, value, t, axis=1)
