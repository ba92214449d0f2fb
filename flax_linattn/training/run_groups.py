"""Map a computation of one run over several runs: each device processes its runs in groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Jaxpr, jaxprs_in_params
from jax.sharding import PartitionSpec

from flax_linattn.training.placement import DATA, Placement

CACHE = 2**20
"""Bytes of the second-level cache of a CPU's core, about."""

OfRuns = Callable[..., Any]
"""A function of arrays with R in front, all of them, that returns such."""


def over_runs(of_one: Callable[..., Any], placement: Placement) -> OfRuns:
    """Returns a function over R runs, to be compiled, from a function over one run.

    Each device takes its own runs in groups of ``placement.runs_at_once``; the last group may be
    smaller, which costs the compilation of a second program. By default all runs go at once, except
    on CPUs: there the arrays of several runs push each other out of the cache, so that a group is
    as large as keeps its largest arrays in the cache (``fitting_at_once``).

    Args:
        of_one: a function of arrays, or of trees of them.
        placement: where the runs are.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax_linattn.training import Parallel
        >>> placement = Parallel("none", runs_at_once=2).place(1, num_runs=5)
        >>> over_runs(jnp.sum, placement)(jnp.ones((5, 3))).tolist()
        [3.0, 3.0, 3.0, 3.0, 3.0]
    """

    def of_runs(*arrays: Any) -> Any:
        runs = jax.tree.leaves(arrays)[0].shape[0] // placement.num_shards
        size = placement.runs_at_once
        if size is None:
            size = fitting_at_once(of_one, arrays, runs) if placement.platform == "cpu" else runs
        if size >= runs:
            return jax.vmap(of_one)(*arrays)
        groups = _in_groups(of_one, size)
        if placement.num_shards == 1:
            return groups(*arrays)
        # A loop over an axis that is split would fetch each run from its device; so each loops
        # over its own. What mechanisms carry through their scans is not marked as split: no check.
        own = PartitionSpec(DATA)
        split = jax.shard_map(
            groups, mesh=placement.mesh, in_specs=own, out_specs=own, check_vma=False
        )
        return split(*arrays)

    return of_runs


def _in_groups(of_one: Callable[..., Any], size: int) -> OfRuns:
    def one_after_another(*arrays: Any) -> Any:
        # A group of one is no vmap of one: its operations are those of a single run.
        batch_size = None if size == 1 else size
        return jax.lax.map(lambda own: of_one(*own), arrays, batch_size=batch_size)

    return one_after_another


def fitting_at_once(of_one: Callable[..., Any], arrays: Any, runs: int) -> int:
    """How many runs at once keep their largest arrays in ``CACHE``.

    It divides the number of runs, so that all groups are of one size.

    Args:
        of_one: what is computed of one run.
        arrays: its arguments, with R in front.
        runs: how many go through a device.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((6, 100_000))                              # 400 kB of each run
        >>> fitting_at_once(jnp.cumsum, [x], 6), fitting_at_once(jnp.cumsum, [x[:, :9]], 6)
        (2, 6)
    """
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), arrays)
    largest = _largest(jax.make_jaxpr(of_one)(*one).jaxpr)
    most = CACHE // max(largest, 1)
    return max(size for size in range(1, runs + 1) if runs % size == 0 and size <= max(most, 1))


def _largest(jaxpr: Jaxpr) -> int:
    """Bytes of the largest array that a program computes."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [_largest(inner) for inner in jaxprs_in_params(equation.params)]
        arrays: list[Any] = [variable.aval for variable in equation.outvars]
        sizes += [array.size * array.dtype.itemsize for array in arrays]
    return max(sizes)
