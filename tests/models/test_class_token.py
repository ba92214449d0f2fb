"""The class token: where it stands, what it sees, and what is refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.models.cases import CHANNELS, CLASSES, MAX_LENGTH, backbone, classifier
from tests.nn.cases import call, moved, normal, pulled

WHOLE = {"is_causal": False, "class_token": True}


@functools.cache
def features(**options):
    """A backbone on features, without positions and convolutions, that a test can write out."""
    layers = models.Layers(8, 2, 2, 12, mechanism="softmax", dropout_rate=0.0)
    embedding = models.FeatureEmbedding(8)
    return moved(models.Backbone(embedding, layers, rngs=nnx.Rngs(0), **WHOLE | options))


@pytest.mark.parametrize("rotary", [False, True])
def test_it_is_a_first_token_without_a_position(rotary):
    """The blocks on [class token, observations], the token's position that of no turn."""
    model = features(rotary=rotary)
    x = normal(1, 2, 5, 8)
    h = call(model, x)
    assert h.shape == (2, 6, 8)
    y = jnp.concatenate([jnp.tile(model.class_token[...], (2, 1, 1)), x], axis=1)
    places = np.tile([0, 0, 1, 2, 3, 4], (2, 1))
    for block in model.blocks:
        y = call(block, y, positions=places if rotary else None)
    assert_close(h, call(model.final_norm, y), "float32")


def test_it_comes_behind_positions_and_before_dropout():
    model = backbone("softmax", num_layers=1, dropout_rate=0.5, **WHOLE)
    x = normal(2, 8, 5, CHANNELS)
    embedded = []

    class Watched(nnx.Module):
        def _map(self, h, call):
            embedded.append(h)
            return h, None

    bare = nnx.clone(model)
    bare.blocks = nnx.List([Watched()])

    @jax.jit
    def what_the_block_sees(x, key=None):
        bare(x, dropout_key=key)
        return embedded.pop()

    seen = what_the_block_sees(x)
    plain, _ = call(model.input_embedding, x, positions=np.tile(np.arange(5), (8, 1)))
    assert_close(seen[:, 1:], plain, "float32")
    assert_same_bits(seen[:, 0], jnp.tile(model.class_token[...], (8, 1)))
    dropped = what_the_block_sees(x, jax.random.key(0))
    assert 0.2 < np.mean(np.asarray(dropped[:, 0]) == 0) < 0.8


def test_it_starts_as_timm_does():
    """Normal of deviation 1e-6; the other parameters are drawn as without it."""
    small = {"num_layers": 1, "num_heads": 1, "hidden_features": 1}
    model, without = (
        models.Backbone(3, 512, is_causal=False, class_token=it, rngs=nnx.Rngs(0), **small)
        for it in (True, False)
    )
    assert float(jnp.std(model.class_token[...])) == pytest.approx(1e-6, rel=0.12)
    state, want = nnx.state(model), nnx.state(without)
    assert "class_token" not in want
    del state["class_token"]
    assert_same_bits(state, want)


def test_a_row_without_tokens_has_the_class_token_alone():
    model = classifier("softmax", "class")
    x, nothing = np.full((2, 4, CHANNELS), np.nan, np.float32), np.zeros((2, 4), bool)
    weights = normal(5, 2, CLASSES)
    got = pulled(model, x, weights, mask=nothing)
    assert_same_bits(got.y[0], got.y[1])
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(got.params))


def test_attending_to_padding_leaves_the_class_token_visible():
    model = classifier("softmax", "class", attends_to_padding=True)
    x, mask = normal(6, 2, 5, CHANNELS), np.arange(5) < np.array([[3], [5]])
    zeroed = np.where(mask[..., None], x, 0)
    assert_close(call(model, np.where(mask[..., None], x, np.nan), mask=mask),
                 call(model, zeroed), "float32")  # fmt: skip


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_the_head_reads_the_class_token(activation):
    model = classifier("taylorshift", "class", head_activation=activation)
    x = normal(7, 2, 5, CHANNELS)
    h = np.asarray(call(model.backbone, x)[:, 0])
    if activation == "gelu":
        h = np.asarray(jax.nn.gelu(h, approximate=False))
    kernel, bias = np.asarray(model.kernel[...][0]), np.asarray(model.bias[...])
    y = call(model, x)
    assert y.dtype == np.float32
    assert_close(y, h @ kernel + bias, "float32")


