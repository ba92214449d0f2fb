"""nnx.tabulate shows every module: it runs each of their public methods under jit."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_linattn import models, nn
from tests.models.contract.heads import FIRST, HEADS, LAYERS

VALUES = jnp.ones((1, 5, 3))
FAST = ("classifier", "forecaster", "language", "latents", "window")
"""Whose parts are those of the others."""


def attention(mechanism):
    return nn.Attention(3, 1, mechanism=mechanism, rngs=nnx.Rngs(0))


MODULES = {
    "attention": (lambda: attention("aaren"), VALUES),
    "attention that learns a temperature": (lambda: attention("taylorshift"), VALUES),
    "block": (lambda: nn.TransformerBlock(3, 1, rngs=nnx.Rngs(0)), VALUES),
    "image classifier": (
        lambda: models.ImageClassifier((8, 8), 4, 5, **LAYERS, rngs=nnx.Rngs(0)),
        jnp.ones((1, 8, 8, 3)),
    ),
    "encoder-decoder": (
        lambda: models.EncoderDecoder(3, 4, label_length=2, **LAYERS, rngs=nnx.Rngs(0)),
        VALUES,
    ),
}


def check(model, x):
    table = nnx.tabulate(model, x, console_kwargs={"width": 200, "force_terminal": False})
    assert f"{type(model).__name__} Summary" in table
    assert "key_projection" in table
    want = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert f"Total Parameters: {want:,} " in table


@pytest.mark.parametrize("name", MODULES)
def test_every_module_is_shown(name):
    make, x = MODULES[name]
    check(make(), x)


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        pytest.param(*mark.values, id=mark.id, marks=() if mark.id in FAST else pytest.mark.slow)
        for mark in FIRST.args[1]
    ],
)
def test_every_head_is_shown(name, mechanism):
    case = HEADS[name]
    check(case.make(mechanism=mechanism, rngs=nnx.Rngs(0)), jnp.asarray(case.observations(0, 1, 5)))
