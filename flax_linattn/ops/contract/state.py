"""States: their sizes, their export, and the packed segment to which they belong."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar, overload

import jax.numpy as jnp
from jax import export
from jaxtyping import Int

from flax_linattn.typing import Array, State

T = TypeVar("T")


_REGISTERED: dict[str, str] = {}
"""Name in files -> module and qualified name of the class."""


@overload
def register_state(kind: type[T], *, name: str | None = ...) -> type[T]: ...


@overload
def register_state(kind: None = ..., *, name: str | None = ...) -> Callable[[type[T]], type[T]]: ...


def register_state(
    kind: type[T] | None = None, *, name: str | None = None
) -> type[T] | Callable[[type[T]], type[T]]:
    """Registers a class of states with ``jax.export``, so that functions on them can be saved.

    Every state class of this package is registered. A program that loads an exported function must
    import the class first.

    Args:
        kind: A ``NamedTuple``, or a dataclass registered with JAX whose static fields are JSON
            values or tuples of them.
        name: Name of the class in files; None means its package and class, so that modules may
            move.

    Raises:
        ValueError: If another class has that name. A class that is defined again, as when a
            notebook cell is run twice, only causes a warning: JAX keeps the first.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from typing import NamedTuple
        >>> from flax_linattn import ops
        >>> @ops.register_state
        ... class Total(NamedTuple):
        ...     sum: jax.Array
        >>> add = jax.jit(lambda x, state: (x, Total(state.sum + x)))
        >>> saved = jax.export.export(add)(jnp.ones(2), Total(jnp.zeros(2))).serialize()
        >>> _, total = jax.export.deserialize(saved).call(jnp.ones(2), Total(jnp.ones(2)))
        >>> total
        Total(sum=Array([2., 2.], dtype=float32))
    """
    if kind is None:
        return partial(register_state, name=name)
    name = name or f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    where = f"{kind.__module__}.{kind.__qualname__}"
    other = _REGISTERED.get(name)
    if other is not None and other != where:
        raise ValueError(
            f"the name {name!r} already belongs to {other} in exported functions; give "
            f"{where} its own name: @register_state(name=...)."
        )
    if other is not None:
        warnings.warn(
            f"{where} was defined again, and JAX exports only functions of the first "
            "class; restart Python, or give the new class its own name: "
            "@register_state(name=...).",
            stacklevel=2,
        )
        return kind
    if issubclass(kind, tuple):
        export.register_namedtuple_serialization(kind, serialized_name=name)
    else:
        export.register_pytree_node_serialization(
            kind,
            serialized_name=name,
            serialize_auxdata=lambda static: json.dumps(static).encode(),
            deserialize_auxdata=lambda text: _hashable(json.loads(text)),
        )
    _REGISTERED[name] = where
    return kind


def _hashable(value: Any) -> Any:
    """Converts lists, which JSON makes of tuples, to tuples: static fields must be hashable."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


class StateSizes(NamedTuple):
    """Sizes and dtype of a state.

    Attributes:
        batch_size: Number of sequences B.
        num_heads: Number of heads H of keys and values.
        key_dim: Channels of a key, K.
        value_dim: Channels of a value, V.
        max_length: Maximum number of tokens that a cache can hold; None means it grows.
        dtype: Accumulation dtype, float32 or float64.
        num_latents: Number of latents L; None if there are none.
    """

    batch_size: int
    num_heads: int
    key_dim: int
    value_dim: int
    max_length: int | None
    dtype: jnp.dtype
    num_latents: int | None = None

    @property
    def rows(self) -> tuple[int, ...]:
        """Leading axes of the state: (B, H), or (B, L, H) with latents."""
        latents = () if self.num_latents is None else (self.num_latents,)
        return (self.batch_size, *latents, self.num_heads)


@register_state
class PackedState(NamedTuple):
    """State of a mechanism with the id of the packed segment in which it ended.

    ``attend`` returns it if ``segment_ids`` was passed. The next call takes it as ``initial_state``
    and restarts every sequence whose first id differs.

    Attributes:
        state: The mechanism's own state.
        segment_id: Integer array of shape [B]; -2**31 where no valid token has had an id yet.
    """

    state: State
    segment_id: Int[Array, "B"]


def pack_state(state: State, segment_id: Array | None) -> State:
    """Wraps ``state`` in a ``PackedState`` if a segment id is known."""
    return state if segment_id is None else PackedState(state, segment_id)


def unpack_state(state: State) -> tuple[State, Array | None]:
    """Returns the mechanism's own state and the segment id, or None if it is not packed."""
    if isinstance(state, PackedState):
        return state.state, state.segment_id
    return state, None
