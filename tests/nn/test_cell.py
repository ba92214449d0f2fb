"""The adapter to nnx.RNN."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_linattn import nn
from tests.contract.tolerances import assert_close
from tests.nn.cases import CAUSAL, normal


@pytest.mark.parametrize("graph_mode", [False, True])
@pytest.mark.parametrize("mechanism", CAUSAL)
def test_rnn_is_attention_in_parallel(mechanism, graph_mode):
    x = normal(1, 2, 6, 8)
    with nnx.set_graph_mode(graph_mode):
        attention = nn.Attention(8, 2, mechanism=mechanism, rngs=nnx.Rngs(0))
        rnn = nnx.RNN(nn.AttentionCell(attention, max_length=6), return_carry=True)
        carry, y = rnn(x)
    want, state = attention(x, is_causal=True, state=attention.init_state(2, 6), return_state=True)
    assert_close(y, want, "float32")
    assert_close(carry, state, "float32")


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_rnn_continues_from_a_carry(mechanism):
    attention = nn.Attention(8, 2, mechanism=mechanism, rngs=nnx.Rngs(0))
    rnn = nnx.RNN(nn.AttentionCell(attention, max_length=6), return_carry=True)
    x = normal(2, 2, 6, 8)
    carry, head = rnn(x[:, :2])
    _, tail = rnn(x[:, 2:], initial_carry=carry)
    want = attention(x, is_causal=True)
    assert_close(jnp.concatenate([head, tail], axis=1), want, "float32")


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_gradients_through_the_rnn(mechanism):
    attention = nn.Attention(8, 2, mechanism=mechanism, rngs=nnx.Rngs(0))
    graph, params = nnx.split(attention)
    x, weights = normal(3, 2, 5, 8), normal(4, 2, 5, 8)

    def by_rnn(params):
        cell = nn.AttentionCell(nnx.merge(graph, params), max_length=5)
        return jnp.sum(nnx.RNN(cell)(x) * weights)

    def in_parallel(params):
        return jnp.sum(nnx.merge(graph, params)(x, is_causal=True) * weights)

    got, want = jax.jit(lambda p: (jax.grad(by_rnn)(p), jax.grad(in_parallel)(p)))(params)
    assert_close(got, want, "float32")


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_a_growing_cache_is_refused(mechanism):
    attention = nn.Attention(8, 2, mechanism=mechanism, rngs=nnx.Rngs(0))
    if attention.mechanism.capabilities.constant_memory:
        assert nnx.RNN(nn.AttentionCell(attention))(normal(5, 2, 3, 8)).shape == (2, 3, 8)
        return
    with pytest.raises(
        ValueError, match=f"the cache of {attention.mechanism.name!r} grows; pass max_length"
    ):
        nn.AttentionCell(attention)
