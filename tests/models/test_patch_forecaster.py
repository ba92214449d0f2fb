"""Patch forecasters: their equations, streams, splits, padding; what bad options say."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.models.cases import moved
from tests.nn.cases import call, normal, run_steps

CHANNELS, MARKS, HORIZON, PATCH, CONTEXT, LENGTH = 3, 2, 4, 3, 5, 11
MEMORY = 5.0


@functools.cache
def forecaster(mechanism="aaren", **options):
    options = {"num_layers": 1, "targets": (2, 0), "context": CONTEXT} | options
    num_marks = MARKS + CHANNELS * options.get("missing", False)
    return moved(
        models.PatchForecaster(
            CHANNELS, HORIZON, patch_length=PATCH, num_marks=num_marks, memory=MEMORY, features=8,
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


def normed(norm, x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5) * norm["scale"] + norm["bias"]


def layer(weights, x):
    return x @ weights["kernel"] + weights.get("bias", 0.0)


def block(weights, h):
    """Aaren's post-norm block with ReLU, two heads of width four."""
    attention = weights["attention"]
    q = layer(attention["query_projection"], attention["query"]).reshape(2, 4)
    k = layer(attention["key_projection"], h).reshape(-1, 2, 4)
    v = layer(attention["value_projection"], h).reshape(-1, 2, 4)
    weight = np.exp(np.einsum("hk,shk->sh", q, k) / 2)
    read = np.cumsum(weight[..., None] * v, 0) / np.cumsum(weight, 0)[..., None]
    h = h + layer(attention["out_projection"], read.reshape(-1, 8))
    h = normed(weights["attention_norm"], h)
    hidden = np.maximum(layer(weights["feed_forward"]["expand"], h), 0)
    return normed(
        weights["feed_forward_norm"], h + layer(weights["feed_forward"]["contract"], hidden)
    )


def sinusoidal(positions):
    angles = positions[:, None] / 10000 ** (np.arange(4) / 4)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(positions), 8)


def padded(x):
    return np.concatenate([np.full(99, x[0]), x])


def features(weights, x, marks, missing=None):
    """Of the last patch of x [t], whose first value stands for all before it."""
    lacking = np.zeros(len(x)) if missing is None else missing
    tokens = []
    for end in range((len(x) - 1) % PATCH, len(x), PATCH):
        mean, std = moments(x[: end + 1], lacking[: end + 1])
        gone = padded(lacking)[: 100 + end][-PATCH:]
        patch = np.where(gone > 0, 0, (padded(x)[: 100 + end][-PATCH:] - mean) / std)
        embedding = weights["backbone"]["input_embedding"]
        beside = marks[end] if missing is None else np.concatenate([gone, marks[end]])
        told = beside @ embedding["marks"]["kernel"]
        tokens.append(patch @ embedding["values"]["projection"]["kernel"] + told)
    h = np.stack(tokens) + sinusoidal(np.arange(len(tokens)))
    for one in weights["backbone"]["blocks"].values():
        h = block(one, h)
    return normed(weights["backbone"]["final_norm"], h)[-1]


def read_out(weights, h, x, context, missing=None):
    """The forecast after x [t] from the features of its last patch."""
    mean, std = moments(x, np.zeros(len(x)) if missing is None else missing)
    y = layer(weights["head"], h) * std
    if not context:
        return y + mean
    return y + x[-1] + layer(weights["linear_map"], padded(x)[-context:] - x[-1])


def forecast(weights, x, marks, context, missing=None):
    h = features(weights, x, marks, missing)
    return read_out(weights, h, x, context, missing)


def mixed(weights, h):
    """A post-norm block of softmax attention among channels [C, F], with ReLU, two heads."""
    weights, h = weights["block"], h + weights["channels"]
    attention = weights["attention"]
    q, k, v = (
        layer(attention[f"{name}_projection"], h).reshape(-1, 2, 4)
        for name in ("query", "key", "value")
    )
    scores = np.exp(np.einsum("chk,dhk->hcd", q, k) / 2)
    read = np.einsum("hcd,dhk->chk", scores / scores.sum(-1, keepdims=True), v)
    h = normed(
        weights["attention_norm"], h + layer(attention["out_projection"], read.reshape(-1, 8))
    )
    hidden = np.maximum(layer(weights["feed_forward"]["expand"], h), 0)
    return normed(
        weights["feed_forward_norm"], h + layer(weights["feed_forward"]["contract"], hidden)
    )


