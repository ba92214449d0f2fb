"""Chunks of products as users compile them: a compiler aborts where arrays have too many axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.bench import inputs
from flax_linattn.bench.comparison import mechanism
from flax_linattn.ops.engine import decays
from tests.compilation import compile_as_users

MOST_AXES = 6
"""Of products of [B, H, T, K], at any T; XLA's products of matrices on a CPU take 7."""


@pytest.mark.parametrize("channels", [1, 4])
def test_axes_do_not_grow_with_length(channels: int) -> None:
    q, a = jnp.zeros((2, 3, 512, 4)), jnp.zeros((2, 3, 512, channels))
    jaxpr = jax.make_jaxpr(decays.decayed_products)(q, q, a)
    axes = [value.aval.ndim for each in jaxpr.eqns for value in each.outvars]
    assert max(axes) <= MOST_AXES


def test_a_chunk_of_128_tokens_is_computed() -> None:
    arrays = inputs(ops.get_mechanism("gated_linear"), 128, num_heads=2, dim=16)
    program = mechanism("gated_linear", is_causal=True, form="parallel")
    got = compile_as_users(program, *arrays)(*arrays)
    want = jax.jit(mechanism("gated_linear:chunk_size=8", is_causal=True, form="chunked"))(*arrays)
    np.testing.assert_allclose(got, want, atol=2e-5)
