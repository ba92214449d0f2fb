"""LAMB, optimizers from their options, and losses, against float64 NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_linattn import models
from flax_linattn.checks import OptionError
from flax_linattn.training import (
    OptimizerOptions,
    lamb,
    make_optimizer,
    make_schedule,
    muon,
    pinball_loss,
    reciprocal_sqrt,
    smoothed_cross_entropy,
    warmup_cosine,
    weight_decay_mask,
)
from tests.training import problem


def lamb_in_numpy(
    params, all_grads, rate, *, decay, decayed, max_grad_norm, max_weight_norm, adapted
):
    """Algorithm 2 of You et al. (2020), an array at a time, float64."""
    b1, b2, eps = 0.9, 0.999, 1e-6
    params = {name: np.float64(value) for name, value in params.items()}
    m, v = ({name: np.zeros_like(value) for name, value in params.items()} for _ in range(2))
    for t, grads in enumerate(all_grads):
        whole = np.sqrt(sum(np.sum(np.float64(g) ** 2) for g in grads.values()))
        for name, grad in grads.items():
            g = np.float64(grad) * min(1.0, max_grad_norm / whole)
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g**2
            w = params[name]
            r = m[name] / (1 - b1 ** (t + 1)) / (np.sqrt(v[name] / (1 - b2 ** (t + 1))) + eps)
            u = r + decay * w * (name in decayed)
            length, step = np.sqrt(np.sum(w**2)), np.sqrt(np.sum(u**2))
            ratio = 1.0
            if length > 0 and step > 0 and name in adapted:
                ratio = min(length, max_weight_norm) / step
            params[name] = w - rate(t) * ratio * u
    return params


def trained(optimizer, params, all_grads):
    """As a training step does it: compiled, and with optax's mixed dtypes allowed."""

    @jax.jit
    def step(params, state, grads):
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for grads in all_grads:
        params, state = step(params, state, grads)
    return params


def arrays(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = {"kernel": (8, 16), "positions": (4, 8), "bias": (16,), "still": (3, 3)}
    return {name: (scale * rng.normal(size=s)).astype(np.float32) for name, s in shapes.items()}


@pytest.mark.parametrize(
    ("options", "adapted"),
    [
        ({}, ("kernel", "positions", "bias", "still")),
        ({"max_weight_norm": None}, ("kernel", "positions", "bias", "still")),
        ({"max_grad_norm": None, "max_weight_norm": 2.0}, ("kernel", "positions", "bias", "still")),
        ({"max_grad_norm": 1e6, "always_adapt": False}, ("kernel", "still")),
    ],
)
def test_lamb_is_algorithm_2(options, adapted):
    """Clipped and not, bounded and not; a parameter and a gradient are zero throughout."""
    params = arrays() | {"bias": np.zeros(16, np.float32)}  # zero at first: ratio 1
    steps = [arrays(seed, 10.0 ** (seed % 3 - 1)) for seed in range(1, 7)]
    for grads in steps:
        grads["still"][:] = 0
    schedule = reciprocal_sqrt(0.05, 3)
    optimizer = lamb(schedule, weight_decay=0.01, **options)
    expected = lamb_in_numpy(
        params,
        steps,
        lambda t: 0.05 * min(1, t / 3) / np.sqrt(max(t, 3)),
        decay=0.01,
        decayed=("kernel", "still"),
        max_grad_norm=options.get("max_grad_norm", 1.0) or np.inf,
        max_weight_norm=options.get("max_weight_norm", 10.0) or np.inf,
        adapted=adapted,
    )
    for name, value in trained(optimizer, params, steps).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=3e-6)
    assert not np.allclose(params["kernel"], expected["kernel"])


def test_trust_ratio_is_1_where_a_norm_is_0():
    params = {"zero": jnp.zeros(3), "still": jnp.ones(3)}
    moved = trained(lamb(0.1), params, [{"zero": jnp.ones(3), "still": jnp.zeros(3)}])
    np.testing.assert_allclose(moved["zero"], -0.1 * np.ones(3), rtol=1e-5)
    np.testing.assert_array_equal(moved["still"], params["still"])


def test_without_bound_clip_and_mask_it_is_that_of_optax():
    params, steps = arrays(), [arrays(seed) for seed in (1, 2)]
    every = lamb(
        0.1,
        weight_decay=0.1,
        max_grad_norm=None,
        max_weight_norm=None,
        decay_mask=lambda params: jax.tree.map(lambda x: True, params),
    )
    ours, theirs = (trained(o, params, steps) for o in (every, optax.lamb(0.1, weight_decay=0.1)))
    for name in params:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


def test_half_precision_stays_and_its_norms_do_not_overflow():
    params = {"w": jnp.full((64, 64), 300.0, jnp.float16)}  # the sum of squares is 3.7e8
    moved = trained(
        lamb(0.5, max_weight_norm=None), params, [{"w": jnp.ones((64, 64), jnp.float16)}]
    )
    assert moved["w"].dtype == jnp.float16
    np.testing.assert_allclose(np.float32(moved["w"]), 150.0, rtol=0.01)


