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
    MAX_LENGTH,
    STREAMING,
    classifier,
    rows_of_segments,
    slow,
)
from tests.nn.cases import CAUSAL, CONSTANT_MEMORY, LAYOUTS, call, normal, padded, pulled, run_steps

ROWS, LENGTH = LAYOUTS.shape
EVERYWHERE = np.ones((ROWS, LENGTH), bool)
WEIGHTS = normal(20, ROWS, CLASSES)


def fast(*poolings):
    """``STREAMING``, fast with these: the last token's is the simplest, padded and in a formula."""
    return [
        case if case.values[1] in poolings else pytest.param(*case.values, id=case.id, marks=slow)
        for case in STREAMING
    ]


def whole(model, x, mask):
    """Logits [B, classes] and gradients, by the program that most tests share."""
    return pulled(model, x, WEIGHTS, mask=mask)


@pytest.mark.parametrize(("mechanism", "pooling"), fast("mean", "flatten"))
def test_every_step_is_the_loop_is_every_prefix_is_every_split(mechanism, pooling):
    model = classifier(mechanism, pooling)
    x, start = normal(1, ROWS, LENGTH, CHANNELS), model.init_state(ROWS)
    running = call(model, x, every_step=True)
    assert running.shape == (ROWS, LENGTH, CLASSES)
    assert running.dtype == np.float32
    by_steps, _ = run_steps(model, x, start)
    assert_close(by_steps, running, "float32")
    assert_close(call(model, x), running[:, -1], "float32")
    for t in range(LENGTH):
        prefix = np.tile(np.arange(LENGTH) <= t, (ROWS, 1))
        assert_close(whole(model, x, prefix).y, running[:, t], "float32")
    half = LENGTH // 2
    logits, state = call(model, x[:, :half], state=start, return_state=True)
    assert_close(logits, running[:, half - 1], "float32")
    rest = call(model, x[:, half:], state=state, every_step=True)
    assert_close(rest, running[:, half:], "float32")
    by_steps, _ = run_steps(model, x[:, half:], state)
    assert_close(by_steps, running[:, half:], "float32")


@pytest.mark.parametrize(("mechanism", "pooling"), STREAMING)
def test_padding_anywhere_changes_nothing(mechanism, pooling):
    """Logits and all parameter gradients, with NaN as padding; so do masked steps."""
    model = classifier(mechanism, pooling)
    real, right = normal(3, ROWS, 4, CHANNELS), np.tile(LAYOUTS[:1], (ROWS, 1))
    want = whole(model, padded(real, 0.0, right), right)
    got = whole(model, padded(real), LAYOUTS)
    assert_close(got.y, want.y, "float32")
    assert_close(got.params, want.params, "float32")
    assert not got.x[~LAYOUTS].any()
    for by_steps, _ in (
        run_steps(model, real, model.init_state(ROWS)),
        run_steps(model, padded(real), model.init_state(ROWS), LAYOUTS),
    ):
        assert_close(by_steps[:, -1], want.y, "float32")


@pytest.mark.parametrize(("mechanism", "pooling"), STREAMING)
def test_sequences_without_tokens_give_the_bias(mechanism, pooling):
    model = classifier(mechanism, pooling)
    x = np.full((ROWS, LENGTH, CHANNELS), np.nan, np.float32)
    got = whole(model, x, ~EVERYWHERE)
    assert_close(got.y, np.tile(model.bias[...], (ROWS, 1)), "float32")
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(got.params))


