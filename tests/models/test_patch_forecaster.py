"""Patch forecasters: their equations, streams, splits, padding; what bad options say."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import call, moved, normal, run_steps
from tests.nn.equations import affine, array, normed, transformed

CHANNELS, MARKS, HORIZON, PATCH, CONTEXT, LENGTH = 3, 2, 4, 3, 5, 11
MEMORY = 5.0


@functools.cache
def forecaster(mechanism="aaren", **options):
    options = {"num_layers": 1, "targets": (2, 0), "context": CONTEXT} | options
    num_covariates = MARKS + CHANNELS * options.get("missing", False)
    return moved(
        models.PatchForecaster(
            CHANNELS, HORIZON, patch_length=PATCH, num_covariates=num_covariates, memory=MEMORY,
            features=8,
            num_heads=2, hidden_features=12, mechanism=mechanism, rngs=nnx.Rngs(0), **options,
        )
    )  # fmt: skip


def observations(*shape, seed=0):
    scale = np.array([3, 1, 0.1, 1, 1], np.float32)
    x = np.asarray(normal(seed, *shape, CHANNELS + MARKS))
    return x * scale + np.array([5, 0, -2, 0, 0], np.float32)


def with_missing(*shape, seed=0):
    """Observations of which a third of the values is missing, and a channel's first three."""
    x = observations(*shape, seed=seed)
    missing = np.random.default_rng(seed).random((*shape, CHANNELS)) < 1 / 3
    missing[..., :3, 2] = True
    return np.concatenate([x[..., :CHANNELS], missing, x[..., CHANNELS:]], -1, dtype=np.float32)


def close(a, b):
    assert_close(a, b, "float32")


# ---- the model in NumPy, float64, for one channel and one moment


def moments(x, missing):
    weight = np.exp(-np.arange(len(x))[::-1] / MEMORY) * (1 - missing)
    if missing.all():
        return 0.0, 1e-5**0.5
    mean = np.average(x, weights=weight)
    return mean, np.sqrt(np.average(np.square(x - mean), weights=weight) + 1e-5)


def sinusoidal(positions):
    angles = positions[:, None] / 10000 ** (np.arange(4) / 4)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(positions), 8)


def padded(x):
    return np.concatenate([np.full(99, x[0]), x])


def features(model, x, marks, missing):
    """Of the last patch of x [t], whose first value stands for all before it."""
    lacking = np.zeros(len(x)) if missing is None else missing
    embedding, tokens = model.backbone.input_embedding, []
    for end in range((len(x) - 1) % PATCH, len(x), PATCH):
        mean, std = moments(x[: end + 1], lacking[: end + 1])
        gone = padded(lacking)[: 100 + end][-PATCH:]
        patch = np.where(gone > 0, 0, (padded(x)[: 100 + end][-PATCH:] - mean) / std)
        beside = marks[end] if missing is None else np.concatenate([gone, marks[end]])
        told = affine(embedding.marks, beside)
        tokens.append(affine(embedding.values.projection, patch) + told)
    h = np.stack(tokens) + sinusoidal(np.arange(len(tokens)))
    for block in model.backbone.blocks:
        h = transformed(block, h)
    return normed(model.backbone.final_norm, h)[-1]


def read_out(model, h, x, missing, target=0):
    """The forecast after x [t] from the features of its last patch."""
    mean, std = moments(x, np.zeros(len(x)) if missing is None else missing)
    y = affine(model.head, h) * std
    if model.context == 0:
        return y + mean
    kernel = array(model.linear_map.kernel)
    kernel = kernel[target] if kernel.ndim == 3 else kernel
    return y + x[-1] + (padded(x)[-model.context :] - x[-1]) @ kernel


def every_forecast(model, x):
    """After each observation [B, T, ...], in float64."""
    x = x.astype(np.float64)
    want = np.zeros((*x.shape[:2], HORIZON, len(model.targets)))
    for row, t in np.ndindex(*x.shape[:2]):
        seen, marks = x[row, : t + 1], x[row, : t + 1, -MARKS:]
        channels = [seen[:, c] for c in model.targets]
        gone = [seen[:, CHANNELS + c] if model.missing else None for c in model.targets]
        h = [features(model, one, marks, off) for one, off in zip(channels, gone, strict=True)]
        if model.mixing is not None:
            told = np.stack(h) + array(model.mixing.channels)
            h = transformed(model.mixing.block, told, causal=False)
        per_target = zip(h, channels, gone, range(len(h)), strict=True)
        found = [read_out(model, *each) for each in per_target]
        want[row, t] = np.stack(found, axis=-1)
    return want


@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 2},
        {"num_layers": 2, "context": 0},
        {"channel_mechanism": "softmax"},
        {"channel_maps": True},
    ],
    ids=str,
)
def test_every_forecast_is_the_equations(options):
    """Mixed channels and maps of each channel among them."""
    model, x = forecaster(activation="relu", **options), observations(2, LENGTH)
    close(call(model, x, every_step=True), every_forecast(model, x))