def test_lamb_moves_the_state_of_a_model():
    """An ``nnx.State``, which is what training gives it."""
    model = problem.Net()
    params = nnx.state(model, nnx.Param)
    optimizer = lamb(warmup_cosine(0.1, 100, warmup_steps=10), weight_decay=1e-3)
    moved = trained(optimizer, params, [jax.tree.map(jnp.ones_like, params)])
    assert jax.tree.structure(moved) == jax.tree.structure(params)
    for before, after in zip(jax.tree.leaves(params), jax.tree.leaves(moved), strict=True):
        assert np.all(np.asarray(before) != np.asarray(after))
    mask = nnx.to_pure_dict(weight_decay_mask(params))
    assert mask["layers"][0] == {"bias": False, "kernel": True}


def test_what_decays_in_the_models_of_this_package():
    layers = models.Layers(features=8, num_layers=1, num_heads=2)
    rngs = nnx.Rngs(0)
    transformer = models.DecisionTransformer(
        3, 2, position="learned", max_length=4, layers=layers, rngs=rngs
    )
    mask = weight_decay_mask(nnx.state(transformer, nnx.Param))
    paths = {
        tuple(getattr(key, "key", key) for key in path[:-1])
        for path, decay in jax.tree_util.tree_flatten_with_path(mask)[0]
        if decay
    }
    assert {path[-1] for path in paths} == {"kernel"}
    assert ("embedding", "observation", "kernel") in paths


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"b1": 1.0}, r"b1 must be in \[0, 1\), got 1.0"),
        ({"b2": -0.1}, "b2 must be in"),
        ({"eps": 0.0}, "eps must be positive"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0, got -1.0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive"),
        ({"max_weight_norm": float("nan")}, "max_weight_norm must be positive"),
    ],
)
def test_lamb_refuses(options, message):
    with pytest.raises(OptionError, match=message):
        lamb(0.1, **options)


OPTIMIZERS = {
    "adam": lambda rate: optax.adam(rate, b2=0.95),
    "radam": lambda rate: optax.radam(rate, b2=0.95),
    "adamw": lambda rate: optax.adamw(rate, b2=0.95, weight_decay=0.1, mask=weight_decay_mask),
    "lamb": lambda rate: lamb(rate, b2=0.95, weight_decay=0.1),
    "fused_lamb": lambda rate: lamb(
        rate, b2=0.95, weight_decay=0.1, max_weight_norm=None, always_adapt=False, eps=1e-7
    ),
    "muon": lambda rate: muon(rate, b2=0.95, weight_decay=0.1),
    "lion": lambda rate: optax.lion(rate, weight_decay=0.1, mask=weight_decay_mask),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_options_name_an_optimizer(name):
    """To the bit; its numbers may be in the state, and its gradients clipped."""
    options = OptimizerOptions(name, 0.01)
    if name != "lion":
        options = dataclasses.replace(options, beta2=0.95)
    if name not in ("adam", "radam"):
        options = dataclasses.replace(options, weight_decay=0.1)
    params = arrays()
    steps = [arrays(seed) for seed in (1, 2)]
    ours = trained(make_optimizer(options, 10, 10), params, steps)
    theirs = trained(OPTIMIZERS[name](0.01), params, steps)
    injected = trained(make_optimizer(options, 10, 10, inject_hyperparams=True), params, steps)
    for key in params:
        np.testing.assert_array_equal(ours[key], theirs[key])
        np.testing.assert_allclose(ours[key], injected[key], rtol=1e-4, atol=1e-6)
    clipping = make_optimizer(dataclasses.replace(options, clip_norm=1e-3), 10, 10)
    clipped = trained(clipping, params, steps)
    norms = [float(optax.tree.norm(grads)) for grads in steps]
    small = [optax.tree.scale(1e-3 / norm, grads) for norm, grads in zip(norms, steps, strict=True)]
    expected = trained(OPTIMIZERS[name](0.01), params, small)
    for key in params:
        np.testing.assert_allclose(clipped[key], expected[key], rtol=1e-4, atol=1e-6)


def test_lion_is_algorithm_2_of_its_paper():
    """Chen et al. (2023), float64; biases and positions do not decay."""
    options = OptimizerOptions("lion", 0.01, schedule="linear_warmup", warmup=3, weight_decay=0.1)
    params, steps = arrays(), [arrays(seed) for seed in range(1, 7)]
    rate = make_schedule(options, 10, 10)
    expected = {name: np.float64(x) for name, x in params.items()}
    momentum = {name: np.zeros_like(x) for name, x in expected.items()}
    for t, grads in enumerate(steps):
        for name, g in grads.items():
            w, m = expected[name], momentum[name]
            direction = np.sign(0.9 * m + 0.1 * np.float64(g))
            decay = 0.1 * w * (name in ("kernel", "still"))
            expected[name] = w - float(rate(t)) * (direction + decay)
            momentum[name] = 0.99 * m + 0.01 * np.float64(g)
    for name, value in trained(make_optimizer(options, 10, 10), params, steps).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6)


