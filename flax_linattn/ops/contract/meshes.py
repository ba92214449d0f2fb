"""Meshes with explicit axes, the default of ``jax.make_mesh``, where shardings are part of types.

On such axes JAX rejects operations with an ambiguous sharding: a loop that starts from zeros and
continues with examples of a sharded batch, a gather, a reshape. :func:`run_on_automatic_axes` runs
such code as on a mesh with automatic axes, where XLA chooses the shardings of intermediate results,
and sets only the shardings of the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

Tree = TypeVar("Tree")
Axes = Any
"""Mesh axes over which an axis of an array is sharded: a name, several names, or None."""


def run_on_automatic_axes(
    function: Callable[..., Tree], arguments: Sequence[Any], split: Callable[[Tree], Any]
) -> Tree:
    """Calls ``function(*arguments)`` with the explicit axes of their mesh as automatic ones.

    Without explicit axes it is a plain call.

    Args:
        function: Function that takes all arrays of the mesh as arguments and closes over none.
        arguments: Arguments of the function, trees with arrays.
        split: Function of the results that returns a tree of the same structure, with the mesh axes
            over which each array is sharded (:func:`partition_axes`) as leaves. Axes that do not
            divide evenly stay whole.

    Example:
        >>> import jax.numpy as jnp
        >>> y = run_on_automatic_axes(jnp.square, [jnp.ones(3)], lambda y: ("data",))  # no mesh
        >>> y.tolist()
        [1.0, 1.0, 1.0]
    """
    mesh = find_explicit_mesh(arguments)
    if mesh is None:
        return function(*arguments)
    # Not jax.sharding.auto_axes: it requires the output shardings in advance, and fails on arrays
    # of a mesh that is not set and on axes that do not divide evenly.
    inner = mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))
    with jax.sharding.use_abstract_mesh(inner):
        replicated = NamedSharding(inner, PartitionSpec())
        results = function(*jax.tree.map(lambda x: _reshard(x, replicated), tuple(arguments)))
    resharded: Tree = jax.tree.map(
        lambda x, axes: _reshard_evenly(x, mesh, axes), results, split(results)
    )
    return resharded


def find_explicit_mesh(tree: Any) -> AbstractMesh | None:
    """Returns the current mesh, or that of the tree's arrays, if it has explicit axes."""
    here = jax.sharding.get_abstract_mesh()
    if not here.empty:
        return here if here.explicit_axes else None
    for leaf in jax.tree.leaves(tree):
        mesh = _mesh(leaf)
        if mesh is not None and mesh.explicit_axes:
            return mesh
    return None


def partition_axes(x: Any) -> tuple[Axes, ...]:
    """Returns the explicit mesh axes over which each axis of an array is sharded.

    Example:
        >>> import jax.numpy as jnp
        >>> partition_axes(jnp.ones((2, 3)))
        (None, None)
    """
    if _mesh(x) is None:
        return (None,) * x.ndim
    spec = tuple(jax.typeof(x).sharding.spec)
    return spec + (None,) * (x.ndim - len(spec))


def _mesh(x: Any) -> AbstractMesh | None:
    mesh = jax.typeof(x).sharding.mesh if isinstance(x, jax.Array) else None
    return None if mesh is None or mesh.empty else mesh


def _reshard_evenly(x: Any, mesh: AbstractMesh, axes: Sequence[Axes]) -> Any:
    """Shards axes that divide evenly, using each mesh axis at most once."""
    used: set[str] = set()
    spec: list[Axes] = []
    for size, given in zip(x.shape, axes, strict=True):
        names = (given,) if isinstance(given, str) else given or ()
        fits = used.isdisjoint(names) and size % math.prod(mesh.shape[n] for n in names) == 0
        spec.append(given if fits else None)
        used.update(names if fits else ())
    return _reshard(x, NamedSharding(mesh, PartitionSpec(*spec)))


def _reshard(x: Any, sharding: NamedSharding) -> Any:
    return x if _mesh(x) is None else jax.sharding.reshard(x, sharding)
