"""Pooling over time as monoids: one engine pools prefixes, totals, packs and streams."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp

from flax_linattn.ops.contract.state import register_state
from flax_linattn.ops.engine.prefix import Monoid, scan_monoid
from flax_linattn.typing import Array, State


class Pooling(Protocol):
    """Protocol of poolings of the valid tokens; states have leaves [..., C] or [...]."""

    def lift(self, h: Array) -> State:
        """The state of single tokens h [..., C]."""
        ...

    def merge(self, state_a: State, state_b: State) -> State:
        """The state of sequence a followed by sequence b."""
        ...

    def read(self, state: State) -> Array:
        """The pooled vector [..., C]."""
        ...


@register_state
class CountedState(NamedTuple):
    """Pooled vector and the number of tokens it summarizes.

    Attributes:
        value: Pooled vectors of shape [B, C].
        num_tokens: Number of tokens, int32 [B].
    """

    value: Array
    num_tokens: Array


@dataclasses.dataclass(frozen=True)  # equal by class: models of equal options share compilations
class _Counted:
    def lift(self, h: Array) -> CountedState:
        return CountedState(h, jnp.ones(h.shape[:-1], jnp.int32))

    def read(self, state: CountedState) -> Array:
        return state.value


class LastPooling(_Counted):
    """Pools to the last valid token."""

    def merge(self, state_a: CountedState, state_b: CountedState) -> CountedState:
        """Returns the later state, unless it is empty."""
        value = jnp.where((state_b.num_tokens > 0)[..., None], state_b.value, state_a.value)
        return CountedState(value, state_a.num_tokens + state_b.num_tokens)


class MeanPooling(_Counted):
    """Pools to the mean of the valid tokens, as a running mean, so that no sum overflows."""

    def merge(self, state_a: CountedState, state_b: CountedState) -> CountedState:
        """Returns the mean weighted by the counts."""
        count = state_a.num_tokens + state_b.num_tokens
        dtype = state_b.value.dtype
        fraction = state_b.num_tokens.astype(dtype) / jnp.maximum(count, 1).astype(dtype)
        difference = state_b.value - state_a.value
        return CountedState(state_a.value + difference * fraction[..., None], count)


class SumPooling(_Counted):
    """Pools to the sum of the valid tokens."""

    def merge(self, state_a: CountedState, state_b: CountedState) -> CountedState:
        """Adds the values and the counts."""
        return CountedState(state_a.value + state_b.value, state_a.num_tokens + state_b.num_tokens)


def identity(batch_size: int, features: int, dtype: Any = jnp.float32) -> CountedState:
    """Returns the state before the first token; every pooling of an empty sequence is 0."""
    return CountedState(jnp.zeros((batch_size, features), dtype), jnp.zeros(batch_size, jnp.int32))


def pooling_monoid(pooling: Pooling, batch_size: int, features: int, dtype: Any) -> Monoid:
    """Makes the monoid of a pooling for ``ops.engine.prefix.attend``, on features [B, T, C]."""
    return scan_monoid(
        lift=pooling.lift,
        merge=pooling.merge,
        read=lambda _, state: pooling.read(state),
        identity=identity(batch_size, features, dtype),
    )


POOLINGS: dict[str, type[LastPooling] | type[MeanPooling] | type[SumPooling]] = {
    "last": LastPooling,
    "mean": MeanPooling,
    "flatten": SumPooling,
}
"""Poolings by name; "flatten" sums logits to which each position contributes with its weights."""

CLASS_TOKEN = "class"
"""Pooling option for no pooling: the class token's features represent the sequence."""
