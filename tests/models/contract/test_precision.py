"""Half precision and float64: of layers, of parameters, of observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.contract.tolerances import assert_close
from tests.models.contract.heads import FIRST, HEADS, ROWS, heads, model_of, observations, run
from tests.nn.cases import call, run_steps

slow = pytest.mark.slow


MIXED = (
    *("forecaster", "forecaster of quantiles", "patches", "patches of mixed channels"),
    "language untied",
)
"""Whose heads have float32 kernels, which Flax mixes with features of half precision."""


def dtypes(tree):
    return jax.tree.map(lambda a: a.dtype, tree)


@heads(fast="aaren")
def test_bfloat16_layers(name, mechanism):
    """Outputs are float32, and near those of float32 layers; states keep their dtypes."""
    model, exact = model_of(name, mechanism, dtype="bfloat16"), model_of(name, mechanism)
    x = observations(name)
    if not HEADS[name].streams:
        y, want = call(model, x), call(exact, x)
        assert y.dtype == np.float32
        assert_close(y, want, "bfloat16")
        return
    begin = model.init_state(ROWS)
    with jax.numpy_dtype_promotion("standard" if name in MIXED else "strict"):
        y, state = run(name, model, x)
        streamed, after = run_steps(model, x, begin)
    want, _ = run(name, exact, x)
    assert y.dtype == streamed.dtype == ("bfloat16" if name == "backbone" else np.float32)
    assert_close(y, want, "bfloat16")
    assert_close(streamed, want, "bfloat16")
    assert dtypes(after) == dtypes(state) == dtypes(begin)


@slow
@FIRST
def test_bfloat16_parameters(name, mechanism):
    """All but tables of positions are, and outputs are float32 even so."""
    if not HEADS[name].streams or name == "convolved tokens":
        pytest.skip("of parts that are made alone")
    options = {"dtype": "bfloat16", "param_dtype": jnp.bfloat16}
    model, x = model_of(name, mechanism, **options), observations(name)
    for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.state(model, nnx.Param)):
        at = jax.tree_util.keystr(path)
        assert leaf.dtype == jnp.bfloat16 or "times" in at or "positions" in at, at
    with jax.numpy_dtype_promotion("standard"):
        y, _ = run(name, model, x)
        streamed, _ = run_steps(model, x, model.init_state(ROWS))
    assert y.dtype == ("bfloat16" if name == "backbone" else np.float32)
    assert_close(streamed, y, "bfloat16")


@heads(lambda case: case.streams, fast="aaren", slow_variants=True)
def test_float64_observations_of_float32_parameters(name, mechanism):
    """What float32 ones give, and steps as in parallel."""
    x = observations(name)
    if x.dtype.kind == "i":
        pytest.skip("tokens have no precision")
    want, _ = run(name, model_of(name, mechanism), x)
    # Flax itself mixes the two where dtype promotion is not strict.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        model, wide = model_of(name, mechanism), jnp.asarray(x, jnp.float64)
        y, _ = run(name, model, wide, state=model.init_state(ROWS, dtype=jnp.float64))
        streamed, _ = run_steps(model, wide, model.init_state(ROWS, dtype=jnp.float64))
        assert_close(y, want.astype(y.dtype), "float32")
        assert_close(streamed, y, "float32")
