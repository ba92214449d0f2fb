"""Vision transformers: their parts, their published sizes, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import call, moved, normal

TINY = models.Layers(8, 2, 2, 12, norm="pre", mechanism="taylorshift", layer_scale=0.1)
SIZE, CLASSES = (8, 12), 5


@functools.cache
def make(**options):
    options = {"layers": TINY, "rngs": nnx.Rngs(0)} | options
    return moved(models.ImageClassifier(SIZE, 4, CLASSES, **options))


def count(state):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(state, nnx.Param)))


@pytest.mark.parametrize(
    ("size", "published", "exact"),
    [("ti", 5.7e6, 5_717_416), pytest.param("s", 22e6, 22_050_664, marks=pytest.mark.slow)],
)
def test_sizes_are_deits_by_hand(size, published, exact):
    """DeiT for 1000 classes at 224/16, whose class token has a position and ours has none.

    ``exact`` is DeiT's by its parts: patches, 197 positions, class token, 12 blocks, norm, head.
    """
    c = {"ti": 192, "s": 384}[size]
    block = 4 * (c * c + c) + 2 * 4 * c * c + 4 * c + c + 2 * 2 * c
    deit = (16 * 16 * 3 * c + c) + 197 * c + c + 12 * block + 2 * c + 1000 * c + 1000
    assert deit == exact
    assert exact == pytest.approx(published, rel=0.005)

    def made(**options):
        layers = models.vit_layers(size, **options)
        return nnx.eval_shape(
            lambda: models.ImageClassifier((224, 224), 16, 1000, layers=layers, rngs=nnx.Rngs(0))
        )

    assert count(made(mechanism="softmax", layer_scale=None)) == exact - c
    heads = {"ti": 3, "s": 6}[size]
    # With LayerScale of both branches, and a temperature for each head.
    assert count(made()) == exact - c + 12 * 2 * c + 12 * heads


def test_vit_layers():
    layers = models.vit_layers()
    assert (layers.features, layers.num_layers, layers.num_heads) == (192, 12, 3)
    assert (layers.norm, layers.activation, layers.dropout_rate) == ("pre", "gelu", 0.0)
    assert (layers.layer_scale, layers.drop_path_rate) == (1e-4, 0.05)
    assert layers.drop_path_rates[-1] == 0.05
    assert models.vit_layers("s", mechanism="softmax", num_layers=2).mechanism == "softmax"
    with pytest.raises(ValueError, match="size must be one of ti, s, got 'b'"):
        models.vit_layers("b")


@pytest.mark.parametrize("pooling", ["class", "mean"])
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "none"])
def test_it_is_its_parts(pooling, position):
    """Positions on patches alone, the blocks, the final norm, and a head without activation."""
    model = make(pooling=pooling, position=position)
    x = normal(1, 2, *SIZE, 3)
    h = call(model.patches, x)
    if position == "learned":
        assert model.positions.table.shape == (6, 8)
        h = h + np.asarray(model.positions.table[...])
    elif position == "sinusoidal":
        h = h + np.asarray(model.positions(jnp.arange(6)))
    backbone = model.classifier.backbone
    if pooling == "class":
        first = np.tile(np.asarray(backbone.class_token[...]), (2, 1, 1))
        h = np.concatenate([first, h], axis=1)
    for block in backbone.blocks:
        h = call(block, h)
    h = call(backbone.final_norm, h)
    h = h[:, 0] if pooling == "class" else h.mean(axis=1)
    want = h @ np.asarray(model.classifier.kernel[...][0]) + np.asarray(model.classifier.bias[...])
    assert_close(call(model, x), want, "float32")


@pytest.mark.parametrize("embedding", ["linear", "conv"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_float32(embedding, dtype):
    model, exact = make(embedding=embedding, dtype=dtype), make(embedding=embedding)
    x = normal(2, 2, *SIZE, 3)
    y = call(model, x)
    assert y.dtype == np.float32
    assert_close(y, call(exact, x), dtype)


def test_channels_and_gray_images():
    model = make(in_channels=1)
    assert call(model, normal(3, 2, *SIZE, 1)).shape == (2, CLASSES)
    with pytest.raises(ValueError, match=r"expected images \[B, 8, 12, 1\], got \(2, 8, 12, 3\)"):
        model(jnp.ones((2, *SIZE, 3)))
    with pytest.raises(TypeError, match=r"images must have a floating dtype, got uint8; scale"):
        model(jnp.ones((2, *SIZE, 1), jnp.uint8))


def test_a_causal_one_sees_the_patches_before():
    """By its mean, to which the first patch gives the same whatever the last one is."""
    model = make(pooling="mean", is_causal=True)
    x = normal(4, 2, *SIZE, 3)
    backbone = model.classifier.backbone

    def features(x):
        return call(backbone, call(model.patches, x))

    other = features(x.at[:, 4:, 8:].add(1.0))
    assert_same_bits(other[:, :5], features(x)[:, :5])
    assert not np.allclose(other[:, 5], features(x)[:, 5], atol=1e-2)
    with pytest.raises(ValueError, match="which a causal model does not"):
        make(is_causal=True)


def test_dropout_and_drop_path_need_a_key():
    model = make(dropout_rate=0.1, drop_path_rate=0.5)
    x = normal(5, 4, *SIZE, 3)
    sure, first, again, other = (
        call(model, x, **({} if seed is None else {"dropout_key": jax.random.key(seed)}))
        for seed in (None, 1, 1, 2)
    )
    assert_same_bits(first, again)
    assert not np.allclose(first, sure, atol=1e-2)
    assert not np.allclose(first, other, atol=1e-2)


def test_its_own_keys():
    model = models.ImageClassifier(
        SIZE, 4, CLASSES, layers=TINY, layer_scale=1.0, dropout_rate=0.0, drop_path_rate=0.9,
        rngs=nnx.Rngs(params=0, dropout=1),
    )  # fmt: skip
    x = normal(6, 16, *SIZE, 3)
    model.train()
    run = nnx.jit(lambda model, x: model(x))
    assert not np.allclose(run(model, x), run(model, x), atol=1e-3)


def test_gradients_reach_every_parameter():
    model = make(embedding="conv")
    graph, params = nnx.split(model, nnx.Param)
    x = normal(7, 2, *SIZE, 3)

    @jax.jit
    def gradient(params):
        return jax.grad(lambda p: jnp.sum(nnx.merge(graph, p)(x)[:, 0] ** 2))(params)

    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient(params)):
        assert np.isfinite(leaf).all() and np.any(leaf), jax.tree_util.keystr(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "flatten"}, "pooling must be one of class, mean, got 'flatten'"),
        ({"embedding": "table"}, "embedding must be one of linear, conv, got 'table'"),
        ({"position": "rotary"}, "position must be one of sinusoidal, learned, none"),
        ({"heads": 3}, "option must be one of features, .* got 'heads'"),
        ({"num_heads": 3}, "must be a multiple of num_heads"),
        ({"mechanism": "rnn"}, "unknown mechanism 'rnn'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