@pytest.mark.parametrize("context", [CONTEXT, 0])
def test_every_forecast_is_the_equations(context):
    model = forecaster(activation="relu", num_layers=2, context=context)
    weights = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights)
    x = observations(2, LENGTH)
    wide = x.astype(np.float64)
    want = [
        [
            np.stack(
                [forecast(weights, row[: t + 1, c], row[: t + 1, CHANNELS:], context)
                 for c in model.targets],
                axis=-1,
            )
            for t in range(LENGTH)
        ]
        for row in wide
    ]  # fmt: skip
    close(call(model, x, every_step=True), np.asarray(want))


def test_forecasts_of_mixed_channels_are_the_equations():
    model = forecaster(activation="relu", channel_mechanism="softmax")
    weights = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights)
    x = observations(2, LENGTH)
    want = np.zeros((2, LENGTH, HORIZON, 2))
    for row, t in np.ndindex(2, LENGTH):
        seen = x[row, : t + 1].astype(np.float64)
        channels = [seen[:, c] for c in model.targets]
        h = np.stack([features(weights, one, seen[:, CHANNELS:]) for one in channels])
        h = mixed(weights["mixing"], h)
        found = [read_out(weights, *both, CONTEXT) for both in zip(h, channels, strict=True)]
        want[row, t] = np.stack(found, axis=-1)
    close(call(model, x, every_step=True), want)


@pytest.mark.parametrize("context", [CONTEXT, pytest.param(0, marks=pytest.mark.slow)])
def test_forecasts_from_missing_values_are_the_equations(context):
    model = forecaster(activation="relu", context=context, missing=True)
    weights = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights)
    x = with_missing(2, LENGTH)
    want = [
        [
            np.stack(
                [forecast(weights, row[: t + 1, c], row[: t + 1, 2 * CHANNELS :], context,
                          row[: t + 1, CHANNELS + c]) for c in model.targets],
                axis=-1,
            )
            for t in range(LENGTH)
        ]
        for row in x.astype(np.float64)
    ]  # fmt: skip
    every = call(model, x, every_step=True)
    close(every, np.asarray(want))
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


def test_neither_the_future_nor_other_channels_change_a_forecast():
    model, x = forecaster(), observations(2, LENGTH)
    before = call(model, x, every_step=True)
    x[:, 6:] = 1e4
    x[..., 1] = np.nan
    assert_same_bits(call(model, x, every_step=True)[:, :6], before[:, :6])


def test_a_level_is_carried_through():
    """Shifting and scaling the channels shifts and scales the forecasts."""
    model, x = forecaster(), observations(2, LENGTH)
    y = call(model, x)
    scale, shift = np.array([2.0, 3.0, 4.0]), np.array([-100.0, 7.0, 50.0])
    x[..., :CHANNELS] = x[..., :CHANNELS] * scale + shift
    np.testing.assert_allclose(call(model, x), y * scale[[2, 0]] + shift[[2, 0]], rtol=2e-3)


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
        with pytest.raises(ValueError, match="constant size, which softmax does not have"):
            refused()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_length": 0}, "patch_length must be at least 1"),
        ({"context": -1}, "context must be at least 0"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"memory": 0.0}, "expected memory above 0"),
        ({"targets": (3,)}, "channels 0 to 2"),
        ({"position": "learned"}, "position"),
        ({"kernel_size": 3}, "kernel_size"),
        ({"mechanism": "linformer:max_length=8"}, "no causal form"),
        ({"channel_mechanism": "gated_linear"}, "channels have no order"),
        ({"channel_mechanism": "softmax:window=2"}, "'softmax:window=2' is causal only"),
        ({"channel_mechanism": "nothing"}, "unknown mechanism"),
        ({"channel_mechanism": "nothing:order=2"}, "those for them are: softmax, "),
        ({"channel_mechanism": "softmax:order=2"}, "has no hyperparameter 'order'"),
        ({"channel_mechanism": "aft:max_length=1"}, "is to have 1 positions"),
        ({"channel_mechanism": "softmax", "targets": (0,)}, "no other to look at"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        models.PatchForecaster(**{"num_channels": 3, "horizon": 4, "rngs": nnx.Rngs(0)} | options)