def test_sgd_has_momentum_and_no_clipping():
    options = OptimizerOptions("sgd", 0.1, momentum=0.5)
    moved = trained(make_optimizer(options, 10, 10), {"w": jnp.zeros(1)}, [{"w": jnp.ones(1)}] * 3)
    np.testing.assert_allclose(moved["w"], -0.1 * (1 + 1.5 + 1.75), rtol=1e-6)


def test_weight_decay_of_all_parameters():
    still = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    gradients = [jax.tree.map(jnp.zeros_like, still)]
    for name in ("adamw", "lamb"):
        for mask, left in (("matrices", 1.0), ("all", 0.99 if name == "adamw" else 0.9)):
            options = OptimizerOptions(name, 0.1, weight_decay=0.1, decay_mask=mask)
            moved = trained(make_optimizer(options, 10, 10), still, gradients)
            np.testing.assert_allclose(moved["bias"], left, rtol=1e-5)
            assert float(moved["kernel"][0, 0]) < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adm"}, "optimizer must be one of .*did you mean 'adam'"),
        ({"schedule": "cosin"}, "schedule must be one of .*did you mean 'cosine'"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0.0"),
        ({"lower_at": -1}, "lower_at must be at least 0"),
        ({"beta2": 1.0}, r"beta2 must be in \[0, 1\)"),
        ({"last_rate": -1.0}, "last_rate must be at least 0 and finite"),
        ({"weight_decay": float("nan")}, "weight_decay must be at least 0 and finite, got nan"),
        ({"clip_norm": 0.0}, "clip_norm must be positive"),
        (
            {"warmup": -0.1},
            r"warmup must be a fraction .* in \[0, 1\), or an integer number of steps",
        ),
        ({"warmup": 1.5}, "or an integer number of steps, got 1.5"),
        ({"schedule": "reciprocal_sqrt"}, "needs a warmup; set warmup to a number of steps"),
        ({"schedule": "halving", "warmup": 0.1}, "halving has no warmup, got warmup=0.1"),
        ({"schedule": "cosine", "lower_at": 3}, "lower_at=3 needs a constant learning rate"),
        ({"weight_decay": 0.1}, "adam has no weight decay, got weight_decay=0.1"),
        ({"momentum": 0.5}, "option of the optimizer sgd, but the optimizer is adam"),
        ({"optimizer": "sgd", "beta2": 0.9}, r"sgd has no second-moment estimate, got beta2=0.9"),
        (
            {"optimizer": "lion", "beta2": 0.9},
            r"lion has no second-moment estimate, .*set beta2=0.999",
        ),
        ({"optimizer": "muon", "momentum": 0.5}, "but the optimizer is muon"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        OptimizerOptions(**options)


def test_options_of_other_types_are_refused():
    with pytest.raises(TypeError, match=r"learning_rate must be a number, got '0.1'"):
        OptimizerOptions(learning_rate="0.1")


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.sampled_from([2, 5]))
def test_smoothed_cross_entropy(seed, smoothing, classes):
    rng = np.random.default_rng(seed)
    logits = 5 * rng.normal(size=(3, classes))
    labels = rng.integers(classes, size=3)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    sharp = np.eye(classes)[labels]
    mixed = 0.3 * sharp + 0.7 * sharp[::-1]
    for given_labels, target in ((labels.astype(np.int32), sharp), (np.float32(mixed), mixed)):
        told = smoothed_cross_entropy(jnp.float32(logits), jnp.asarray(given_labels), smoothing)
        soft = (1 - smoothing) * target + smoothing / classes
        np.testing.assert_allclose(told, -(soft * log_probabilities).sum(-1), rtol=1e-4, atol=1e-5)


def test_cross_entropy_refuses():
    logits = jnp.zeros((2, 3))
    with pytest.raises(ValueError, match="smoothing must be from 0 to 1"):
        smoothed_cross_entropy(logits, jnp.zeros(2, jnp.int32), 1.5)
    with pytest.raises(ValueError, match=r"expected labels of shape \(2,\)"):
        smoothed_cross_entropy(logits, jnp.zeros((2, 3), jnp.int32))
    with pytest.raises(ValueError, match=r"expected labels of shape \(2, 3\)"):
        smoothed_cross_entropy(logits, jnp.zeros(2))


def test_pinball_loss():
    rng = np.random.default_rng(0)
    truth, quantiles, levels = rng.normal(size=(5, 2)), rng.normal(size=(5, 2, 3)), (0.1, 0.5, 0.9)
    want = np.zeros((5, 2, 3))
    for place in np.ndindex(*want.shape):
        above, level = truth[place[:2]] - quantiles[place], levels[place[2]]
        want[place] = level * above if above > 0 else (level - 1) * above
    found = pinball_loss(jnp.float32(truth), jnp.float32(quantiles), levels)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"expected quantiles of shape \(5, 2, 2\)"):
        pinball_loss(jnp.float32(truth), jnp.float32(quantiles), (0.1, 0.9))
