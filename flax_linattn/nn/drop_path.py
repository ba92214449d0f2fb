"""Stochastic depth: whole branches of a residual network left out in training."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from flax_linattn.checks import rate as check_rate
from flax_linattn.typing import Array


def apply_drop_path(x: Array, rate: float, key: Array | None) -> Array:
    """Drops all of a row with probability ``rate``, and scales what stays by 1 / (1 - rate).

    Of a residual branch: the row then passes its block as if it were not there (Huang et al.,
    "Deep networks with stochastic depth", 2016; the scale is timm's, so that the mean stays).

    Args:
        x: A residual branch [B, ...].
        rate: Share of rows to drop, in [0, 1).
        key: A random key; None = nothing is dropped.

    Returns:
        The branch [B, ...], in its dtype.

    Raises:
        OptionError: The rate is outside [0, 1).

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> y = apply_drop_path(jnp.ones((1000, 2)), 0.5, jax.random.key(0))
        >>> sorted(set(y.ravel().tolist())), bool((y[:, 0] == y[:, 1]).all())
        ([0.0, 2.0], True)
    """
    check_rate(drop_path_rate=rate)
    if key is None or rate == 0:
        return x
    kept = jax.random.bernoulli(key, 1 - rate, (x.shape[0],) + (1,) * (x.ndim - 1))
    # Not a product with 0: a branch that is dropped gives no NaN, and no gradient of one.
    return jnp.where(kept, x / (1 - rate), jnp.zeros_like(x))
