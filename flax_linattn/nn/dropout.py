"""Dropout with explicit keys, or by ``model.train()`` and ``model.eval()``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn.checks import check_rate
from flax_linattn.nn.random_bits import random_bits
from flax_linattn.ops.contract import meshes
from flax_linattn.typing import Array


def make_dropout(dropout_rate: float, rngs: nnx.Rngs) -> nnx.Dropout:
    """Makes dropout that is disabled until it gets a key or ``model.train()`` is called.

    Args:
        dropout_rate: Fraction of features dropped during training.
        rngs: Random number generators; its stream "dropout", if present, gives keys as in Flax.

    Raises:
        ValueError: If the rate is not in [0, 1).
    """
    check_rate(dropout_rate=dropout_rate)
    own = rngs if "dropout" in rngs else None
    return nnx.Dropout(dropout_rate, deterministic=True, rngs=own)


def resolve_dropout_key(
    dropout: nnx.Dropout, key: Array | None, *other_rates: float
) -> Array | None:
    """Returns the given key or, in training mode, the next key of the module's own stream.

    A module calls this once, at the top of its call, and passes keys to its parts, so that a part
    that is recomputed for its gradient drops the same features.

    Args:
        dropout: Dropout of the module, whose training mode applies to all of its rates.
        key: Random key of the call, or None.
        *other_rates: Rates of drop path and of dropout of attention weights, which need a key even
            if the dropout rate is 0.

    Raises:
        ValueError: If the module is in training mode, and there is no key.

    Example:
        >>> dropout = make_dropout(0.5, nnx.Rngs(params=0, dropout=1))
        >>> resolve_dropout_key(dropout, None) is None
        True
        >>> dropout.train()
        >>> resolve_dropout_key(dropout, None).dtype
        key<fry>
    """
    if key is not None or dropout.deterministic or not any((dropout.rate, *other_rates)):
        return key
    if dropout.rngs is None:
        raise ValueError(
            "dropout is active after model.train(), but it has no key; pass "
            "dropout_key to the call, or create the model with an rng stream for "
            "dropout: nnx.Rngs(params=0, dropout=1)."
        )
    return dropout.rngs()


def split_key(key: Array | None, count: int) -> list[Array | None]:
    """Splits a dropout key into ``count`` keys; None gives a list of None.

    Example:
        >>> split_key(None, 2)
        [None, None]
    """
    return [None] * count if key is None else list(jax.random.split(key, count))


def apply_dropout(dropout: nnx.Dropout, x: Array, key: Array | None) -> Array:
    """Applies dropout with an explicit key; without a key it returns ``x``.

    The bits come from ``random_bits``; on a CPU they cost a quarter of the bits of ``nnx.Dropout``.

    Args:
        dropout: Dropout module, which gives the rate.
        x: Array of any shape.
        key: Random key; None drops nothing.

    Example:
        >>> import jax.numpy as jnp
        >>> dropout = make_dropout(0.5, nnx.Rngs(0))
        >>> y = apply_dropout(dropout, jnp.ones((2, 1000)), jax.random.key(0))
        >>> sorted(set(y.ravel().tolist())), round(float(y.mean()), 1)
        ([0.0, 2.0], 1.0)
    """
    if key is None or not dropout.rate:
        return x

    def drop(x: Array, key: Array) -> Array:
        threshold = jnp.uint32(min(round(dropout.rate * 2**32), 2**32 - 1))
        keep = random_bits(key, x.shape) >= threshold
        return jnp.where(keep, x / (1 - dropout.rate), jnp.zeros_like(x))

    return meshes.run_on_automatic_axes(drop, (x, key), lambda y: meshes.partition_axes(x))
