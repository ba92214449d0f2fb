"""Tokens, and compiled mechanisms by name."""

from functools import partial
from typing import Any

import jax
import numpy as np

from flax_linattn import ops


def qkv(length: int, dim: int = 8, size: float = 1.0) -> Any:
    rng = np.random.default_rng(0)
    return [(size * rng.normal(size=(2, length, 2, dim))).astype(np.float32) for _ in range(3)]


def jitted(spec: str, which: str = "attend", **how: Any) -> Any:
    """``attend`` or ``reference`` of a mechanism, compiled."""
    return jax.jit(partial(getattr(ops.get_mechanism(spec), which), **how))
