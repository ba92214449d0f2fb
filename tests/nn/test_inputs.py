"""What comes into layers and mechanisms: NumPy arrays and lists; of models the contract has it."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn, ops


def test_a_layer_refuses_lists():
    with pytest.raises(TypeError, match=r"expected x as an array \[B, T, 8\], got list"):
        nn.Attention(8, 2, rngs=nnx.Rngs(0))([[1.0] * 8])
    with pytest.raises(TypeError, match=r"expected x as an array \[B, T, 8\], got list"):
        nn.LatentAttention(8, 2, 3, rngs=nnx.Rngs(0))([[1.0] * 8])


def test_numpy_arrays_of_float64_are_taken_without_a_warning():
    """Where JAX has no float64 they count as float32, as everywhere in JAX."""
    x = np.linspace(0, 1, 24).reshape(2, 4, 3)
    conv = nn.ValueEmbedding(3, 8, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(conv(x), conv(jnp.asarray(x)))


def test_mechanisms_take_them_too():
    aaren = ops.get_mechanism("aaren")
    q, k = np.ones((2, 4)), np.ones((1, 3, 2, 4))
    y, state = aaren.attend(q, k, k, is_causal=True, return_state=True)
    y_next, _ = aaren.step(q, k[:, 0], k[:, 0], state)
    assert y.dtype == y_next.dtype == jnp.float32
