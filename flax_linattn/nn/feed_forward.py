"""Feed-forward layer of a transformer block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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
    "silu": jax.nn.silu,
}
"""Activations by name; GELU is the exact one, as in PyTorch."""

GATED_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "swiglu": ACTIVATIONS["silu"],
    "geglu": ACTIVATIONS["gelu"],
}
"""Activations of the gate, by the name of the gated layer (Shazeer, 2020)."""


class FeedForward(nnx.Module):
    """Two linear layers with an activation in between, and dropout after each.

    With "swiglu" or "geglu", a third layer gates the first: y = contract(activation(gate(x)) *
    expand(x)) (Shazeer, "GLU variants improve transformer", 2020).

    Args:
        features: Number of features C.
        hidden_features: Number of features between the layers.
        activation: Activation: "gelu", "relu", "tanh" or "silu", or "swiglu" or "geglu".
        dropout_rate: Fraction of features dropped during training.
        use_bias: Whether the linear layers have a bias.
        dtype: Dtype of the computation; inferred from inputs and parameters if None.
        param_dtype: Dtype of the parameters.
        kernel_init: Initializer of the first kernel, and of the gate's; see ``ParameterOptions``.
        bias_init: Initializer of their biases.
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
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer | None = None,
        bias_init: nnx.Initializer | None = None,
        out_kernel_init: nnx.Initializer | None = None,
        out_bias_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        check_choice((*ACTIVATIONS, *GATED_ACTIVATIONS), activation=activation)
        self.activation = activation
        layer = partial(linear, use_bias=use_bias, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        init: dict[str, Any] = {"kernel_init": kernel_init, "bias_init": bias_init}
        self.expand = layer(features, hidden_features, **init)
        self.contract = layer(
            hidden_features,
            features,
            kernel_init=out_kernel_init or kernel_init,
            bias_init=out_bias_init or bias_init,
        )
        is_gated = activation in GATED_ACTIVATIONS
        self.gate = layer(features, hidden_features, **init) if is_gated else None
        self.dropout = make_dropout(dropout_rate, rngs)

    @automatic(2)
    def __call__(self, x: Array, *, dropout_key: Array | None = None) -> Array:
        """Maps x [..., C] -> [..., C]; for dropout see ``TransformerBlock``."""
        return self.map(x, resolve_dropout_key(self.dropout, dropout_key))

    def map(self, x: Array, dropout_key: Array | None) -> Array:
        """Maps x [..., C] -> [..., C]; dropout needs a key, even after ``train()``."""
        key, key_out = split_key(dropout_key, 2)
        hidden = self.expand(x)
        if self.gate is None:
            hidden = ACTIVATIONS[self.activation](hidden)
        else:
            hidden = GATED_ACTIVATIONS[self.activation](self.gate(x)) * hidden
        hidden = apply_dropout(self.dropout, hidden, key)
        return apply_dropout(self.dropout, self.contract(hidden), key_out)
