"""Bidirectional Aaren is Aaren from both ends, and what it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn, ops
from tests.ops.mechanisms.tokens import jitted


@pytest.mark.parametrize("heads", [2, 3])
def test_it_is_aaren_on_the_sequence_and_on_its_reverse(heads: int) -> None:
    rng = np.random.default_rng(0)
    q = rng.normal(size=(heads, 4)).astype(np.float32)
    k, v = rng.normal(size=(2, 2, 9, heads, 4)).astype(np.float32)
    mask = rng.random((2, 9)) < 0.7
    both, aaren = jitted("bidirectional_aaren"), jitted("aaren", is_causal=True)
    before = aaren(q, k, v, mask=mask)
    after = np.flip(aaren(q, np.flip(k, 1), np.flip(v, 1), mask=np.flip(mask, 1)), 1)
    forwards = {2: 1, 3: 2}[heads]
    want = np.concatenate([before[:, :, :forwards], after[:, :, forwards:]], axis=2)
    np.testing.assert_allclose(both(q, k, v, mask=mask), want, atol=1e-6)


def test_what_it_refuses() -> None:
    both = ops.get_mechanism("bidirectional_aaren")
    q, k = jnp.ones((2, 4)), jnp.ones((1, 3, 2, 4))
    with pytest.raises(ValueError, match="'bidirectional_aaren' has no causal form"):
        both.attend(q, k, k, is_causal=True)
    with pytest.raises(ValueError, match=r"'bidirectional_aaren' needs the whole sequence at once"):
        both.init_state(1, 2, 4, 4)
    one = r"backwards with the others: it needs at least 2, got 1\.$"
    with pytest.raises(ValueError, match=one):
        both.attend(q[:1], k[:, :, :1], k[:, :, :1])
    with pytest.raises(ValueError, match=one):
        both.reference(q[:1], k[:, :, :1], k[:, :, :1])
    with pytest.raises(ValueError, match=one):
        nn.Attention(4, 1, mechanism="bidirectional_aaren", rngs=nnx.Rngs(0))
    layer = nn.Attention(4, 2, mechanism="bidirectional_aaren", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="'bidirectional_aaren' does not support cross-attention"):
        layer(jnp.ones((1, 3, 4)), jnp.ones((1, 3, 4)))
