"""Inputs of a mechanism, made once for every program that is compared on them."""

from __future__ import annotations

import jax
import numpy as np

from flax_linattn import ops
from flax_linattn.bench.timing import normal
from flax_linattn.ops.engine.features import unit_length
from flax_linattn.typing import Array

NOISE = 0.5
"""Standard deviation of what a layer adds to its biases before the activation of a gate."""


def inputs(
    mechanism: ops.Mechanism,
    length: int,
    *,
    batch_size: int = 1,
    num_heads: int = 8,
    dim: int = 64,
) -> list[Array]:
    """Normal queries, keys and values, and gates as a layer that was just made gives them.

    Gates are ``activation(bias_init + 0.5 * normal)``. Queries and keys have length 1 where the
    mechanism wants that. Float32, of a fixed seed.

    Args:
        mechanism: whose they are.
        length: T.
        batch_size: B.
        num_heads: H.
        dim: K and V.

    Returns:
        q [B, T, H, K], or [H, K] where it is learned, k, v [B, T, H, K], and the mechanism's
        ``token_arguments`` [B, T, ...] in their order.

    Example:
        >>> arrays = inputs(ops.get_mechanism("gated_delta"), 16, dim=4)
        >>> [x.shape for x in arrays]
        [(1, 16, 8, 4), (1, 16, 8, 4), (1, 16, 8, 4), (1, 16, 8), (1, 16, 8)]
    """
    tokens = (batch_size, length, num_heads, dim)
    learned = mechanism.capabilities.learned_query
    declared = mechanism.token_arguments
    shapes = [argument.shape(num_heads, dim, dim) for argument in declared]
    q, k, v, *noise = normal(
        tokens[2:] if learned else tokens,
        tokens,
        tokens,
        *((batch_size, length, *shape) for shape in shapes),
    )
    if mechanism.capabilities.unit_vectors:
        q, k = unit_length(q), unit_length(k)
    gates = []
    for argument, shape, x in zip(declared, shapes, noise, strict=True):
        bias = argument.bias_init(jax.random.key(0), shape, np.float32)
        gates.append(argument.activation(bias + np.float32(NOISE) * x))
    return [q, k, v, *gates]
