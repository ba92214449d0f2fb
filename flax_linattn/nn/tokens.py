"""Validation of token ids, shared by all embeddings of tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn.typing import Array


def check_tokens(x: Array, num_tokens: int) -> None:
    """Raises unless tokens are integers from 0 to N - 1.

    Values are checked outside ``jit`` only, where they are known. Under ``jit`` a token out of
    range gives NaN, which ``checkify`` reports with ``nan_checks``.

    Args:
        x: Integer array of tokens.
        num_tokens: Vocabulary size N.

    Raises:
        TypeError: If the dtype is not an integer dtype.
        ValueError: If a token is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> check_tokens(jnp.array([0, 5]), 5)
        Traceback (most recent call last):
        ...
        ValueError: expected tokens from 0 to 4, got 5; choose a larger vocabulary...
    """
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"tokens must have an integer dtype, got {x.dtype}.")
    if isinstance(x, jax.core.Tracer) or x.size == 0:
        return
    tokens = np.asarray(x)
    for token in (int(tokens.min()), int(tokens.max())):
        if not 0 <= token < num_tokens:
            raise ValueError(
                f"expected tokens from 0 to {num_tokens - 1}, got {token}; choose a larger "
                "vocabulary, or encode unknown tokens by a token of their own."
            )
