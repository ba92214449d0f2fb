"""Models as functions of their parameters and input, to compile and time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def forward(model: nnx.Module, form: str = "auto") -> tuple[Callable[..., Any], Any]:
    """``apply(params, x)``, the model's output, and its parameters."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, params, rest)(x, form=form)

    return apply, params


def training_step(model: nnx.Module, form: str = "auto") -> tuple[Callable[..., Any], Any]:
    """``step(params, x)``, loss and gradients of the mean square output, and the parameters."""
    apply, params = forward(model, form)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(apply(params, x)))

    return jax.value_and_grad(loss), params


def observations(*shape: int) -> jax.Array:
    """Normal numbers of a fixed seed."""
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def num_parameters(model: nnx.Module) -> int:
    """How many numbers a model learns."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
