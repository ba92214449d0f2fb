"""A stream beside the parallel model, for all tasks whose models take sequences as they are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike

from flax_linattn import inference


def stream_difference(model: Any, x: ArrayLike, *, every_step: bool = False) -> dict[str, Any]:
    """How far the outputs of steps are from those of the call.

    Args:
        model: one that streams.
        x: observations [B, T, ...].
        every_step: the call gives the outputs of all steps where this is asked of it, as that of a
            classifier.

    Returns:
        ``stream_max_error`` and ``stream_steps``, as ``Task.stream_error`` gives them.
    """
    x = jnp.asarray(x)
    parallel = np.asarray((_of_every_step if every_step else _outputs)(model, x))
    streamed = np.asarray(inference.unroll(model, x))
    assert parallel.shape == streamed.shape
    return {
        "stream_max_error": float(np.max(np.abs(streamed - parallel))),
        "stream_steps": x.shape[1],
    }


@nnx.jit
def _outputs(model: Any, x: jax.Array) -> jax.Array:
    y: jax.Array = model(x)
    return y


@nnx.jit
def _of_every_step(model: Any, x: jax.Array) -> jax.Array:
    y: jax.Array = model(x, every_step=True)
    return y
