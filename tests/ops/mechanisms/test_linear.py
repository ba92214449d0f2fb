"""Linear attention where its features underflow."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.ops.mechanisms.tokens import qkv


@cache
def linear_gradients(which: str) -> Any:
    """(q, k, v) -> outputs of ``linear`` and gradients of a sum of them."""
    attend = getattr(ops.get_mechanism("linear"), which)

    def run(*tokens: Any) -> Any:
        y, pull = jax.vjp(attend, *tokens)
        return y, pull(jnp.sin(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    return jax.jit(run)


@pytest.mark.parametrize("below", [0, 5, 200])
def test_linear_attention_far_below_zero(below: float) -> None:
    """elu + 1 of such queries underflows; its size cancels, in the gradients too."""
    q, k, v = qkv(6)
    q = q - np.float32(below)
    q[0, 0] = 0
    got = linear_gradients("attend")(q, k, v)
    with jax.enable_x64(True):
        want = linear_gradients("reference")(*(x.astype(np.float64) for x in (q, k, v)))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, atol=1e-5), got, want)
