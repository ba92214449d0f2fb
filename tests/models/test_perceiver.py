"""Sequences read by latents: parallel, prefixes, steps, splits, padding, packing, saved models."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_linattn import models
from tests.contract.tolerances import assert_close
from tests.models.cases import CHANNELS, CLASSES
from tests.nn.cases import LAYOUTS, call, moved, normal

ROWS, LENGTH = LAYOUTS.shape
LATENTS = 3


@functools.cache
def reader(reads_by="aaren", **options):
    options = {"num_layers": 1, "rngs": nnx.Rngs(0)} | options
    return moved(
        models.PerceiverReader(
            CHANNELS,
            CLASSES,
            num_latents=LATENTS,
            reads_by=reads_by,
            features=8,
            num_heads=2,
            hidden_features=12,
            **options,
        )
    )


def test_what_the_latents_read_is_softmax_cross_attention():
    """The model written out by the plain equations of its parts."""
    model = reader()
    x = normal(2, ROWS, LENGTH, CHANNELS)
    positions = jnp.tile(jnp.arange(LENGTH), (ROWS, 1))

    @nnx.jit
    def plain(model, x):
        h, _ = model.input_embedding(x, positions=positions)
        layer = model.latent_attention
        q, k, v = (
            projection(tokens).reshape(ROWS, -1, 2, 4)
            for projection, tokens in (
                (layer.query_projection, jnp.broadcast_to(layer.latents, (ROWS, LATENTS, 8))),
                (layer.key_projection, h),
                (layer.value_projection, h),
            )
        )
        weight = jax.nn.softmax(jnp.einsum("blhk,bshk->bhls", q, k) * 0.5, axis=-1)
        read = layer.out_projection(jnp.einsum("bhls,bshv->blhv", weight, v).reshape(ROWS, -1, 8))
        z = model.read_norm(layer.latents + read)
        return model.head(model.backbone(z).mean(axis=1))

    assert_close(call(model, x), plain(model, x), "float32")


def test_the_size_of_the_state():
    heads = 2 * LATENTS * 2  # rows, latents, heads of 4 channels
    latents = reader().init_state(2).latents
    assert sum(leaf.size for leaf in jax.tree.leaves(latents)) == heads * (1 + 1 + 4)


def test_an_embedding_of_tokens():
    embedding = models.TokenEmbedding(11, 8, rngs=nnx.Rngs(0))
    model = models.PerceiverReader(
        embedding, 2, num_latents=2, features=8, num_heads=2, rngs=nnx.Rngs(1)
    )
    assert call(model, jnp.array([[1, 2, 3]])).shape == (1, 2)


def test_layers_with_a_parameter_for_each_position_have_one_for_each_latent():
    model = models.PerceiverReader(
        3, 2, num_latents=2, features=8, num_heads=2, mechanism="linformer", rngs=nnx.Rngs(0)
    )
    assert model.backbone.mechanisms[0].max_length == 2
    assert call(model, normal(1, 2, 5, 3)).shape == (2, 2)


REFUSED = [
    ({"rotary": True, "mechanism": "softmax"}, "latents have no positions"),
    ({"reads_by": "softmax"}, "choose one of: aaren, forgetting_aaren"),
    ({"num_latents": 0}, "num_latents must be at least 1"),
    (
        {"mechanism": "gated_linear"},
        "since latents have no order, but 'gated_linear' is causal only",
    ),
    ({"color": 1}, "color"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        models.PerceiverReader(3, 2, features=8, num_heads=2, rngs=nnx.Rngs(0), **options)


def test_packed_sequences_are_not_read_as_one():
    with pytest.raises(ValueError, match="every_step=True"):
        reader()(normal(1, 2, 5, CHANNELS), segment_ids=jnp.zeros((2, 5), int))


def test_what_looks_at_the_future_does_not_stream():
    model = reader(embedding_padding="circular")
    assert not model.streams
    for use in (lambda: model.init_state(1), lambda: model(jnp.ones((1, 2, 3)), every_step=True)):
        with pytest.raises(ValueError, match="embedding_padding='causal'"):
            use()
