"""Checks of tokens that every embedding makes."""

from __future__ import annotations

import jax.numpy as jnp

from flax_linattn.typing import Array


def check_tokens(x: Array) -> None:
    """Refuses what is no tokens.

    Raises:
        TypeError: The dtype is not an integer one.

    Example:
        >>> import jax.numpy as jnp
        >>> check_tokens(jnp.ones(3))
        Traceback (most recent call last):
        ...
        TypeError: tokens must have an integer dtype, got float32.
    """
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"tokens must have an integer dtype, got {x.dtype}.")