def test_mechanisms_that_learn_positions_have_one_more():
    model = backbone("linformer:num_projections=2", num_layers=1, **WHOLE)
    table = model.blocks[0].attention.mechanism_parameters["key_projection"]
    assert table.shape == (MAX_LENGTH + 1, 2)
    assert call(model, normal(9, 1, MAX_LENGTH, CHANNELS)).shape == (1, MAX_LENGTH + 1, 8)
    with pytest.raises(ValueError, match="has max_length=8, but the model needs 9 positions"):
        backbone("aft:max_length=8", **WHOLE)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["dots", "blocks"])
def test_recomputation_changes_nothing(remat):
    """Drop path included; without it this is a fast test of ``test_backbone.py``."""
    x, mask = normal(10, 2, 6, CHANNELS), np.ones((2, 6), bool)

    def outputs(remat):
        model = classifier("softmax", "class", remat=remat, drop_path_rate=0.5, num_layers=2)
        graph, params = nnx.split(model)

        def loss(params):
            y = nnx.merge(graph, params)(x, mask=mask, dropout_key=jax.random.key(3))
            return jnp.sum(y**2)

        return jax.jit(jax.value_and_grad(loss))(params)

    assert_close(outputs(remat), outputs("none"), "float32")


def test_a_causal_model_has_none():
    for build in (
        lambda: models.Backbone(3, 8, num_heads=2, class_token=True, rngs=nnx.Rngs(0)),
        lambda: classifier("aaren", "class", is_causal=True),
    ):
        with pytest.raises(ValueError, match="attends to the whole sequence, which a causal"):
            build()


def test_head_and_backbone_have_to_agree():
    having, lacking = backbone("softmax", **WHOLE), backbone("softmax", is_causal=False)
    refused = {
        "the head reads a class token, but the backbone has none; make": lambda: (
            models.SequenceClassifier(lacking, 3, pooling="class", rngs=nnx.Rngs(0))
        ),
        "has a class token, which this head would read as an observation": lambda: (
            models.SequenceClassifier(having, 3, rngs=nnx.Rngs(0))
        ),
        "the head reads a class token, but the backbone has none": lambda: (
            models.SequenceClassifier(3, 3, pooling="class", class_token=False, rngs=nnx.Rngs(0))
        ),
        "the backbone has a class token, which this head": lambda: models.Forecaster(
            3, 4, class_token=True, is_causal=False, rngs=nnx.Rngs(0)
        ),
    }
    for message, build in refused.items():
        with pytest.raises(ValueError, match=message):
            nnx.eval_shape(build)


@pytest.mark.parametrize(
    ("rate", "depth", "want"),
    [(0.05, 12, [0.05 * i / 11 for i in range(12)]), (0.1, 1, [0.0]), (0.0, 3, [0.0] * 3)],
)
def test_drop_path_grows_with_depth(rate, depth, want):
    """As timm's linspace(0, rate, depth)."""
    layers = models.Layers(8, depth, 2, drop_path_rate=rate)
    assert layers.drop_path_rates == pytest.approx(want)
    model = nnx.eval_shape(lambda: models.Backbone(3, layers, rngs=nnx.Rngs(0)))
    assert [block.drop_path_rate for block in model.blocks] == pytest.approx(want)


def test_layers_of_the_two_options():
    layers = models.Layers(8, 2, 2, layer_scale=0.01, drop_path_rate=0.1)
    model = models.Backbone(3, layers, rngs=nnx.Rngs(0))
    for block in model.blocks:
        assert block.attention_scale.scale[...].tolist() == pytest.approx([0.01] * 8)
    with pytest.raises(ValueError, match="layer_scale must be positive, got 0"):
        dataclasses.replace(layers, layer_scale=0)
    with pytest.raises(ValueError, match=r"drop_path_rate must be in \[0, 1\), got 1"):
        dataclasses.replace(layers, drop_path_rate=1.0)
    for option in ({"layer_scale": 0.1}, {"drop_path_rate": 0.1}):
        with pytest.raises(ValueError, match=f"does not support {next(iter(option))}"):
            models.EncoderDecoder(3, 4, label_length=2, features=8, num_heads=2,
                                  rngs=nnx.Rngs(0), **option)  # fmt: skip


def test_a_model_of_drop_path_alone_trains_with_its_own_keys():
    model = models.SequenceClassifier(
        3, 4, features=8, num_layers=2, num_heads=2, mechanism="softmax", dropout_rate=0.0,
        drop_path_rate=0.9, pooling="class", rngs=nnx.Rngs(params=0, dropout=1),
    )  # fmt: skip
    x = normal(13, 16, 5, 3)
    sure = call(model, x)
    model.train()
    run = nnx.jit(lambda model, x: model(x))
    first, second = run(model, x), run(model, x)
    assert not np.allclose(first, second, atol=1e-3)
    model.eval()
    assert_same_bits(np.asarray(run(model, x)), sure)
