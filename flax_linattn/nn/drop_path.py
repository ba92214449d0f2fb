"""Stochastic depth: drops whole residual branches for some rows during training."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from flax_linattn.checks import check_rate
from flax_linattn.typing import Array


def apply_drop_path(x: Array, rate: float, key: Array | None) -> Array:
    """Drops whole rows with probability ``rate``, and scales the others by 1 / (1 - rate).

    On a residual branch, a dropped row passes the block unchanged (Huang et al., "Deep networks
    with stochastic depth", 2016; the scale is timm's, which keeps the mean).

    Args:
        x: Output of a residual branch, of shape [B, ...].
        rate: Probability of dropping a row, in [0, 1).
        key: Random key; None drops nothing.

    Returns:
        The branch of shape [B, ...], in its dtype.

    Raises:
        OptionError: If the rate is outside [0, 1).

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
    keep = jax.random.bernoulli(key, 1 - rate, (x.shape[0],) + (1,) * (x.ndim - 1))
    # Not a product with 0: NaN in a dropped branch must reach neither outputs nor gradients.
    return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))
