"""Contribution of known future covariates to a forecast, step by step."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from flax_linattn.checks import check_integers
from flax_linattn.nn.linear import linear
from flax_linattn.typing import Array

HIDDEN = 32
"""Width of the hidden layer."""


class KnownFuture(nnx.Module):
    """Adds the effect of known future covariates to each step of the horizon.

    A network with one hidden layer receives the covariates of a step and of the observation
    to forecast from; all steps share it. Its output is initially 0.

    Args:
        num_inputs: Number of covariates F.
        num_targets: Number of targets C.
        param_dtype: Dtype of the parameters.
        rngs: Random number generators; "params" initializes the parameters.

    Raises:
        ValueError: If a number is below 1.

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
        check_integers(1, num_inputs=num_inputs, num_targets=num_targets)
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
        """Computes what to add to each step, from the covariates now and at the step."""
        both = jnp.concatenate([ahead, jnp.broadcast_to(now[..., None, :], ahead.shape)], axis=-1)
        return self.contract(nnx.gelu(self.expand(both))).astype(jnp.float32)
