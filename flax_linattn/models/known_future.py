"""What is known of the horizon, added to a forecast step by step."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from flax_linattn.checks import at_least
from flax_linattn.nn.linear import linear
from flax_linattn.typing import Array

HIDDEN = 32
"""Features between the inputs and what they add."""


class KnownFuture(nnx.Module):
    """What inputs that are known for the horizon add to each of its steps.

    A network of one hidden layer sees the inputs of a step and those of the observation that is
    forecast from, the same for all steps. It begins as 0.

    Args:
        num_inputs: F.
        num_targets: C.
        param_dtype: Dtype of the parameters.
        rngs: Random number generators; "params" initializes the parameters.

    Raises:
        ValueError: A number below 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> added = KnownFuture(2, 3, rngs=nnx.Rngs(0))
        >>> added(jnp.ones((5, 2)), jnp.ones((5, 4, 2))).shape
        (5, 4, 3)
    """

    def __init__(
        self,
        num_inputs: int,
        num_targets: int,
        *,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        at_least(1, num_inputs=num_inputs, num_targets=num_targets)
        self.expand = linear(2 * num_inputs, HIDDEN, param_dtype=param_dtype, rngs=rngs)
        self.contract = linear(
            HIDDEN,
            num_targets,
            param_dtype=param_dtype,
            kernel_init=nnx.initializers.zeros,
            bias_init=nnx.initializers.zeros,
            rngs=rngs,
        )

    def __call__(
        self, now: Float[Array, "... F"], ahead: Float[Array, "... H F"]
    ) -> Float[Array, "... H C"]:
        """What is added to the steps, from the inputs now and at each of them."""
        both = jnp.concatenate([ahead, jnp.broadcast_to(now[..., None, :], ahead.shape)], axis=-1)
        return self.contract(nnx.gelu(self.expand(both))).astype(jnp.float32)
