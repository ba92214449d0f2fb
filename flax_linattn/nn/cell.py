"""Adapter from an attention layer to ``nnx.RNNCellBase``, for ``nnx.RNN``."""

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
        attention: Attention layer, which can still be called in parallel.
        max_length: Maximum number of tokens, needed by mechanisms with a cache.
        dtype: Dtype of the inputs if wider than the parameters', which ``nnx.RNN`` does not pass
            on.

    Raises:
        ValueError: If the mechanism has no state, or has a cache and ``max_length`` is missing.

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
                f"nnx.RNN needs a state of fixed size, and the state of {mechanism.name!r} "
                "is a cache; pass max_length, its capacity in tokens."
            )
        self.attention = attention
        self.max_length = max_length
        self.dtype = dtype

    def __call__(self, carry: State, inputs: Array) -> tuple[State, Array]:
        """Processes one token per row: carry, inputs [B, C] -> carry, outputs [B, C]."""
        y, carry = self.attention.step(inputs, carry)
        return carry, y

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: nnx.Rngs | nnx.RngStream | None = None,
        carry_init: Any = None,
    ) -> State:
        """Returns the state for inputs of shape (B, C); it is not random."""
        batch = math.prod(input_shape[:-1])
        return self.attention.init_state(batch, self.max_length, dtype=self.dtype)

    @property
    def num_feature_axes(self) -> int:
        """Number of feature axes of the inputs [B, C]: 1."""
        return 1
