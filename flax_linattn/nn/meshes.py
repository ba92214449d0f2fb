"""Modules on meshes with explicit axes, the default of ``jax.make_mesh``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import jax
from flax import nnx

from flax_linattn.ops.contract import meshes

P = ParamSpec("P")
R = TypeVar("R")


def automatic(kept: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a module's call: on explicit mesh axes it runs as on automatic ones.

    Its results lie as its first array: split alike along the first ``kept`` axes. A state that came
    in goes out as it came, so that a loop can carry it; a new one is split along the batch. See
    :func:`flax_linattn.ops.contract.meshes.automatic`.

    Args:
        kept: leading axes that the output has of the first array: 2 for [B, T, ...].

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
            if meshes.explicit_mesh((inputs, kwargs)) is None:
                return method(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            graphdef, params, others = _parted(module)

            def run(params: Any, others: Any, inputs: Any, kwargs: Any) -> tuple[Any, Any]:
                again: Any = nnx.merge(graphdef, params, others, copy=True)
                results = cast(Any, method)(again, *inputs, **kwargs)
                return results, _parted(again)[2]

            def split(results: tuple[Any, Any]) -> Any:
                arrays = (
                    x for x in jax.tree.leaves(list(given.values())[1:]) if hasattr(x, "ndim")
                )
                axes = meshes.axes_of(next(arrays))[:kept]
                return _axes_of(results[0], axes, given.get("state")), _leading(results[1], ())

            results: R
            results, after = meshes.automatic(run, (params, others, inputs, kwargs), split)
            if jax.tree.leaves(after):  # random streams, which it may have drawn from
                nnx.update(module, after)
            return results

        return call

    return decorate


def _parted(module: Any) -> Any:
    """Structure, parameters, other variables."""
    return nnx.split(module, nnx.Param, ...)


def _axes_of(results: Any, axes: tuple[Any, ...], state: Any) -> Any:
    """What a call's output is split over, and its state where it returns both."""
    if type(results) is not tuple:
        return _leading(results, axes)
    y, after = results
    structure: Any = jax.tree.structure(state)
    if jax.tree.structure(after) == structure:
        return _leading(y, axes), jax.tree.map(meshes.axes_of, state)
    return _leading(y, axes), _leading(after, axes[:1])


def _leading(tree: Any, axes: tuple[Any, ...]) -> Any:
    """For every array these leading axes, and no others."""
    return jax.tree.map(lambda x: (axes + (None,) * x.ndim)[: x.ndim], tree)
