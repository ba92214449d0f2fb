"""What comes into any model: NumPy arrays, lists, states of another number of rows."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models, nn, ops

SMALL = {"features": 8, "num_heads": 2, "num_layers": 1, "hidden_features": 8}

MODELS = {
    "backbone": lambda: models.Backbone(3, **SMALL, rngs=nnx.Rngs(0)),
    "classifier": lambda: models.SequenceClassifier(3, 2, **SMALL, rngs=nnx.Rngs(0)),
    "forecaster": lambda: models.Forecaster(3, 4, **SMALL, rngs=nnx.Rngs(0)),
    "patches": lambda: models.PatchForecaster(3, 4, **SMALL, rngs=nnx.Rngs(0)),
    "perceiver": lambda: models.PerceiverReader(3, 2, num_latents=2, **SMALL, rngs=nnx.Rngs(0)),
}

FORECASTERS = ("forecaster", "patches")

EACH = pytest.mark.parametrize("name", MODELS)


@functools.cache
def model_of(name):
    return MODELS[name]()


@EACH
@pytest.mark.parametrize("rows", [1, 3])
def test_a_state_of_another_number_of_rows_is_refused(name, rows):
    model = model_of(name)
    state = model.init_state(rows)
    with pytest.raises(ValueError, match=f"the state has {rows} rows, and observations of 2 came"):
        model(jnp.ones((2, 4, 3)), state=state)
    if name in FORECASTERS:
        with pytest.raises(ValueError, match=f"the state has {rows} rows"):
            model.step(jnp.ones((2, 3)), state)


def test_so_is_one_of_a_window():
    model = models.WindowModel(5, 4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="the state has 3 rows, and observations of 2 came"):
        model(jnp.ones((2, 4), jnp.int32), state=model.init_state(3))


@EACH
def test_lists_are_refused(name):
    with pytest.raises(TypeError, match=r"observations as an array \[B, T.*, 3\], got list; make"):
        model_of(name)([[[1.0, 2.0, 3.0]]])


def test_a_layer_refuses_lists():
    with pytest.raises(TypeError, match=r"expected x as an array \[B, T, 8\], got list"):
        nn.Attention(8, 2, rngs=nnx.Rngs(0))([[1.0] * 8])
    with pytest.raises(TypeError, match=r"expected x as an array \[B, T, 8\], got list"):
        nn.LatentAttention(8, 2, 3, rngs=nnx.Rngs(0))([[1.0] * 8])


def test_numpy_arrays_of_float64_are_taken_without_a_warning():
    """Where JAX has no float64 they count as float32, as everywhere in JAX."""
    x = np.linspace(0, 1, 24).reshape(2, 4, 3)
    conv = nn.ValueEmbedding(3, 8, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(conv(x), conv(jnp.asarray(x)))
    model = model_of("forecaster")
    y, _ = model.step(x[:, 0], model.init_state(2))
    assert y.dtype == jnp.float32


def test_mechanisms_take_them_too():
    aaren = ops.get_mechanism("aaren")
    q, k = np.ones((2, 4)), np.ones((1, 3, 2, 4))
    y, state = aaren.attend(q, k, k, is_causal=True, return_state=True)
    y_next, _ = aaren.step(q, k[:, 0], k[:, 0], state)
    assert y.dtype == y_next.dtype == jnp.float32
