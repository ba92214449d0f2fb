"""Alternative computation of a function where nothing is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def primal_only(
    primal: Callable[..., Any], differentiated: Callable[..., Any], *arrays: Any
) -> Any:
    """Calls ``primal``; under differentiation calls ``differentiated`` instead.

    Args:
        primal: Function that is faster or takes less memory.
        differentiated: Function with the same results, which JAX differentiates, in the modes that
            it supports.
        *arrays: Trees of all arrays on which the two functions depend.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def loud(x):
        ...     print("differentiated")
        ...     return x * x
        >>> square = lambda x: primal_only(jnp.square, loud, x)
        >>> square(3.0).item()
        9.0
        >>> jax.grad(square)(3.0).item()
        differentiated
        6.0
    """
    return primal(*arrays)


@primal_only.defjvp
def _differentiated(
    primal: Callable[..., Any],
    differentiated: Callable[..., Any],
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
) -> tuple[Any, Any]:
    return jax.jvp(differentiated, primals, tangents)
