"""Adapter to ``nnx.RNN``: an attention layer as an ``nnx.RNNCellBase``."""

from __future__ import annotations

import math
from typing import Any

from flax import nnx
from jax.typing import DTypeLike

from flax_linattn.nn.attention import Attention
from flax_linattn.ops.contract.checks import no_state_message
from flax_linattn.typing import Array, State


class AttentionCell(nnx.RNNCellBase):
    """Runs an attention layer token by token inside ``nnx.RNN``.

    Args:
        attention: the layer; it stays usable in parallel.
        max_length: most tokens, for mechanisms with a cache.
        dtype: of the inputs, where it is wider than the parameters'; ``nnx.RNN`` does not say it.

    Raises:
        ValueError: a mechanism without a state, or with a cache and no ``max_length``.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> attention = nn.Attention(16, 4, mechanism="aaren", rngs=nnx.Rngs(0))
        >>> rnn = nnx.RNN(nn.AttentionCell(attention))
        >>> rnn(jnp.ones((2, 10, 16))).shape
        (2, 10, 16)
    """

    def __init__(
        self,
        attention: Attention,
        max_length: int | None = None,
        *,
        dtype: DTypeLike | None = None,
    ) -> None:
        mechanism = attention.mechanism
        if not mechanism.capabilities.recurrent:
            raise ValueError(no_state_message(mechanism.name))
        if max_length is None and not mechanism.capabilities.constant_memory:
            raise ValueError(
                f"nnx.RNN needs a state of one size, and the cache of {mechanism.name!r} grows; "
                "pass max_length, the most tokens it is to hold."
            )
        self.attention = attention
        self.max_length = max_length
        self.dtype = dtype

    def __call__(self, carry: State, inputs: Array) -> tuple[State, Array]:
        """carry, inputs [B, C] -> carry, outputs [B, C]."""
        y, carry = self.attention.step(inputs, carry)
        return carry, y

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: nnx.Rngs | nnx.RngStream | None = None,
        carry_init: Any = None,
    ) -> State:
        """The state for inputs of shape (B, C); nothing in it is random."""
        batch = math.prod(input_shape[:-1])
        return self.attention.init_state(batch, self.max_length, dtype=self.dtype)

    @property
    def num_feature_axes(self) -> int:
        """1: inputs are [B, C]."""
        return 1
