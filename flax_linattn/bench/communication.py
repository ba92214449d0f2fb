"""What devices send each other, read from a compiled program."""

from __future__ import annotations

import math
import re
from typing import Any

_KINDS = "all-gather|all-reduce|all-to-all|collective-permute|collective-broadcast|reduce-scatter"
_OPERATION = re.compile(rf" = (.*?) ({_KINDS})(?:-start)?\(")
_ARRAY = re.compile(r"([a-z]+)(\d+)?[a-z\d]*\[([\d,]*)\]")


def communicated(compiled: Any) -> dict[str, int]:
    """Bytes that the collective operations of a program leave on each device, by their kind.

    Those in a loop count once.

    Args:
        compiled: of ``jax.jit(...).lower(...).compile()``.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> communicated(jax.jit(jnp.sum).lower(jnp.ones(8)).compile())
        {}
    """
    received: dict[str, int] = {}
    for result, kind in _OPERATION.findall(compiled.as_text()):
        for name, bits, shape in _ARRAY.findall(result):
            size = 1 if name == "pred" else int(bits) // 8
            size *= math.prod(int(n) for n in shape.split(",") if n)
            received[kind] = received.get(kind, 0) + size
    return received
