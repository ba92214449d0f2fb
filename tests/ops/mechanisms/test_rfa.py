"""Random feature attention: the kernel that it approximates."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn.ops.engine.features import l2_normalize
from tests.ops.mechanisms.tokens import jitted, qkv


def test_rfa_converges_to_the_gaussian_kernel() -> None:
    q, k, v = qkv(12)

    @jax.jit
    def kernel(q: Any, k: Any, v: Any) -> Any:
        difference = l2_normalize(q)[:, :, None] - l2_normalize(k)[:, None]
        weight = jnp.exp(-jnp.sum(jnp.square(difference), axis=-1) / 2)
        return jnp.einsum("btsh,bshv->bthv", weight / weight.sum(axis=2, keepdims=True), v)

    want = kernel(q, k, v)
    got = jitted("rfa:num_features=16384")(q, k, v)
    np.testing.assert_allclose(got, want, atol=0.05)
