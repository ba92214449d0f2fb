"""A head on disk; ``tests/inference/test_export.py`` has its step in other programs."""

from flax import nnx

from flax_linattn import models
from tests.contract.tolerances import assert_same_bits
from tests.models.contract.heads import FIRST, HEADS, ROWS, model_of, observations, run
from tests.nn.cases import call, run_steps


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
