"""Dropout with explicit keys, or as ``model.train()`` and ``model.eval()`` say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn.checks import rate
from flax_linattn.nn.random_bits import random_bits
from flax_linattn.ops.contract import meshes
from flax_linattn.typing import Array


def make_dropout(dropout_rate: float, rngs: nnx.Rngs) -> nnx.Dropout:
    """Dropout that waits for a key, or for ``model.train()``.

    Args:
        dropout_rate: share of features dropped in training.
        rngs: where it has a stream "dropout", keys may come from that, as Flax's modules do.

    Raises:
        ValueError: the rate is not in [0, 1).
    """
    rate(dropout_rate=dropout_rate)
    own = rngs if "dropout" in rngs else None
    return nnx.Dropout(dropout_rate, deterministic=True, rngs=own)


def resolve_dropout_key(
    dropout: nnx.Dropout, key: Array | None, drop_path_rate: float = 0.0
) -> Array | None:
    """The key of a call: the given one, or after ``model.train()`` the next of the module's own.

    A module asks once, at the top of its call, and hands keys to its parts, so that a part that
    is computed again for its gradient drops the same.

    Args:
        dropout: of the module; what it says of training holds for drop path, too.
        key: of the call.
        drop_path_rate: of the module's blocks, which need a key where dropout has rate 0.

    Raises:
        ValueError: the module is to train, and there is no key.

    Example:
        >>> dropout = make_dropout(0.5, nnx.Rngs(params=0, dropout=1))
        >>> resolve_dropout_key(dropout, None) is None
        True
        >>> dropout.train()
        >>> resolve_dropout_key(dropout, None).dtype
        key<fry>
    """
    if key is not None or dropout.deterministic or not (dropout.rate or drop_path_rate):
        return key
    if dropout.rngs is None:
        raise ValueError(
            "dropout is on, after model.train(), and there is no key for it: pass dropout_key to "
            "the call, or make the model with a stream for it, nnx.Rngs(params=0, dropout=1)."
        )
    return dropout.rngs()


def split_key(key: Array | None, count: int) -> list[Array | None]:
    """Splits a dropout key; no key gives no keys.

    Example:
        >>> split_key(None, 2)
        [None, None]
    """
    return [None] * count if key is None else list(jax.random.split(key, count))


def apply_dropout(dropout: nnx.Dropout, x: Array, key: Array | None) -> Array:
    """Dropout with an explicit key; none without one.

    Its bits are ``random_bits``: on a CPU they cost a quarter of what ``nnx.Dropout``'s do.

    Args:
        dropout: whose rate it is.
        x: any array.
        key: a random key; None = nothing is dropped.

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
        dropped = jnp.uint32(min(round(dropout.rate * 2**32), 2**32 - 1))
        kept = random_bits(key, x.shape) >= dropped
        return jnp.where(kept, x / (1 - dropout.rate), jnp.zeros_like(x))

    return meshes.run_on_automatic_axes(drop, (x, key), lambda y: meshes.partition_axes(x))
