"""Attention mechanisms as pure functions on arrays, behind one contract.

``list_mechanisms`` names them, ``get_mechanism`` makes one. Adding a mechanism takes its
module and one line in the registry below.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from flax_linattn.ops.aaren import Aaren, AarenState
from flax_linattn.ops.cache import CacheMechanism, KVCache
from flax_linattn.ops.mechanism import Capabilities, Mechanism, PackedState
from flax_linattn.ops.softmax import SoftmaxAttention
from flax_linattn.ops.streaming import StreamingMechanism

_REGISTRY: dict[str, type[Mechanism]] = {
    "softmax": SoftmaxAttention,
    "aaren": Aaren,
}


def list_mechanisms() -> tuple[str, ...]:
    """The names that ``get_mechanism`` takes.

    Example:
        >>> list_mechanisms()
        ('softmax', 'aaren')
    """
    return tuple(_REGISTRY)


def get_mechanism(name: str, **hyperparameters: Any) -> Mechanism:
    """Makes a mechanism: frozen, hashable, hence static under ``jax.jit``.

    Args:
        name: one of ``list_mechanisms()``.
        **hyperparameters: fields of the mechanism's dataclass.

    Raises:
        ValueError: the name is unknown.
        TypeError: a hyperparameter is unknown.

    Example:
        >>> get_mechanism("aaren", chunk_size=64).capabilities.constant_memory
        True
    """
    if name not in _REGISTRY:
        raise ValueError(f"unknown mechanism {name!r}; choose one of: {', '.join(_REGISTRY)}.")
    mechanism = _REGISTRY[name]
    fields = [field.name for field in dataclasses.fields(mechanism)]
    unknown = sorted(set(hyperparameters) - set(fields))
    if unknown:
        raise TypeError(
            f"{name!r} has no hyperparameter {unknown[0]!r}; it has: {', '.join(fields)}."
        )
    return mechanism(**hyperparameters)


__all__ = [
    "Aaren",
    "AarenState",
    "CacheMechanism",
    "Capabilities",
    "KVCache",
    "Mechanism",
    "PackedState",
    "SoftmaxAttention",
    "StreamingMechanism",
    "get_mechanism",
    "list_mechanisms",
]
