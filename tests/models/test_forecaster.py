"""Forecasters of channels: their moments, and the encoder-decoder."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import models
from tests.nn.cases import CAUSAL, call, moved

CHANNELS, MARKS, HORIZON = 3, 2, 4


@cache
def forecaster(mechanism="aaren", **options):
    options = {"num_layers": 1, "targets": (2, 0), "memory": 5.0, "max_length": 8} | options
    return moved(
        models.Forecaster(CHANNELS, HORIZON, num_covariates=MARKS, features=8, num_heads=2,
                          hidden_features=12, mechanism=mechanism, rngs=nnx.Rngs(0), **options)
    )  # fmt: skip


def observations(*shape, seed=0):
    x = np.random.default_rng(seed).normal(size=(*shape, CHANNELS + MARKS))
    return (x * [3, 1, 0.1, 1, 1] + [5, 0, -2, 0, 0]).astype(np.float32)


SOME = [
    case if case.id == "aaren" else pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)
    for case in CAUSAL
]


def reference(x, memory):
    """Weighted moments of every prefix, straight from their definition."""
    means, stds = [], []
    for t in range(1, len(x) + 1):
        age = np.arange(t)[::-1]
        weight = np.ones(t) if memory is None else np.exp(-age / memory)
        mean = np.average(x[:t], axis=0, weights=weight)
        variance = np.average(np.square(x[:t] - mean), axis=0, weights=weight)
        means.append(mean)
        stds.append(np.sqrt(variance + 1e-5))
    return np.stack(means), np.stack(stds)


@partial(jax.jit, static_argnums=0)
def running_moments(moments, x, mask):
    return moments(x, moments.init_state(1, 2), mask=mask)[0]


@given(st.integers(1, 40), st.sampled_from([None, 0.7, 20.0]), st.integers(0, 9))
def test_moments_are_those_of_the_definition(length, memory, seed):
    x = np.random.default_rng(seed).normal(1000, 2, size=(1, 40, 2)).astype(np.float32)
    mask = np.arange(40)[None] < length
    x[~mask] = 0
    mean, std = (a[0, :length] for a in running_moments(models.Moments(memory), x, mask))
    want_mean, want_std = reference(x[0, :length].astype(np.float64), memory)
    np.testing.assert_allclose(mean, want_mean, rtol=1e-6)
    np.testing.assert_allclose(std, want_std, rtol=2e-3, atol=5e-4)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="channels 0 to 2, got \\(3,\\)"):
        forecaster(targets=(3,))
    with pytest.raises(ValueError, match="horizon must be at least 1"):
        models.Forecaster(1, 0, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="every_step=True, or positions"):
        forecaster()(observations(2, 8), segment_ids=np.zeros((2, 8), np.int32))


@pytest.mark.parametrize("mechanism", SOME)
def test_encoder_decoder(mechanism):
    """Shapes, gradients everywhere, and levels that are carried through."""
    model = moved(
        models.EncoderDecoder(CHANNELS, HORIZON, num_covariates=MARKS, label_length=3, targets=(1,),
                              features=8, num_heads=2, hidden_features=12, num_layers=1,
                              mechanism=mechanism, rngs=nnx.Rngs(0))
    )  # fmt: skip
    values = observations(2, 6)[..., :CHANNELS]
    marks = observations(2, 6 + HORIZON, seed=1)[..., CHANNELS:]
    y = call(model, values, marks)
    assert y.shape == (2, HORIZON, 1)
    np.testing.assert_allclose(
        call(model, values * np.float32(2) + np.float32(9), marks), y * 2 + 9, rtol=2e-3, atol=2e-3
    )
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    grads = jax.jit(
        jax.grad(lambda p: jnp.sum(jnp.square(nnx.merge(graph, p, rest)(values, marks))))
    )(params)
    flat = {jax.tree_util.keystr(p): g for p, g in jax.tree.leaves_with_path(grads)}
    unused = [name for name, g in flat.items() if not np.any(g)]
    # A softmax that every key shares does not see their bias.
    assert all("key_projection" in name and "bias" in name for name in unused)


def test_encoder_decoder_refuses_what_does_not_fit():
    model = models.EncoderDecoder(2, 3, label_length=2, features=8, num_heads=2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"expected values of shape \[B, L >= 2, 2\]"):
        model(jnp.ones((1, 1, 2)))
    with pytest.raises(ValueError, match="expected no covariates"):
        model(jnp.ones((1, 4, 2)), jnp.ones((1, 7, 1)))
    with pytest.raises(
        ValueError, match=r"expected no covariates, .* num_covariates=0, got shape \(1, 4, 1\)"
    ):
        model(jnp.ones((1, 4, 2)), jnp.ones((1, 4, 1)))
    with pytest.raises(ValueError, match="no causal form"):
        models.EncoderDecoder(2, 3, label_length=2, features=8, num_heads=2,
                              mechanism="linformer:max_length=8", rngs=nnx.Rngs(0))  # fmt: skip
