"""Counter-based random bits that XLA can fuse with their use (Threefry-2x32 with 13 rounds)."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from flax_linattn.typing import Array

ROUNDS = 13
"""Minimum number of rounds without a known statistical flaw (Salmon et al., 2011, and Random123).
"""
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def random_bits(key: Array, shape: Sequence[int]) -> Array:
    """Random bits for each element of an array: Threefry-2x32 of its index, with 13 rounds.

    ``jax.random.bits`` takes 20 rounds, and writes all bits to memory on a CPU. These bits depend
    only on the key and the index: a ``threefry`` key gives the same bits under every sharding and
    compiler.

    Args:
        key: Random key of ``jax.random``.
        shape: Shape of the result.

    Returns:
        uint32 of that shape.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> bits = random_bits(jax.random.key(0), (1000, 100))
        >>> bits.dtype, round(float((bits < jnp.uint32(2**31)).mean()), 1)
        (dtype('uint32'), 0.5)
    """
    words = jax.random.bits(key, (2,), jnp.uint32)  # of a key of any kind
    last = max(len(shape) - 1, 0)
    row = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(last)):
        row += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    column = jax.lax.broadcasted_iota(jnp.uint32, shape, last) if shape else row
    return threefry(words, row, column)[0]


def threefry(key: Array, first: Array, second: Array, rounds: int = ROUNDS) -> tuple[Array, Array]:
    """Threefry-2x32, the block cipher of JAX's random numbers.

    Args:
        key: Random key, uint32 [2].
        first: One half of the counter, uint32.
        second: The other half of the counter, uint32 of the same shape.
        rounds: Number of rounds.

    Returns:
        Both halves of the result, uint32.

    Example:
        >>> import jax.numpy as jnp
        >>> zero = jnp.uint32(0)
        >>> [f"{int(word):08x}" for word in threefry(jnp.zeros(2, jnp.uint32), zero, zero)]
        ['9d1c5ec6', '8bd50731']
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    first, second = first + keys[0], second + keys[1]
    for number in range(rounds):
        by = _ROTATIONS[number // 4 % 2][number % 4]
        first = first + second
        second = (second << jnp.uint32(by)) | (second >> jnp.uint32(32 - by))
        second = second ^ first
        if number % 4 == 3:
            done = number // 4 + 1
            first = first + keys[done % 3]
            second = second + keys[(done + 1) % 3] + jnp.uint32(done)
    return first, second
