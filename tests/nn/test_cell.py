"""The adapter to nnx.RNN."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_linattn import nn
from tests.contract.tolerances import assert_close
from tests.nn.cases import STACKED, WIDTH, attention, call, make_attention, normal


@partial(jax.jit, static_argnums=0)
def run_rnn(graph, params, x, carry=None):
    cell = nn.AttentionCell(nnx.merge(graph, params), max_length=6)
    return nnx.RNN(cell, return_carry=True)(x, initial_carry=carry)


@pytest.mark.parametrize("graph_mode", [False, True])
@pytest.mark.parametrize("mechanism", STACKED)
def test_rnn_is_attention_in_parallel(mechanism, graph_mode):
    """From nothing, and going on from a carry."""
    x = normal(1, 2, 6, WIDTH)
    with nnx.set_graph_mode(graph_mode):
        layer = make_attention(mechanism)
        split = nnx.split(layer)
        carry, y = run_rnn(*split, x)
        half, head = run_rnn(*split, x[:, :3])
        end, tail = run_rnn(*split, x[:, 3:], half)
    start = layer.init_state(2, 6)
    want, state = call(layer, x, is_causal=True, state=start, return_state=True)
    assert_close(y, want, "float32")
    assert_close(carry, state, "float32")
    assert_close(jnp.concatenate([head, tail], axis=1), want, "float32")
    assert_close(end, state, "float32")


@pytest.mark.parametrize("mechanism", STACKED)
def test_gradients_through_the_rnn(mechanism):
    graph, params = nnx.split(attention(mechanism))
    x, weights = normal(3, 2, 6, WIDTH), normal(4, 2, 6, WIDTH)

    def by_rnn(params):
        return jnp.sum(run_rnn(graph, params, x)[1] * weights)

    def in_parallel(params):
        return jnp.sum(nnx.merge(graph, params)(x, is_causal=True) * weights)

    got, want = jax.jit(lambda p: (jax.grad(by_rnn)(p), jax.grad(in_parallel)(p)))(params)
    assert_close(got, want, "float32")


@pytest.mark.parametrize("mechanism", STACKED)
def test_a_growing_cache_is_refused(mechanism):
    layer = attention(mechanism)
    if layer.mechanism.capabilities.constant_memory:
        assert nnx.RNN(nn.AttentionCell(layer))(normal(5, 2, 6, WIDTH)).shape == (2, 6, WIDTH)
        return
    with pytest.raises(
        ValueError, match=f"state of {layer.mechanism.name!r} is a cache; pass max_length"
    ):
        nn.AttentionCell(layer)


def test_a_layer_without_a_state_is_refused():
    with pytest.raises(ValueError, match="'reformer' needs the whole sequence at once"):
        nn.AttentionCell(attention("reformer"))
