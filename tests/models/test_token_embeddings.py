"""Embeddings of tokens after TaylorShift: what they compute, and how they stream and pack."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models, nn
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.models.cases import symbols
from tests.nn.cases import call, moved

TOKENS, FEATURES, LENGTH = 7, 8, 8
KINDS = {
    "linear": models.LinearTokenEmbedding,
    "causal": functools.partial(models.ConvTokenEmbedding, padding="causal"),
    "same": models.ConvTokenEmbedding,
}


@functools.cache
def make(kind, **options):
    return moved(KINDS[kind](TOKENS, FEATURES, rngs=nnx.Rngs(0), **options))


@functools.cache
def backbone(kind, **options):
    """One of a kind, of one layer."""
    options = {"mechanism": "taylorshift", "is_causal": kind != "same"} | options
    layers = models.Layers(FEATURES, 1, 2, 12)
    return moved(models.Backbone(make(kind), layers, **options, rngs=nnx.Rngs(1)))


def positions(*shape):
    return np.broadcast_to(np.arange(shape[-1]), shape)


def waves(length):
    """Even channels sine, odd cosine, of t * 10000**(-2 i / C), in float64."""
    angle = np.arange(length)[:, None] * 10_000.0 ** (-2 * np.arange(FEATURES // 2) / FEATURES)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, FEATURES)


def test_linear_is_a_linear_layer_on_one_hot_vectors():
    """With a bias, without a factor of sqrt(C), and with sinusoids; in float64."""
    embedding = make("linear")
    x = symbols(1, 2, 5)
    table, bias = (np.asarray(v[...], np.float64) for v in (embedding.table, embedding.bias))
    want = np.eye(TOKENS)[x] @ table + bias + waves(5)
    h, state = call(embedding, x, positions=positions(2, 5))
    assert_close(h, want, "float32")
    assert state == ()


def test_linear_starts_as_pytorch_does():
    embedding = models.LinearTokenEmbedding(256, 512, rngs=nnx.Rngs(0))
    for parameter in (embedding.table, embedding.bias):
        assert 0.99 / 16 < float(abs(parameter[...]).max()) <= 1 / 16
    assert embedding.table.shape == (256, 512)


@pytest.mark.parametrize("kind", ["same", "causal"])
def test_convolutions_have_positions_added(kind):
    embedding, x = make(kind), symbols(2, 2, 5)
    h, _ = call(embedding, x, positions=positions(2, 5))
    assert_close(h, call(embedding.convolutions, x) + waves(5).astype(np.float32), "float32")
    assert isinstance(embedding.convolutions, nn.ConvEmbedding)


@pytest.mark.parametrize("kind", KINDS)
def test_positions_may_be_learned_or_left_out(kind):
    x = symbols(3, 1, 5)
    bare, learned = make(kind, position="none"), make(kind, position="learned", max_length=4)
    h, _ = call(learned, x, positions=positions(1, 5))
    assert np.isnan(h[:, 4:]).all()
    assert np.isfinite(h[:, :4]).all()
    assert call(bare, x, positions=positions(1, 5))[0].shape == (1, 5, FEATURES)
    assert (learned.max_length, bare.max_length) == (4, None)
    with pytest.raises(ValueError, match="learned positions need max_length"):
        make(kind, position="learned")


@pytest.mark.parametrize("token", [-1, TOKENS])
def test_a_token_outside_gives_nan(token):
    x = np.array([[1, token, 2]])
    h, _ = call(make("linear"), x, positions=positions(1, 3))
    assert np.isnan(h[:, 1]).all()
    assert np.isfinite(h[:, [0, 2]]).all()


@pytest.mark.parametrize("kind", ["linear", "table"])
def test_bytes_of_a_table_of_256(kind):
    """A narrow dtype does not hold the number of tokens."""
    kinds = {"linear": models.LinearTokenEmbedding, "table": models.TokenEmbedding}
    embedding = kinds[kind](256, FEATURES, rngs=nnx.Rngs(0))
    x = np.array([[0, 255, 128]], np.uint8)
    got = call(embedding, x, positions=positions(1, 3))
    assert_same_bits(got, call(embedding, x.astype(np.int32), positions=positions(1, 3)))


def test_same_neither_streams_nor_packs():
    model, x = backbone("same"), symbols(6, 2, 5)
    assert not model.streams
    with pytest.raises(ValueError, match='has no packed segments; make it with padding="causal"'):
        model(x, segment_ids=x)
    causal = backbone("same", is_causal=True)
    assert not causal.streams
    with pytest.raises(ValueError, match="has a non-causal embedding"):
        causal.init_state(2)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind):
    options = {"mechanism": "aaren", "is_causal": False, "dtype": "bfloat16"}
    half = models.Backbone(
        moved(KINDS[kind](TOKENS, FEATURES, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))),
        models.Layers(FEATURES, 1, 2, 12),
        **options,
        rngs=nnx.Rngs(1),
    )
    exact = backbone(kind, mechanism="aaren", is_causal=False)
    graph, _ = nnx.split(half)
    half = nnx.merge(graph, nnx.state(exact))
    x = symbols(7, 2, 5)
    y = call(half, x)
    assert y.dtype == jnp.bfloat16
    assert_close(y, call(exact, x), "bfloat16")
