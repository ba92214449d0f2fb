"""nnx.tabulate shows every module: it runs each of their public methods under jit."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_linattn import models, nn

SIZES = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 12}
VALUES, TOKENS = jnp.ones((1, 5, 3)), jnp.ones((1, 5), int)


def attention(mechanism="aaren"):
    return nn.Attention(3, 1, mechanism=mechanism, rngs=nnx.Rngs(0))


MODULES = {
    "attention": (attention, VALUES),
    "attention that learns a temperature": (lambda: attention("taylorshift"), VALUES),
    "block": (lambda: nn.TransformerBlock(3, 1, rngs=nnx.Rngs(0)), VALUES),
    "backbone": (lambda: models.Backbone(3, **SIZES, rngs=nnx.Rngs(0)), VALUES),
    "classifier": (lambda: models.SequenceClassifier(3, 4, **SIZES, rngs=nnx.Rngs(0)), VALUES),
    "classifier by a class token": (
        lambda: models.SequenceClassifier(
            models.Backbone(
                models.ConvTokenEmbedding(11, 8, rngs=nnx.Rngs(0)), **SIZES, layer_scale=0.1,
                is_causal=False, class_token=True, rngs=nnx.Rngs(0),
            ),
            4, pooling="class", rngs=nnx.Rngs(0),
        ),
        TOKENS,
    ),
    "image classifier": (
        lambda: models.ImageClassifier((8, 8), 4, 5, **SIZES, rngs=nnx.Rngs(0)),
        jnp.ones((1, 8, 8, 3)),
    ),
    "reader": (lambda: models.PerceiverReader(3, 4, **SIZES, rngs=nnx.Rngs(0)), VALUES),
    "forecaster": (lambda: models.Forecaster(3, 4, **SIZES, rngs=nnx.Rngs(0)), VALUES),
    "decision transformer": (
        lambda: models.DecisionTransformer(2, 1, **SIZES, max_length=5, rngs=nnx.Rngs(0)),
        jnp.ones((1, 5, 6)),
    ),
    "language model": (lambda: models.LanguageModel(11, **SIZES, rngs=nnx.Rngs(0)), TOKENS),
    "window model": (lambda: models.WindowModel(11, 5, rngs=nnx.Rngs(0)), TOKENS),
    "encoder-decoder": (
        lambda: models.EncoderDecoder(3, 4, label_length=2, **SIZES, rngs=nnx.Rngs(0)),
        VALUES,
    ),
}  # fmt: skip


SLOW = {"classifier by a class token", "decision transformer", "image classifier", "backbone"}
"""Whose parts the others show."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in MODULES]
)
def test_every_module_is_shown(name):
    make, x = MODULES[name]
    model = make()
    table = nnx.tabulate(model, x, console_kwargs={"width": 200, "force_terminal": False})
    assert f"{type(model).__name__} Summary" in table
    assert "key_projection" in table
    want = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert f"Total Parameters: {want:,} " in table