@pytest.mark.parametrize(("mechanism", "pooling"), fast("mean", "flatten"))
def test_packed_is_separate(mechanism, pooling):
    """Every step and the whole, and across splits in a segment."""
    model = classifier(mechanism, pooling)
    ids, mask, sequences = rows_of_segments()
    x = np.where(mask[..., None], normal(4, 2, 8, CHANNELS), np.float32(np.nan))
    alone = np.zeros((len(sequences), 3, CHANNELS), np.float32)
    alone_mask = np.zeros((len(sequences), 3), bool)
    for i, (row, positions) in enumerate(sequences):
        alone[i, : len(positions)] = x[row, positions]
        alone_mask[i, : len(positions)] = True
    want = call(model, alone, mask=alone_mask, every_step=True)

    def running(real, state=None):
        how = {"mask": real, "segment_ids": ids, "state": state}
        return call(model, x, every_step=True, return_state=True, **how)

    every, _ = running(mask)
    last = call(model, x, mask=mask, segment_ids=ids)
    assert every.shape == last.shape == (2, 8, CLASSES)
    for i, (row, positions) in enumerate(sequences):
        count = len(positions)
        assert_close(every[row, positions], want[i, :count], "float32")
        assert_close(last[row, positions], np.tile(want[i, count - 1], (count, 1)), "float32")
    state = None
    for first, end in ((0, 3), (3, 6), (6, 8)):
        real = mask & (np.arange(8) >= first) & (np.arange(8) < end)
        part, state = running(real, state)
        assert_close(part[real], every[real], "float32")


@pytest.mark.parametrize("pooling", models.POOLINGS)
def test_future_cannot_change_the_past(pooling):
    model = classifier(pooling=pooling)
    x = normal(6, ROWS, LENGTH, CHANNELS)
    before, after = (call(model, x, every_step=True) for x in (x, x.at[:, 3:].add(100.0)))
    np.testing.assert_array_equal(after[:, :3], before[:, :3])
    assert not np.allclose(after[:, 3:], before[:, 3:], atol=1e-2)


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_noncausal_padding_changes_nothing(mechanism):
    model = classifier(mechanism, "flatten", is_causal=False)
    real = normal(7, 4, 4, CHANNELS)
    assert_close(call(model, padded(real), mask=LAYOUTS), call(model, real), "float32")


def test_flatten_is_the_flattened_dense_head():
    """Time-Series-Library: act, flatten (T * C), one dense layer; the tail beyond T is 0."""
    model = classifier(pooling="flatten")
    x = normal(8, ROWS, LENGTH, CHANNELS)
    h = jax.nn.gelu(call(model.backbone, x), approximate=False)
    flat = jnp.pad(h, ((0, 0), (0, MAX_LENGTH - LENGTH), (0, 0))).reshape(ROWS, -1)
    want = flat @ model.kernel[...].reshape(-1, CLASSES) + model.bias[...]
    assert_close(call(model, x), want, "float32")


def test_flatten_is_trained_alike_on_rows_longer_than_its_weights():
    """Padding, wherever it stands, has no weights; logits and gradients are those without it."""
    model = classifier(pooling="flatten", max_length=4)
    real = normal(12, ROWS, 4, CHANNELS)
    got, want = whole(model, padded(real), LAYOUTS), pulled(model, real, WEIGHTS)
    assert_close(got.y, want.y, "float32")
    for a, b in zip(jax.tree.leaves(got.params), jax.tree.leaves(want.params), strict=True):
        assert_close(a, b, "float32")


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_pooled_heads_are_their_formula(pooling):
    model = classifier(pooling=pooling)
    x = normal(9, ROWS, LENGTH, CHANNELS)
    h = jax.nn.gelu(call(model.backbone, x), approximate=False)
    pooled = h[:, -1] if pooling == "last" else jnp.mean(h, axis=1)
    assert_close(call(model, x), pooled @ model.kernel[0] + model.bias[...], "float32")


def test_flatten_beyond_its_weights_is_nan():
    """By steps; a wrong logit would pass unseen."""
    model = classifier(pooling="flatten", max_length=3)
    logits, _ = run_steps(model, normal(10, 1, 4, CHANNELS), model.init_state(1))
    assert np.isfinite(logits[:, :3]).all()
    assert np.isnan(logits[:, 3:]).all()


