"""Layers whose query heads share heads of keys and values (``num_kv_heads``)."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models, nn
from flax_linattn.checks import OptionError

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 3
WIDTH = HEADS * HEAD_DIM


def make(mechanism="softmax", num_kv_heads=KV_HEADS, **options):
    options = {"is_causal": True} | options
    return nn.Attention(
        WIDTH, HEADS, mechanism=mechanism, num_kv_heads=num_kv_heads, rngs=nnx.Rngs(0), **options
    )


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def with_repeated_heads(grouped, **options):
    """A layer with a key head for each query head, all of a group with the same weights."""
    layer = make(grouped.mechanism, None, **options)

    def repeat(old, new):
        sizes = zip(old.shape, new.shape, strict=True)
        axis = next((i for i, (a, b) in enumerate(sizes) if a != b), None)
        if axis is None:
            return old
        unit = HEAD_DIM if new.shape[axis] == WIDTH else 1
        heads = old.reshape(*old.shape[:axis], -1, unit, *old.shape[axis + 1 :])
        return jnp.repeat(heads, HEADS // KV_HEADS, axis=axis).reshape(new.shape)

    state = jax.tree.map(repeat, nnx.state(grouped), nnx.state(layer))
    nnx.update(layer, state)
    return layer


@pytest.mark.parametrize("mechanism", ["softmax", "taylorshift", "gated_delta"])
def test_layer_equals_one_with_repeated_key_heads(mechanism):
    layer, x = make(mechanism), normal(1, 2, 5, WIDTH)
    mask = np.array([[True] * 5, [False, True, True, False, True]])
    y = layer(x, mask=mask)
    np.testing.assert_allclose(y, with_repeated_heads(layer)(x, mask=mask), atol=2e-6)
    begin = layer.init_state(2, 5)
    after = begin
    for t in range(5):
        y_t, after = layer.step(x[:, t], after, mask=mask[:, t])
        np.testing.assert_allclose(y_t, y[:, t], atol=2e-6)
    assert layer.key_projection.kernel.shape == (WIDTH, KV_HEADS * HEAD_DIM)
    assert layer.value_projection.kernel.shape == (WIDTH, KV_HEADS * HEAD_DIM)
    bigger = make(mechanism, None).init_state(2, 5)
    sizes = [sum(a.nbytes for a in jax.tree.leaves(s) if a.ndim > 1) for s in (begin, bigger)]
    assert sizes[0] * HEADS == sizes[1] * KV_HEADS


def test_cross_attention_and_a_projected_context():
    layer = make(is_causal=None)
    x, context = normal(1, 2, 5, WIDTH), normal(2, 2, 7, WIDTH)
    mask = np.arange(7) < np.array([[7], [4]])
    y = layer(x, context, context_mask=mask)
    same = with_repeated_heads(layer, is_causal=None)(x, context, context_mask=mask)
    np.testing.assert_allclose(y, same, atol=2e-6)
    projected = layer.project(context, mask)
    assert projected.k.shape == (2, 7, KV_HEADS, HEAD_DIM)
    np.testing.assert_allclose(layer.attend_to(x, projected), y, atol=2e-6)


@pytest.mark.parametrize(
    ("mechanism", "num_kv_heads", "message"),
    [
        ("softmax", 3, "num_heads must be a multiple of num_kv_heads, got num_heads=4 and num_kv"),
        ("softmax", 0, "num_kv_heads must be"),
        ("aaren", 2, "num_kv_heads=2 needs a mechanism with a query per token, but 'aaren' has"),
        ("reformer", 1, "num_kv_heads=1 needs a mechanism with a query per token"),
    ],
)
def test_invalid_numbers_of_heads(mechanism, num_kv_heads, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(mechanism, num_kv_heads, is_causal=None)
    with pytest.raises(OptionError, match=re.escape(message)):
        models.Layers(
            features=WIDTH, num_heads=HEADS, num_kv_heads=num_kv_heads, mechanism=mechanism
        )


def test_as_many_key_heads_as_query_heads_suit_every_mechanism():
    assert make("aaren", HEADS).num_kv_heads == HEADS


def test_latent_attention_has_no_such_option():
    with pytest.raises(TypeError, match="num_kv_heads"):
        nn.LatentAttention(WIDTH, HEADS, 2, num_kv_heads=2, rngs=nnx.Rngs(0))


def test_models_stream_with_fewer_key_heads():
    layers = models.Layers(
        features=WIDTH, num_layers=1, num_heads=HEADS, num_kv_heads=1, mechanism="softmax"
    )
    model = models.Backbone(3, layers, rngs=nnx.Rngs(0))
    model.eval()
    x = normal(1, 2, 4, 3)
    y, state = model(x), model.init_state(2, 4)
    for t in range(4):
        y_t, state = model.step(x[:, t], state)
        np.testing.assert_allclose(y_t, y[:, t], atol=1e-5)
    decoder = layers.decoder_block(layers.mechanisms[0], nnx.Rngs(0))
    shapes = [a.key_projection.kernel.shape for a in (decoder.attention, decoder.cross_attention)]
    assert shapes == [(WIDTH, HEAD_DIM)] * 2
