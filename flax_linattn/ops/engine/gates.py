"""Activations and initial biases with which layers compute gates (per-token inputs)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.token_arguments import TokenArgument
from flax_linattn.typing import Array

MEMORY_RANGE = (8.0, 1024.0)
"""Initial number of tokens after which the weight of a token falls to 1/e, in the first and the
last head; a single head has the geometric mean."""


def log_spaced_memories(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Initializes biases for memories of ``MEMORY_RANGE`` tokens, log-spaced over the heads.

    The log-sigmoid of a bias is -1 / memory, with memory in tokens.

    Example:
        >>> import jax
        >>> b = log_spaced_memories(jax.random.key(0), (3,))
        >>> (-1 / jax.nn.log_sigmoid(b)).round().astype(int).tolist()
        [8, 91, 1024]
    """
    log_min, log_max = map(math.log, MEMORY_RANGE)
    if shape[0] == 1:
        log_min = log_max = (log_min + log_max) / 2
    rate = jnp.exp(-jnp.linspace(log_min, log_max, shape[0], dtype=jnp.float32))
    bias = -rate - jnp.log(-jnp.expm1(-rate))  # the logit of exp(-rate)
    return jnp.broadcast_to(bias.reshape(-1, *(1,) * (len(shape) - 1)), shape).astype(dtype)


LOG_DECAY = TokenArgument(
    "log_decay", "H", high=0.0, activation=jax.nn.log_sigmoid, bias_init=log_spaced_memories
)
"""One log-decay per head: the forget gate of Lin et al., 2025, log sigmoid(x W + b)."""
