"""The stream: one compiled step, constant state, the same numbers as the parallel model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import inference, models
from tests.nn.cases import CAUSAL


def classifier(mechanism: str) -> models.SequenceClassifier:
    return models.SequenceClassifier(
        3, 4, features=8, num_layers=1, num_heads=2, mechanism=mechanism, rngs=nnx.Rngs(0)
    )


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_stream_unroll_and_parallel_agree(mechanism):
    model = classifier(mechanism)
    x = jax.random.normal(jax.random.key(1), (2, 6, 3))
    mask = jnp.array([[True] * 6, [False, True, True, False, True, False]])
    parallel = model(x, mask=mask, every_step=True)
    unrolled = inference.unroll(model, x, mask)
    stream = inference.Stream(model, batch_size=2, max_length=6)
    streamed = jnp.stack([stream.step(x[:, t], mask[:, t]) for t in range(6)], axis=1)
    # At a masked position the stream repeats its last answer, as the parallel model does.
    np.testing.assert_allclose(streamed, parallel, atol=1e-5)
    np.testing.assert_allclose(unrolled, parallel, atol=1e-5)


def test_one_compilation_and_flat_state():
    stream = inference.Stream(classifier("aaren"))
    x = jnp.ones((1, 3))
    stream.step(x)
    size = inference.state_bytes(stream.state)
    for _ in range(300):
        stream.step(x)
    assert stream.num_compilations == 1
    assert inference.state_bytes(stream.state) == size
    assert stream.num_steps == 301


def test_a_state_that_grows_is_refused():
    stream = inference.Stream(classifier("softmax"))
    with pytest.raises(ValueError, match="give max_length"):
        stream.step(jnp.ones((1, 3)))


def test_reset_forgets():
    stream = inference.Stream(classifier("aaren"))
    x = jax.random.normal(jax.random.key(2), (1, 3))
    first = stream.step(x)
    stream.step(-x)
    stream.reset()
    np.testing.assert_array_equal(stream.step(x), first)


def test_a_model_that_looks_ahead_is_refused():
    model = models.SequenceClassifier(
        3,
        4,
        features=8,
        num_layers=1,
        num_heads=2,
        embedding_padding="circular",
        rngs=nnx.Rngs(0),
    )
    with pytest.raises(ValueError, match="circular value embedding"):
        inference.Stream(model)
