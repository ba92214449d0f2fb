"""The model of events: parallel equals streamed, nothing looks ahead, padding changes nothing."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import special

from flax_linattn import models
from flax_linattn.models.event_embedding import FREQUENCIES
from flax_linattn.models.event_forecaster import MIN_STD, next_event
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.models import cases
from tests.models.cases import run_whole as run
from tests.nn.cases import CAUSAL, call, moved, run_steps
from tests.nn.equations import affine, array

MARKS, PERIODS, COMPONENTS, LENGTH = 3, (24.0, 168.0), 4, 8
WIDTH = 3 + 2 * len(PERIODS)
EVERYWHERE = np.ones((2, LENGTH), bool)
TINY = models.Layers(features=8, num_layers=1, num_heads=2, hidden_features=12)
slow = pytest.mark.slow


@functools.cache
def forecaster(mechanism="aaren", **options):
    options = {
        "periods": PERIODS, "num_components": COMPONENTS, "max_length": LENGTH, "spread": 1.5,
        "num_layers": 1, "features": 8, "num_heads": 2, "hidden_features": 12,
    } | options  # fmt: skip
    return moved(models.EventForecaster(MARKS, mechanism=mechanism, rngs=nnx.Rngs(0), **options))


def events(rows=2, length=LENGTH, seed=0, periods=PERIODS):
    return cases.events(seed, rows, length, MARKS, len(periods))


# What it computes, against NumPy in float64.


def gap_inputs(x, spread):
    """[..., inputs] of one observation, without its mark."""
    log_gap, known, waves = x[..., :1] / spread, x[..., 1:2], x[..., 3:]
    angles = log_gap * np.array(FREQUENCIES)
    gap = np.concatenate([log_gap, np.cos(angles), np.sin(angles)], axis=-1)
    return np.concatenate([known, gap * known, waves], axis=-1)


def embedded(embedding, x):
    """h [B, T, C] of an embedding without positions."""
    table, kernel = array(embedding.table), array(embedding.window.projection.kernel)
    size = embedding.window.kernel_size
    marks = table[x[..., 2].astype(int)]
    told = np.concatenate([gap_inputs(x, embedding.spread), marks], axis=-1)
    kernel = kernel.reshape(size, told.shape[-1], -1)
    h = marks * math.sqrt(table.shape[1])
    for t in range(x.shape[1]):
        for tap in range(size):  # the last is the event itself
            if t - (size - 1) + tap >= 0:
                h[:, t] += told[:, t - (size - 1) + tap] @ kernel[tap]
    return h


def embed(embedding, x):
    positions = np.broadcast_to(np.arange(x.shape[1]), x.shape[:2])
    return call(embedding, x, positions=positions)[0]


@pytest.mark.parametrize("kernel_size", [1, 4])
@pytest.mark.parametrize("periods", [(), PERIODS], ids=["no periods", "two periods"])
def test_the_embedding_is_its_equation(kernel_size, periods):
    embedding = models.EventEmbedding(
        MARKS, 8, kernel_size=kernel_size, periods=periods, spread=1.5, rngs=nnx.Rngs(0)
    )
    x = events(periods=periods)
    h = embed(embedding, x)
    assert_close(h, embedded(embedding, x.astype(np.float64)), "float32")
    # As many events are seen as the kernel has taps, and neither mark nor gap of an earlier one.
    x[:, 2, 2], x[:, 2, 0] = (x[:, 2, 2] + 1) % MARKS, 5.0
    changed = np.any(embed(embedding, x) != h, axis=(0, 2))
    assert np.flatnonzero(changed).tolist() == list(range(2, 2 + kernel_size))


def said(outputs, num_components, spread):
    following = next_event(outputs, num_components, spread)
    return following, following.event_type_log_probs()


def test_outputs_say_what_their_equations_say():
    rng = np.random.default_rng(0)
    outputs = (3 * rng.normal(size=(5, 3 * COMPONENTS + MARKS))).astype(np.float32)
    found, event_type_log_probs = jax.jit(said, static_argnums=(1, 2))(outputs, COMPONENTS, 1.5)
    weights, means, deviations, marks = np.split(
        outputs.astype(np.float64), np.cumsum([COMPONENTS] * 3), axis=-1
    )
    want = models.LogNormalMixture(
        special.log_softmax(weights, axis=-1),
        1.5 * (means + np.array([-1.5, -0.5, 0.5, 1.5])),
        1.5 * (np.log1p(np.exp(deviations)) + MIN_STD),
    )
    assert_close(found.gap, want, "float32")
    assert_close(event_type_log_probs, special.log_softmax(marks, axis=-1), "float32")
    assert_close(jax.jit(forecaster().next_event)(outputs), found, "float32")
    # A deviation has a floor, a single component stands in the middle.
    alone, _ = jax.jit(said, static_argnums=(1, 2))(np.float32([0, 0, -1e4, 1]), 1, 2.0)
    assert_close([*alone.gap], [np.zeros(1), np.zeros(1), np.full(1, 0.02)], "float32")


def test_the_heads_are_their_equation():
    model, x = forecaster(), events()
    state = model.init_state(2)
    h, _ = call(model.backbone, x, mask=EVERYWHERE, state=state, return_state=True)
    of_times = affine(model.times, np.tanh(affine(model.hidden, h)))
    want = np.concatenate([of_times, affine(model.marks, h)], axis=-1)
    got = run(model, x)[0]
    assert got.shape == (2, LENGTH, 3 * COMPONENTS + MARKS) and got.dtype == np.float32
    assert_close(got, want, "float32")


def test_outputs_of_float64_parameters_are_float64():
    """As events of float32 are; distributions keep the dtype."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        model = models.EventForecaster(
            MARKS, features=8, num_layers=1, num_heads=2, periods=(3.0, 4.0),
            param_dtype=jnp.float64,
            rngs=nnx.Rngs(0),
        )  # fmt: skip
        for dtype in (jnp.float32, jnp.float64):
            x = jax.ShapeDtypeStruct(events().shape, dtype)
            y = jax.eval_shape(lambda x: model.next_event(model(x)), x)
            assert {leaf.dtype for leaf in jax.tree.leaves(y)} == {jnp.dtype("float64")}