@pytest.mark.parametrize(("mechanism", "pooling"), fast("mean"))
def test_bfloat16_streams(mechanism, pooling):
    model, exact = (
        classifier(mechanism, pooling, dtype=jnp.bfloat16),
        classifier(mechanism, pooling),
    )
    x, start = normal(11, ROWS, LENGTH, CHANNELS), model.init_state(ROWS)
    by_steps, state = run_steps(model, x, start)
    running, parallel_state = call(model, x, state=start, every_step=True, return_state=True)
    want = call(exact, x, every_step=True)

    def dtypes(tree):
        return jax.tree.map(lambda a: a.dtype, tree)

    assert dtypes(state) == dtypes(parallel_state) == dtypes(start)
    assert running.dtype == by_steps.dtype == np.float32
    assert_close(running, want, "bfloat16")
    assert_close(by_steps, want, "bfloat16")


def test_dropout_only_with_a_key():
    model, sure = classifier(dropout_rate=0.5), classifier()
    x = normal(12, ROWS, LENGTH, CHANNELS)
    np.testing.assert_array_equal(call(model, x), call(sure, x))
    first, again, other = (call(model, x, dropout_key=jax.random.key(n)) for n in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other, atol=1e-3)


# -- the stream --------------------------------------------------------------------


@pytest.mark.parametrize("pooling", models.POOLINGS)
@pytest.mark.parametrize("mechanism", CONSTANT_MEMORY)
def test_step_compiles_once_and_the_state_does_not_grow(mechanism, pooling):
    model = classifier(mechanism, pooling, max_length=20)
    traces = []

    @jax.jit
    def step(x, state):
        traces.append(None)
        return model.step(x, state)

    x, state = normal(13, 2, 20, CHANNELS), model.init_state(2)
    layout = jax.tree.map(lambda a: (a.shape, a.dtype, a.nbytes), state)
    for t in range(20):
        logits, state = step(x[:, t], state)
        assert jax.tree.map(lambda a: (a.shape, a.dtype, a.nbytes), state) == layout
    assert len(traces) == 1
    assert np.isfinite(logits).all()


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
    ("options", "why"),
    [
        ({"is_causal": False}, "is not causal"),
        ({"embedding_padding": "circular"}, "has an embedding that is not causal"),
    ],
)
def test_models_that_look_ahead_do_not_stream(options, why):
    model = classifier(**options)
    x = normal(15, 2, LENGTH, CHANNELS)
    assert call(model, x).shape == (2, CLASSES)
    for refused in (lambda: model.init_state(2), lambda: model(x, return_state=True)):
        with pytest.raises(ValueError, match=f"{why}.*cannot stream"):
            refused()
    with pytest.raises(ValueError, match="every_step needs a model that streams"):
        model(x, every_step=True)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 9, CHANNELS), "has weights for 8 observations, got 9"),
        ((2, 0, CHANNELS), r"\[B, T >= 1, 3\], got \(2, 0, 3\)"),
        ((2, 4, CHANNELS + 1), r"\[B, T >= 1, 3\], got \(2, 4, 4\)"),
        ((4, CHANNELS), r"\[B, T >= 1, 3\], got \(4, 3\)"),
    ],
)
def test_wrong_observations(shape, message):
    with pytest.raises(ValueError, match=message):
        classifier(pooling="flatten")(jnp.ones(shape))


@pytest.mark.parametrize(
    "mask", [jnp.ones((2, 5), bool), jnp.ones((1, 4), bool), jnp.ones((2, 4), jnp.int32)]
)
def test_wrong_masks(mask):
    with pytest.raises(ValueError, match=r"expected mask as bool \(2, 4\)"):
        classifier()(jnp.ones((2, 4, CHANNELS)), mask=mask)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "max"}, "pooling must be one of last, mean, flatten, class, got 'max'"),
        ({"pooling": "flatten", "max_length": None}, "flatten .* needs max_length"),
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
