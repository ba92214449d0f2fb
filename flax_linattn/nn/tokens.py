"""Validation of token ids, shared by all embeddings of tokens."""

from __future__ import annotations

import jax.numpy as jnp

from flax_linattn.typing import Array


def check_tokens(x: Array) -> None:
    """Raises TypeError unless tokens have an integer dtype.

    Raises:
        TypeError: If the dtype is not an integer dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> check_tokens(jnp.ones(3))
        Traceback (most recent call last):
        ...
        TypeError: tokens must have an integer dtype, got float32.
    """
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"tokens must have an integer dtype, got {x.dtype}.")
