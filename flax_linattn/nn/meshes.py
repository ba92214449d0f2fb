"""Decorator that runs modules on meshes with explicit axes, the default of ``jax.make_mesh``."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import jax
from flax import nnx

from flax_linattn.ops.contract import meshes

P = ParamSpec("P")
R = TypeVar("R")


def automatic(
    num_shared_axes: int | Callable[[Any], int],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a module's call so that it runs on explicit mesh axes as on automatic ones.

    Its results are sharded as its first array along the first ``num_shared_axes`` axes. A state
    that was passed in keeps its sharding, so that a loop can carry it; a new one is sharded along
    the batch axis.
    Variables that the call sets, such as the counts of random streams, keep their split; others
    are not touched, so that a function that is traced may close over a module. See
    :func:`flax_linattn.ops.contract.meshes.run_on_automatic_axes`.

    Args:
        num_shared_axes: Number of leading axes that outputs share with the first array, 2 for [B,
            T, ...]; or a function of the module that returns this number.

    Raises:
        TypeError: If no argument is an array (raised by the call, on explicit axes).

    Example:
        >>> import jax.numpy as jnp
        >>> class Double(nnx.Module):
        ...     @automatic(1)
        ...     def __call__(self, x):
        ...         return 2 * x
        >>> Double()(jnp.ones(2)).tolist()  # no mesh
        [2.0, 2.0]
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            module, *inputs = cast(Any, args)
            if meshes.find_explicit_mesh((inputs, kwargs)) is None:
                return method(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            parts: Any = nnx.split(module, nnx.Param, ...)
            graphdef, params, others = parts

            def run(params: Any, others: Any, inputs: Any, kwargs: Any) -> tuple[Any, Any]:
                again: Any = nnx.merge(graphdef, params, others, copy=True)
                results = cast(Any, method)(again, *inputs, **kwargs)
                return results, _changed_variables(others, nnx.state(again, nnx.Not(nnx.Param)))

            def split(results: tuple[Any, Any]) -> Any:
                first = _first_array(list(given.values())[1:], method)
                axes = meshes.partition_axes(first)[
                    : num_shared_axes(module) if callable(num_shared_axes) else num_shared_axes
                ]
                y = _result_axes(results[0], axes, given.get("state"))
                return y, _previous_axes(results[1], others)

            results: R
            results, changes = meshes.run_on_automatic_axes(
                run, (params, others, inputs, kwargs), split
            )
            if changes:
                nnx.update(module, nnx.from_flat_state(changes.items()))
            return results

        return call

    return decorate


def _first_array(arguments: Any, method: Any) -> Any:
    for x in jax.tree.leaves(arguments):
        if hasattr(x, "ndim"):
            return x
    raise TypeError(
        f"{method.__qualname__} is split over a mesh like its first array argument, "
        "but it got no array; pass a NumPy or JAX array."
    )


def _changed_variables(before: Any, after: Any) -> dict[Any, Any]:
    """Variables by path that the call replaced or added."""
    old = dict(nnx.to_flat_state(before))

    def num_shared_axes(path: Any, variable: Any) -> bool:
        values = (jax.tree.leaves(v) for v in (old.get(path), variable))
        return all(a is b for a, b in itertools.zip_longest(*values))

    return {path: v for path, v in nnx.to_flat_state(after) if not num_shared_axes(path, v)}


def _previous_axes(changes: dict[Any, Any], before: Any) -> Any:
    """Axes of the previous values where shapes are unchanged, else none."""
    old = dict(nnx.to_flat_state(before))

    def axes(new: Any, old: Any) -> Any:
        return meshes.partition_axes(old) if new.shape == old.shape else (None,) * new.ndim

    def alike(a: Any, b: Any) -> bool:
        structures: list[Any] = [jax.tree.structure(x) for x in (a, b)]
        return bool(structures[0] == structures[1])

    return {
        path: jax.tree.map(axes, v, old[path]) if alike(v, old.get(path)) else _pad_axes(v, ())
        for path, v in changes.items()
    }


def _result_axes(results: Any, axes: tuple[Any, ...], state: Any) -> Any:
    """Sharded axes of a call's outputs, and of its state if it returns both."""
    if type(results) is not tuple:
        return _pad_axes(results, axes)
    y, after = results
    structure: Any = jax.tree.structure(state)
    if jax.tree.structure(after) == structure:
        return _pad_axes(y, axes), jax.tree.map(meshes.partition_axes, state)
    return _pad_axes(y, axes), _pad_axes(after, axes[:1])


def _pad_axes(tree: Any, axes: tuple[Any, ...]) -> Any:
    """These leading axes for every array of a tree, padded with None."""
    return jax.tree.map(lambda x: (axes + (None,) * x.ndim)[: x.ndim], tree)
