"""Feed-forward layer of a transformer block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from flax_linattn.checks import check_choice
from flax_linattn.nn.dropout import apply_dropout, make_dropout, resolve_dropout_key, split_key
from flax_linattn.nn.linear import linear
from flax_linattn.nn.meshes import automatic
from flax_linattn.typing import Array

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
}
"""Activations by name; GELU is the exact one, as in PyTorch."""


class FeedForward(nnx.Module):
    """Two linear layers with an activation in between, and dropout after each.

    Args:
        features: Number of features C.
        hidden_features: Number of features between the layers.
        activation: Activation: "gelu", "relu" or "tanh".
        dropout_rate: Fraction of features dropped during training.
        dtype: Dtype of the computation; inferred from inputs and parameters if None.
        param_dtype: Dtype of the parameters.
        kernel_init: Initializer of the first kernel; see ``ParameterOptions``.
        bias_init: Initializer of the first bias.
        out_kernel_init: Initializer of the second kernel; default ``kernel_init``.
        out_bias_init: Initializer of the second bias; default ``bias_init``.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.

    Raises:
        ValueError: If the activation is unknown, or the dropout rate is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> nn.FeedForward(8, 32, rngs=nnx.Rngs(0))(jnp.ones((2, 5, 8))).shape
        (2, 5, 8)
    """

    def __init__(
        self,
        features: int,
        hidden_features: int,
        *,
        activation: str = "gelu",
        dropout_rate: float = 0.0,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer | None = None,
        bias_init: nnx.Initializer | None = None,
        out_kernel_init: nnx.Initializer | None = None,
        out_bias_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        check_choice(ACTIVATIONS, activation=activation)
        self.activation = activation
        self.expand = linear(
            features,
            hidden_features,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            bias_init=bias_init,
            rngs=rngs,
        )
        self.contract = linear(
            hidden_features,
            features,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=out_kernel_init or kernel_init,
            bias_init=out_bias_init or bias_init,
            rngs=rngs,
        )
        self.dropout = make_dropout(dropout_rate, rngs)

    @automatic(2)
    def __call__(self, x: Array, *, dropout_key: Array | None = None) -> Array:
        """Maps x [..., C] -> [..., C]; for dropout see ``TransformerBlock``."""
        return self.map(x, resolve_dropout_key(self.dropout, dropout_key))

    def map(self, x: Array, dropout_key: Array | None) -> Array:
        """Maps x [..., C] -> [..., C]; dropout needs a key, even after ``train()``."""
        key, key_out = split_key(dropout_key, 2)
        x = ACTIVATIONS[self.activation](self.expand(x))
        x = apply_dropout(self.dropout, x, key)
        return apply_dropout(self.dropout, self.contract(x), key_out)
