"""The classifier end to end: parallel, prefixes, steps, splits, padding, packing, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import models
from tests.contract.tolerances import assert_close
from tests.models.cases import (
    CHANNELS,
    CLASSES,
    STREAMING,
    classifier,
    rows_of_segments,
)
from tests.nn.cases import LAYOUTS, call, normal, padded, pulled, run_steps

ROWS, LENGTH = LAYOUTS.shape
EVERYWHERE = np.ones((ROWS, LENGTH), bool)
WEIGHTS = normal(20, ROWS, CLASSES)


def whole(model, x, mask):
    """Logits [B, classes] and gradients, by the program that most tests share."""
    return pulled(model, x, WEIGHTS, mask=mask)


@pytest.mark.parametrize(("mechanism", "pooling"), STREAMING)
def test_sequences_without_tokens_give_the_bias(mechanism, pooling):
    model = classifier(mechanism, pooling)
    x = np.full((ROWS, LENGTH, CHANNELS), np.nan, np.float32)
    got = whole(model, x, ~EVERYWHERE)
    assert_close(got.y, np.tile(model.bias[...], (ROWS, 1)), "float32")
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(got.params))


@pytest.mark.parametrize("pooling", ["mean", "flatten"])
def test_packed_sequences_have_their_logits_everywhere(pooling):
    """Without ``every_step`` each position has the logits of its whole sequence."""
    model = classifier(pooling=pooling)
    ids, mask, sequences = rows_of_segments()
    x = normal(4, 2, 8, CHANNELS)
    every, last = (
        call(model, x, mask=mask, segment_ids=ids, every_step=each) for each in (True, False)
    )
    assert last.shape == (2, 8, CLASSES)
    for row, places in sequences:
        whole = np.tile(every[row, places[-1]], (len(places), 1))
        assert_close(last[row, places], whole, "float32")


def test_flatten_is_trained_alike_on_rows_longer_than_its_weights():
    """Padding, wherever it stands, has no weights; logits and gradients are those without it."""
    model = classifier(pooling="flatten", max_length=4)
    real = normal(12, ROWS, 4, CHANNELS)
    got, want = whole(model, padded(real), LAYOUTS), pulled(model, real, WEIGHTS)
    assert_close(got.y, want.y, "float32")
    for a, b in zip(jax.tree.leaves(got.params), jax.tree.leaves(want.params), strict=True):
        assert_close(a, b, "float32")


@pytest.mark.parametrize("activation", ["gelu", "none"])
@pytest.mark.parametrize("pooling", models.POOLINGS)
def test_heads_are_their_formula(pooling, activation):
    """In parallel and by steps; flatten as Time-Series-Library, whose tail beyond T is 0."""
    model = classifier(pooling=pooling, head_activation=activation)
    x = normal(9, ROWS, LENGTH, CHANNELS)
    h = call(model.backbone, x)
    if activation == "gelu":
        h = np.asarray(jax.nn.gelu(h, approximate=False))
    kernel = np.asarray(model.kernel[...])
    pooled = {
        "last": lambda: h[:, -1] @ kernel[0],
        "mean": lambda: h.mean(axis=1) @ kernel[0],
        "flatten": lambda: h.reshape(ROWS, -1) @ kernel[:LENGTH].reshape(-1, CLASSES),
    }
    want = pooled[pooling]() + np.asarray(model.bias[...])
    assert_close(call(model, x), want, "float32")
    streamed, _ = run_steps(model, x, model.init_state(ROWS))
    assert_close(streamed[:, -1], want, "float32")


def test_flatten_beyond_its_weights_is_nan():
    """By steps; a wrong logit would pass unseen. In parallel it is refused."""
    model = classifier(pooling="flatten", max_length=3)
    with pytest.raises(ValueError, match="positions for 3 observations, got 4"):
        model(normal(10, 1, 4, CHANNELS))
    logits, _ = run_steps(model, normal(10, 1, 4, CHANNELS), model.init_state(1))
    assert np.isfinite(logits[:, :3]).all()
    assert np.isnan(logits[:, 3:]).all()


# -- the stream --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_long_stream_is_the_parallel_result(pooling):
    """3000 observations: chunked in parallel, one by one as a recurrent network."""
    model = classifier(pooling=pooling, max_length=None)
    x = normal(14, 1, 3000, CHANNELS)

    @jax.jit
    def stream(x):
        def step(state, x):
            logits, state = model.step(x, state)
            return state, logits

        return jax.lax.scan(step, model.init_state(1), jnp.moveaxis(x, 1, 0))[1]

    running = jax.jit(lambda x: model(x, every_step=True))(x)
    assert_close(jnp.moveaxis(stream(x), 0, 1), running, "float32")


# -- refusals ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "max"}, "pooling must be one of last, mean, flatten, class, got 'max'"),
        ({"head_activation": "relu"}, "head_activation must be one of gelu, none, got 'relu'"),
        ({"pooling": "flatten", "max_length": None}, "flatten .* pass max_length"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"position": "rotary"}, "position must be one of sinusoidal, learned, none, got 'rotary'"),
        ({"position": "learned", "max_length": None}, "learned positions need max_length"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        classifier(**options)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_may_see_padding(causal):
    """Zeros, whatever stands there; from behind they reach what looks ahead only."""
    options = {"is_causal": causal, "pooling": "flatten"}
    masked, seen = (
        classifier("softmax", attends_to_padding=see, **options) for see in (False, True)
    )
    x = np.random.default_rng(0).normal(size=(1, 8, CHANNELS)).astype(np.float32)
    mask = np.arange(8) < np.array([[5]])
    x[:, 5:] = 7.0
    zeros = np.where(mask[..., None], x, 0.0)
    got = call(seen, x, mask=mask)
    np.testing.assert_allclose(got, call(seen, zeros, mask=mask), rtol=1e-5)
    same = np.allclose(call(masked, x, mask=mask), got, rtol=1e-4, atol=1e-4)
    assert same == causal