def test_maps_of_each_channel_stream_and_are_saved(tmp_path):
    model, x = forecaster(channel_maps=True, fixed_map=True), observations(2, LENGTH)
    assert model.linear_map.kernel.shape == (2, CONTEXT, HORIZON)
    streamed, _ = run_steps(model, x, model.init_state(2))
    close(streamed, call(model, x, every_step=True))
    models.save_model(tmp_path / "model", model)
    again = models.load_model(tmp_path / "model")
    assert_same_bits(call(again, x), call(model, x))


@pytest.mark.parametrize("context", [CONTEXT, pytest.param(0, marks=pytest.mark.slow)])
def test_forecasts_from_missing_values_are_the_equations(context):
    model = forecaster(activation="relu", context=context, missing=True)
    x = with_missing(2, LENGTH)
    every = call(model, x, every_step=True)
    close(every, every_forecast(model, x))
    streamed, state = run_steps(model, x, model.init_state(2))
    close(streamed, every)
    _, after = call(model, x, return_state=True)
    close(after, state)
    _, before = call(model, x[:, :5], return_state=True)
    close(call(model, x[:, 5:], state=before, every_step=True), every[:, 5:])


def test_what_stands_in_place_of_a_missing_value_changes_nothing():
    """Without the linear map, which takes it as it is."""
    model, x = forecaster(context=0, missing=True), with_missing(2, LENGTH)
    other = x.copy()
    values = other[..., :CHANNELS]
    values[x[..., CHANNELS : 2 * CHANNELS] > 0] = 1e3
    assert_same_bits(call(model, x, every_step=True), call(model, other, every_step=True))


def test_complete_data_have_the_moments_of_one_weight():
    x = observations(2, LENGTH)[..., :CHANNELS]
    apart = np.concatenate([x, np.zeros_like(x)], axis=-1)
    one, each = models.Moments(MEMORY), models.Moments(MEMORY, missing=True)
    found, _ = jax.jit(each)(apart, each.init_state(2, CHANNELS))
    close(found, jax.jit(one)(x, one.init_state(2, CHANNELS))[0])


def test_forecasts_after_some_observations():
    """Whole patches apart, from the first of them."""
    model, x = forecaster(), observations(2, LENGTH)
    every = call(model, x, every_step=True)
    assert every.shape == (2, LENGTH, HORIZON, 2) and every.dtype == np.float32
    at = np.array([10, 4, 1, 9])
    found = call(model, x, positions=at)
    close(found[:, :3], every[:, at[:3]])
    assert np.isnan(found[:, 3]).all()  # not whole patches from the first of them


def test_goes_on_with_one_phase():
    model, x = forecaster(), observations(2, LENGTH)
    _, state = call(model, x[:, :4], return_state=True)
    whole = call(model, x, every_step=True)
    close(call(model, x[:, 4:], state=state), whole[:, -1])
    close(call(model, x[:, 4:], state=state, positions=np.array([0, 6])), whole[:, [4, 10]])


def test_export_for_any_batch():
    model, x = forecaster(channel_mechanism="softmax"), observations(3, LENGTH)
    (b,) = jax.export.symbolic_shape("b")
    state = model.init_state(3)
    for run, arguments in ((model, (x,)), (model.step, (x[:, 0], state))):
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct((b, *a.shape[1:]), a.dtype), arguments)
        jitted = jax.jit(lambda *arguments, run=run: jax.tree.leaves(run(*arguments)))
        exported = jax.export.export(jitted)(*shapes)
        close(exported.call(*arguments), jitted(*arguments))


def test_a_mechanism_with_a_cache_forecasts_from_windows():
    model, x = forecaster("softmax"), observations(2, LENGTH)
    assert not model.streams
    close(call(model, x), call(model, x, every_step=True)[:, -1])
    for refused in (
        lambda: model.init_state(2),
        lambda: model(x, return_state=True),
    ):
        with pytest.raises(ValueError, match="size, which the mechanism softmax does not have"):
            refused()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_length": 0}, "patch_length must be at least 1"),
        ({"context": -1}, "context must be at least 0"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"memory": 0.0}, "memory must be above 0"),
        ({"targets": (3,)}, "channels 0 to 2"),
        ({"position": "learned"}, "position"),
        ({"kernel_size": 3}, "kernel_size"),
        ({"mechanism": "linformer:max_length=8"}, "no causal form"),
        ({"channel_mechanism": "gated_linear"}, "since channels have no order"),
        ({"channel_mechanism": "softmax:window=2"}, "'softmax:window=2' is causal only"),
        (
            {"channel_mechanism": "nothing"},
            "must be a non-causal mechanism, one of .*got 'nothing'",
        ),
        ({"channel_mechanism": "nothing:order=2"}, "mechanism, one of softmax, "),
        ({"channel_mechanism": "softmax:order=2"}, "has no hyperparameter 'order'"),
        ({"channel_mechanism": "aft:max_length=1"}, "has max_length=1, but the model"),
        ({"channel_mechanism": "softmax", "targets": (0,)}, "needs several channels to forecast"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        models.PatchForecaster(**{"num_channels": 3, "horizon": 4, "rngs": nnx.Rngs(0)} | options)