def test_a_spread_is_a_unit_of_logarithms():
    """Logs of gaps that are twice as far apart are told alike, and so is what follows."""
    one, two = forecaster(), forecaster(spread=3.0)
    x = events()
    wide = x * np.float32([2, *[1] * (WIDTH - 1)])
    outputs = run(one, x)[0]
    assert_close(run(two, wide)[0], outputs, "float32")
    gap, twice = (jax.jit(model.next_event)(outputs).gap for model in (one, two))
    assert_close((2 * gap.means, 2 * gap.stds), (twice.means, twice.stds), "float32")


def test_the_begin_of_an_observation():
    """It has a mark of its own, and no gap: whatever stands there is not seen."""
    model, x = forecaster(), events()
    want = run(model, x)[0]
    other = x.copy()
    other[:, 0, 0] = 7.0
    assert_same_bits(run(model, other)[0], want)
    other = x.copy()
    other[:, 0, 2] = 0
    assert np.abs(run(model, other)[0] - want)[:, 0].max() > 1e-3


UNKNOWN = [-1.0, 0.5, MARKS + 1.0, 1e10, 1e30, np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_an_unknown_mark_is_seen(mechanism):
    """NaN in its row from there on: never the outputs of another mark."""
    model, x = forecaster(mechanism), events()
    want = run(model, x)[0]
    for mark in UNKNOWN:
        wrong = x.copy()
        wrong[0, 4, 2] = mark
        streamed, _ = run_steps(model, wrong, model.init_state(2))
        outputs = run(model, wrong)[0]
        assert np.isnan(outputs[0, 4:]).all(), mark
        assert_same_bits(outputs[1], want[1])
        assert np.isnan(streamed[0, 4:]).all(), mark
        assert_close(streamed[0, :4], want[0, :4], "float32")
        assert_close(streamed[1], want[1], "float32")


def test_gaps_far_from_all_others_have_finite_gradients():
    """Of e^80 scales, as of a clock that was wrong."""
    model, x = forecaster(), events()
    x, mark = x[:, :-1], x[:, 1:, 2].astype(np.int32)
    graph, params = nnx.split(model, nnx.Param)

    @jax.jit
    def gradients(params, log_gap):
        def loss(params):
            model = nnx.merge(graph, params)
            following = model.next_event(model(x))
            marks = jnp.take_along_axis(following.event_type_log_probs(), mark[..., None], axis=-1)[
                ..., 0
            ]
            return -jnp.sum(following.gap.log_density(log_gap) + marks)

        return jax.grad(loss)(params)

    for far in (0.0, -80.0, 80.0):
        found = gradients(params, np.full(x.shape[:2], far, np.float32))
        for path, gradient in jax.tree_util.tree_leaves_with_path(found):
            name = jax.tree_util.keystr(path)
            assert np.isfinite(gradient).all(), name
            # A softmax that every key shares does not see their bias.
            assert np.any(gradient) or ("key_projection" in name and "bias" in name), name


# What follows an event.


def phases(times, periods):
    turns = 2 * np.pi * (np.asarray(times, np.float64)[..., None] / np.array(periods) % 1)
    return np.concatenate([np.cos(turns), np.sin(turns)], axis=-1)


def test_an_observation_that_follows_has_its_phases():
    model = forecaster()
    rng = np.random.default_rng(0)
    times = rng.uniform(0, 1000, 300)
    log_gap = rng.uniform(-15, np.log(24e4), 300).astype(np.float32)  # up to 1e4 of 24
    mark = rng.integers(0, MARKS, 300)
    before = np.zeros((300, WIDTH), np.float32)
    before[:, 3:] = phases(times, PERIODS)
    follow = jax.jit(model.observation)
    x = np.asarray(follow(before, log_gap, mark.astype(np.int32)))
    gaps = np.exp(log_gap.astype(np.float64))
    np.testing.assert_array_equal(x[:, 0], log_gap)
    np.testing.assert_array_equal(x[:, 1], 1)
    np.testing.assert_array_equal(x[:, 2], mark)
    error = np.abs(x[:, 3:] - phases(times + gaps, PERIODS)).reshape(300, 2, 2).max(1)
    # Four roundings of the turns, an exponential's among them, and some of what is turned.
    turns = gaps[:, None] / np.array(PERIODS)
    assert (error <= np.finfo(np.float32).eps * (4 + 4 * 2 * np.pi * turns)).all()
    # So far away that float32 has no number: still phases.
    far = np.asarray(follow(before, np.full(300, 200, np.float32), mark.astype(np.int32)))
    assert_close(far[:, 3:], before[:, 3:], "float32")


def test_phases_stay_over_many_events():
    """Each turned by the gap before: 500 of them do not add up to more than their roundings."""
    model = forecaster()
    log_gap = np.random.default_rng(1).normal(size=500).astype(np.float32)
    x = np.zeros((1, WIDTH), np.float32)
    x[:, 3:] = phases([5.0], PERIODS)

    @jax.jit
    def follow(x, log_gap):
        def body(x, gap):
            x = model.observation(x, gap[None], jnp.zeros(1, jnp.int32))
            return x, x[0]

        return jax.lax.scan(body, x, log_gap)[1]

    times = 5 + np.cumsum(np.exp(log_gap.astype(np.float64)))
    np.testing.assert_allclose(follow(x, log_gap)[:, 3:], phases(times, PERIODS), atol=5e-5)
    short = forecaster(periods=())
    alone = short.observation(jnp.zeros((1, 3)), jnp.ones(1), jnp.array([2]))
    assert alone.tolist() == [[1.0, 1.0, 2.0]]


def test_columns_come_apart_and_together():
    x = jnp.asarray(events())
    columns = models.EventColumns.from_array(x)
    assert columns.waves.shape == (2, LENGTH, 4)
    assert_same_bits(columns.to_array(), x)


# Files, programs, errors.


def small(num_event_types=MARKS, **options):
    return models.EventForecaster(num_event_types, layers=TINY, rngs=nnx.Rngs(0), **options)


def backbone_call(**options):
    embedding = models.EventEmbedding(MARKS, 8, rngs=nnx.Rngs(0))
    return models.Backbone(embedding, TINY, rngs=nnx.Rngs(1), **options)


def test_the_options_of_one_are_those_of_its_parts():
    """A backbone of one's own is used as it is."""
    backbone = backbone_call()
    model = models.EventForecaster(backbone, num_components=2, rngs=nnx.Rngs(2))
    assert model.backbone is backbone
    assert (model.num_event_types, model.spread, model.periods, model.streams) == (
        MARKS,
        1.0,
        (),
        True,
    )
    y = nnx.eval_shape(lambda x: model(x), events(periods=()))
    assert y.shape == (2, LENGTH, 3 * 2 + MARKS)
    default = nnx.eval_shape(lambda: models.EventForecaster(np.int64(MARKS), rngs=nnx.Rngs(0)))
    assert default.backbone.layers == models.EVENT_LAYERS
    assert default.backbone.input_embedding.window.kernel_size == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_event_types": 0}, "num_event_types must be at least 1, got 0"),
        ({"num_event_types": 2**24}, "num_event_types must be at most 16777215, got 16777216"),
        ({"num_components": 0}, "num_components must be at least 1, got 0"),
        ({"num_components": 1025}, "num_components must be at most 1024, got 1025"),
        ({"spread": 0.0}, r"spread must be positive and finite, got 0\.0\."),
        ({"spread": math.nan}, r"spread must be positive and finite, got nan\."),
        ({"periods": (24.0, -1.0)}, r"periods must be positive and finite, got -1\.0\."),
        ({"periods": (math.inf,)}, r"periods must be positive and finite, got inf\."),
        ({"kernel_size": 0}, "kernel_size must be at least 1"),
        ({"position": "rotary"}, "position must be one of sinusoidal, learned, none, got 'rotary'"),
        ({"position": "learned"}, "learned positions need max_length"),
        ({"embedding_padding": "causal"}, "embedding_padding"),
        ({"mechanism": "linformer", "max_length": 8}, "no causal form"),
        ({"is_causal": False}, "with is_causal=True and an EventEmbedding"),
        ({"wrong": 1}, "wrong"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_backbones_of_something_else_are_refused():
    with pytest.raises(TypeError, match=r"num_event_types must be an integer, got 2\.5"):
        small(2.5)
    message = "with is_causal=True and an EventEmbedding"
    for backbone in (backbone_call(is_causal=False), models.Backbone(3, TINY, rngs=nnx.Rngs(0))):
        with pytest.raises(ValueError, match=message):
            models.EventForecaster(backbone, rngs=nnx.Rngs(0))
    for name, value in {"spread": 2.0, "kernel_size": 2, "periods": (), "layers": TINY}.items():
        with pytest.raises(ValueError, match=name):
            models.EventForecaster(backbone_call(), rngs=nnx.Rngs(0), **{name: value})
    with pytest.raises(ValueError, match="4 features, but the layers have 8"):
        models.Backbone(models.EventEmbedding(2, 4, rngs=nnx.Rngs(0)), TINY, rngs=nnx.Rngs(0))


def test_observations_of_another_dtype_are_refused():
    model = forecaster()
    for dtype in ("int32", "bfloat16", "float16"):
        with pytest.raises(TypeError, match=f"float32 or float64, got {dtype}, .* cast them"):
            model(jnp.zeros((2, LENGTH, WIDTH), dtype))
        with pytest.raises(TypeError, match=f"float32 or float64, got {dtype}"):
            model.step(jnp.zeros((2, WIDTH), dtype), model.init_state(2))
