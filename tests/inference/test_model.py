"""What inference asks of a model, and what it says where that, or a state, is something else."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import inference, models, nn
from tests.contract.tolerances import assert_close
from tests.inference.cases import CHANNELS, Language, backbone, classifier, language
from tests.nn.cases import call as compiled
from tests.nn.cases import normal

slow = pytest.mark.slow
SIZES = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 12}
MECHANISMS = ["aaren", pytest.param("softmax", marks=slow), pytest.param("taylorshift", marks=slow)]
FOREIGN = "expected a state of this"


@functools.cache
def every_model():
    """One of a kind, not to be changed."""
    rngs = nnx.Rngs(0)
    return [
        nn.Attention(8, 2, mechanism="aaren", rngs=rngs),
        nn.TransformerBlock(8, 2, mechanism="aaren", rngs=rngs),
        models.Backbone(3, **SIZES, rngs=rngs),
        models.SequenceClassifier(3, 4, **SIZES, rngs=rngs),
        models.Forecaster(3, 4, **SIZES, rngs=rngs),
        models.LanguageModel(11, **SIZES, rngs=rngs),
        models.WindowModel(11, 5, rngs=rngs),
        Language(),  # a user's own, with nothing inherited
    ]


def test_layers_and_models_are_streaming_models():
    for model in every_model():
        assert isinstance(model, inference.StreamingModel)
    assert not isinstance(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), inference.StreamingModel)


@pytest.mark.parametrize(
    "call",
    [
        lambda model: inference.generate(model, jnp.ones((1, 2), int), 3),
        lambda model: inference.prefill(model, jnp.ones((1, 2, 3))),
        lambda model: inference.unroll(model, jnp.ones((1, 2, 3))),
        lambda model: inference.rollout(model, jnp.ones((1, 3)), 2),
        inference.Stream,
    ],
    ids=["generate", "prefill", "unroll", "rollout", "Stream"],
)
def test_what_is_no_model_is_refused_at_once(call):
    with pytest.raises(
        TypeError, match="Linear, which has no init_state and no step; see flax_linattn"
    ):
        call(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    with pytest.raises(TypeError, match="got the class Backbone; pass an instance"):
        call(models.Backbone)


def test_a_layer_takes_in_a_prompt():
    """It needs to be causal, as its steps are."""
    layer = nn.Attention(8, 2, mechanism="aaren", is_causal=True, rngs=nnx.Rngs(0))
    x = normal(2, 2, 7, 8)
    want = inference.unroll(layer, x)[:, -1]
    for chunk_size in (None, 3):
        y, _ = inference.prefill(layer, x, chunk_size=chunk_size)
        assert_close(y, want, "float32")
    with pytest.raises(ValueError, match="return_state=True needs is_causal=True"):
        inference.prefill(nn.Attention(8, 2, mechanism="aaren", rngs=nnx.Rngs(0)), x)


class StepsOnly(nnx.Module):
    """Counts; it has no call on sequences."""

    def init_state(self, batch_size, max_length=None):
        return jnp.zeros(batch_size, jnp.int32)

    def step(self, x, state, *, mask=None):
        return state, state + 1


def test_a_model_without_a_call_on_sequences_only_steps():
    model, x = StepsOnly(), jnp.ones((2, 3, 1))
    assert inference.unroll(model, x)[0].tolist() == [0, 1, 2]
    assert inference.rollout(model, jnp.ones(2, jnp.int32), 3).outputs[0].tolist() == [0, 1, 2]
    stream = inference.Stream(model, batch_size=2)
    for call in (lambda: inference.prefill(model, x), lambda: stream.prefill(x)):
        with pytest.raises(TypeError, match="StepsOnly, which has no __call__"):
            call()


def refused(call):
    """The message of a ValueError, which has to be short and without values."""
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    assert len(message) < 700 and "Array" not in message and "ShapedArray" not in message
    return message


def test_states_of_other_models_and_rows_are_named_in_lines():
    model, x = classifier("aaren"), normal(1, 2, 5, CHANNELS)
    others = backbone().init_state(2), classifier("softmax").init_state(2, 8)
    for state in others:
        for call in (
            lambda state=state: inference.prefill(model, x, state=state),
            lambda state=state: inference.unroll(model, x, state=state),
            lambda state=state: inference.rollout(model, x[:, 0], 3, state=state),
        ):
            message = refused(call)
            assert f"{FOREIGN} SequenceClassifier with 2 rows" in message
            assert "\n  backbone.layers.0.m: expected [2, 2], got nothing" in message
    for call in (inference.prefill, inference.unroll):
        message = refused(lambda call=call: call(model, x, state=model.init_state(3)))
        assert message == "expected 3 observations, one per row of the state, got 2."
    message = refused(
        lambda: inference.generate(language(), jnp.ones((2, 4), int), 3, state=others[1])
    )
    assert f"{FOREIGN} Language with 2 rows" in message
    stream = inference.Stream(model, batch_size=2)
    for state in (*others, model.init_state(3), (1, 2)):
        message = refused(lambda state=state: setattr(stream, "state", state))
        assert (
            "expected a state of the same model, batch size" in message
            and "\n  backbone" in message
        )
    message = refused(lambda: model.step(x[:, 0], others[0]))
    assert "expected a ClassifierState from init_state or an earlier call" in message
    message = refused(lambda: model(x, state=others[0]))
    assert "expected a ClassifierState from init_state or an earlier call" in message


@pytest.mark.parametrize("shape", [(2, 3), (2, 5), (2, 5, 3, 1), (2, 5, 4)], ids=str)
@pytest.mark.parametrize("kind", ["Backbone", "SequenceClassifier", "Forecaster"])
def test_x_of_another_rank_is_named(kind, shape):
    model = next(model for model in every_model() if type(model).__name__ == kind)
    message = refused(lambda: inference.prefill(model, jnp.ones(shape)))
    expected = f"sequences of observations of the model, [B, T, ...], got float32{list(shape)}"
    assert f"expected x as {expected}" in message
    refused(lambda: model.step(jnp.ones((2, 3, 1)), model.init_state(2)))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_float64_observations_of_float32_parameters(mechanism):
    """Parallel against stepwise decoding, as Flax tests it: every way in which states are made."""
    options = SIZES | {"mechanism": mechanism, "rngs": nnx.Rngs(0)}
    model = models.SequenceClassifier(3, 4, **options)
    series = models.Backbone(3, **SIZES | {"features": 3, "num_heads": 1}, rngs=nnx.Rngs(0))
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        x = np.random.default_rng(0).normal(size=(2, 6, 3))
        parallel = compiled(model, x, every_step=True)
        unrolled = inference.unroll(model, x)
        np.testing.assert_allclose(unrolled, parallel, rtol=1e-6, atol=1e-6)
        stream = inference.Stream(model, batch_size=2, max_length=6, dtype=jnp.float64)
        streamed = [stream.step(x[:, t], reset=jnp.zeros(2, bool)) for t in range(3)]
        streamed += [stream.prefill(x[:, 3:5], chunk_size=2), stream.step(x[:, 5])]
        np.testing.assert_allclose(
            np.stack(streamed, 1), parallel[:, [0, 1, 2, 4, 5]], rtol=1e-6, atol=1e-6
        )
        stream.reset()
        np.testing.assert_allclose(stream.step(x[:, 0]), parallel[:, 0], rtol=1e-6, atol=1e-6)
        for chunk_size in (None, 4):
            y, _ = inference.prefill(model, x, chunk_size=chunk_size, max_length=6)
            np.testing.assert_allclose(y, parallel[:, -1], rtol=1e-6, atol=1e-6)
        rolled = inference.rollout(series, x[:, 0], 3)
        assert rolled.outputs.dtype == jnp.float64
        narrow = inference.Stream(model, batch_size=2, max_length=6)
        with pytest.raises(TypeError, match=r"must have dtype float64 .*\(\.\.\., dtype=\.\.\.\)"):
            narrow.step(x[:, 0])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_float64_inputs_of_the_layer_and_its_cell(mechanism):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        attention = nn.Attention(8, 2, mechanism=mechanism, rngs=nnx.Rngs(0))
        x = np.random.default_rng(0).normal(size=(2, 6, 8))
        parallel = attention(x, is_causal=True)
        assert parallel.dtype == jnp.float64
        np.testing.assert_allclose(inference.unroll(attention, x), parallel, rtol=1e-6, atol=1e-6)
        cell = nn.AttentionCell(attention, max_length=6, dtype=jnp.float64)
        np.testing.assert_allclose(nnx.RNN(cell)(x), parallel, rtol=1e-6, atol=1e-6)


def test_generation_of_a_model_in_float64():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        model = models.LanguageModel(11, **SIZES, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        prompt = jnp.array([[1, 2, 3]], jnp.int32)
        out = inference.generate(model, prompt, 4, dtype=jnp.float64)
        whole = jnp.concatenate([prompt, out.tokens], axis=1)
        np.testing.assert_array_equal(out.tokens, compiled(model, whole).argmax(axis=-1)[:, 2:-1])
