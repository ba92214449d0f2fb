"""A head on disk, and its step in other programs."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_linattn import models
from tests.contract.tolerances import assert_same_bits
from tests.models.contract.heads import FIRST, HEADS, ROWS, model_of, observations, run
from tests.nn.cases import call, run_steps

slow = pytest.mark.slow


@FIRST
def test_a_loaded_head_is_the_saved_one(name, mechanism, tmp_path):
    """Its parameters, and whatever it computes: nothing is compiled again for it."""
    model, x = model_of(name, mechanism), observations(name)
    models.save_model(tmp_path / "head", model)
    loaded = models.load_model(tmp_path / "head")
    assert nnx.graphdef(loaded) == nnx.graphdef(model)
    assert hash(nnx.graphdef(loaded)) == hash(nnx.graphdef(model))
    assert_same_bits(nnx.state(loaded), nnx.state(model))
    if HEADS[name].streams:
        assert_same_bits(run(name, loaded, x), run(name, model, x))
        begin = model.init_state(ROWS)
        assert_same_bits(run_steps(loaded, x, begin), run_steps(model, x, begin))
    else:
        assert_same_bits(call(loaded, x), call(model, x))


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        pytest.param(*mark.values, id=mark.id, marks=() if mark.id == "events" else slow)
        for mark in FIRST.args[1]
        if HEADS[mark.id].streams
    ],
)
def test_a_step_is_exported_with_its_state(name, mechanism):
    """And runs to equal bits where the model is not known."""
    model, x = model_of(name, mechanism), jnp.asarray(observations(name)[:, 1])
    state = model.init_state(ROWS)
    step = jax.jit(lambda x, state: model.step(x, state))
    saved = jax.export.export(step)(x, state).serialize()
    assert_same_bits(jax.export.deserialize(saved).call(x, state), step(x, state))
