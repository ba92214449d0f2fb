"""The classifier end to end: parallel, prefixes, steps, splits, padding, packing, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models
from tests.contract.tolerances import assert_close
from tests.models.cases import (
    CHANNELS,
    CLASSES,
    MAX_LENGTH,
    STREAMING,
    classifier,
    rows_of_segments,
)
from tests.nn.cases import CAUSAL, CONSTANT_MEMORY, LAYOUTS, normal, padded, run_steps

LENGTH = 4


@pytest.mark.parametrize(("mechanism", "pooling"), STREAMING)
def test_every_step_is_the_loop_is_every_prefix_is_every_split(mechanism, pooling):
    model = classifier(mechanism, pooling)
    x = normal(1, 2, LENGTH, CHANNELS)

    @jax.jit
    def parallel(x):
        running = model(x, every_step=True)
        prefixes = [model(x[:, : t + 1]) for t in range(LENGTH)]
        ends = []
        for t in (1, 3):
            _, state = model(x[:, :t], return_state=True)
            ends.append(model(x[:, t:], state=state, every_step=True))
        return running, jnp.stack(prefixes, axis=1), ends

    running, prefixes, ends = jax.tree.map(np.asarray, parallel(x))
    by_steps, _ = run_steps(model, x, model.init_state(2))
    assert running.shape == (2, LENGTH, CLASSES)
    assert running.dtype == jnp.float32
    assert_close(running, prefixes, "float32")
    assert_close(by_steps, prefixes, "float32")
    for t, end in zip((1, 3), ends, strict=True):
        assert_close(end, prefixes[:, t:], "float32")


@pytest.mark.parametrize(("mechanism", "pooling"), STREAMING)
def test_steps_continue_what_was_read_in_parallel(mechanism, pooling):
    model = classifier(mechanism, pooling)
    x = normal(2, 2, LENGTH, CHANNELS)
    start = model.init_state(2)
    logits, state = jax.jit(lambda x, s: model(x, state=s, return_state=True))(x[:, :3], start)
    by_steps, _ = run_steps(model, x[:, 3:], state)
    running = jax.jit(lambda x: model(x, every_step=True))(x)
    assert_close(logits, running[:, 2], "float32")
    assert_close(by_steps, running[:, 3:], "float32")


@pytest.mark.parametrize(("mechanism", "pooling"), STREAMING)
def test_padding_anywhere_changes_nothing(mechanism, pooling):
    """Logits and all parameter gradients, with NaN as padding; so do masked steps."""
    model = classifier(mechanism, pooling)
    graph, params = nnx.split(model, nnx.Param)
    real, mask = normal(3, 4, 4, CHANNELS), jnp.asarray(LAYOUTS)

    @jax.jit
    def run(params, x, mask):
        def loss(params, x):
            logits = nnx.merge(graph, params)(x, mask=mask)
            return jnp.sum(jnp.sin(logits)), logits

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, x)

    (grad_real, _), want = run(params, real, jnp.ones((4, 4), bool))
    (grad, dx), logits = run(params, padded(real), mask)
    assert_close(logits, want, "float32")
    assert_close(grad, grad_real, "float32")
    assert not np.asarray(dx)[~LAYOUTS].any()
    by_steps, _ = run_steps(model, padded(real), model.init_state(4), mask)
    assert_close(by_steps[:, -1], want, "float32")


@pytest.mark.parametrize("every_step", [True, False])
@pytest.mark.parametrize(("mechanism", "pooling"), STREAMING)
def test_packed_is_separate(mechanism, pooling, every_step):
    model = classifier(mechanism, pooling)
    ids, mask, sequences = rows_of_segments()
    x = np.where(mask[..., None], normal(4, 2, 8, CHANNELS), np.float32(np.nan))
    run = jax.jit(lambda x, mask, ids: model(x, mask=mask, segment_ids=ids, every_step=every_step))
    packed = np.asarray(run(x, mask, ids))
    alone = np.zeros((len(sequences), 3, CHANNELS), np.float32)
    alone_mask = np.zeros((len(sequences), 3), bool)
    for i, (row, positions) in enumerate(sequences):
        alone[i, : len(positions)] = x[row, positions]
        alone_mask[i, : len(positions)] = True
    want = np.asarray(run(alone, alone_mask, None))
    assert packed.shape == (2, 8, CLASSES)
    for i, (row, positions) in enumerate(sequences):
        count = len(positions)
        expected = want[i, :count] if every_step else np.tile(want[i], (count, 1))
        assert_close(packed[row, positions], expected, "float32")


@pytest.mark.parametrize(("mechanism", "pooling"), STREAMING)
def test_packed_streams_across_a_split_in_a_segment(mechanism, pooling):
    model = classifier(mechanism, pooling)
    ids, mask, _ = rows_of_segments()
    x, mask = normal(5, 2, 8, CHANNELS), np.asarray(mask)

    @jax.jit
    def run(x):
        whole = model(x, mask=mask, segment_ids=ids, every_step=True)
        parts, state = [], None
        for span in (slice(0, 3), slice(3, 6), slice(6, 8)):
            logits, state = model(
                x[:, span], mask=mask[:, span], segment_ids=ids[:, span], every_step=True,
                state=state, return_state=True,
            )  # fmt: skip
            parts.append(logits)
        return whole, jnp.concatenate(parts, axis=1)

    whole, parts = run(x)
    assert_close(np.asarray(parts)[mask], np.asarray(whole)[mask], "float32")


@pytest.mark.parametrize(("mechanism", "pooling"), STREAMING)
def test_sequences_without_tokens_give_the_bias(mechanism, pooling):
    graph, params = nnx.split(classifier(mechanism, pooling), nnx.Param)
    x, mask = jnp.full((2, 4, CHANNELS), jnp.nan), jnp.zeros((2, 4), bool)

    @jax.jit
    def run(params):
        def loss(params):
            logits = nnx.merge(graph, params)(x, mask=mask)
            return jnp.sum(jnp.sin(logits)), logits

        return jax.grad(loss, has_aux=True)(params)

    grad, logits = run(params)
    assert_close(logits, np.tile(params["bias"][...], (2, 1)), "float32")
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in jax.tree.leaves(grad))


@pytest.mark.parametrize("pooling", models.POOLINGS)
def test_future_cannot_change_the_past(pooling):
    model = classifier(pooling=pooling)
    x = normal(6, 2, LENGTH, CHANNELS)
    run = jax.jit(lambda x: model(x, every_step=True))
    changed = run(x.at[:, 3:].add(100.0))
    np.testing.assert_array_equal(changed[:, :3], run(x)[:, :3])
    assert not jnp.allclose(changed[:, 3:], run(x)[:, 3:], atol=1e-2)


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_noncausal_padding_changes_nothing(mechanism):
    model = classifier(mechanism, "flatten", is_causal=False)
    real = normal(7, 4, 4, CHANNELS)
    run = jax.jit(lambda x, mask: model(x, mask=mask))
    got = run(padded(real), jnp.asarray(LAYOUTS))
    assert_close(got, run(real, None), "float32")


def test_flatten_is_the_flattened_dense_head():
    """Time-Series-Library: act, flatten (T * C), one dense layer; the tail beyond T is 0."""
    model = classifier(pooling="flatten")
    x = normal(8, 2, LENGTH, CHANNELS)
    h = jax.nn.gelu(jax.jit(model.backbone)(x), approximate=False)
    flat = jnp.pad(h, ((0, 0), (0, MAX_LENGTH - LENGTH), (0, 0))).reshape(2, -1)
    want = flat @ model.kernel[...].reshape(-1, CLASSES) + model.bias[...]
    assert_close(jax.jit(model)(x), want, "float32")


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_pooled_heads_are_their_formula(pooling):
    model = classifier(pooling=pooling)
    x = normal(9, 2, LENGTH, CHANNELS)
    h = jax.nn.gelu(jax.jit(model.backbone)(x), approximate=False)
    pooled = h[:, -1] if pooling == "last" else jnp.mean(h, axis=1)
    assert_close(jax.jit(model)(x), pooled @ model.kernel[0] + model.bias[...], "float32")


def test_flatten_beyond_its_weights_is_nan():
    """By steps; a wrong logit would pass unseen."""
    model = classifier(pooling="flatten", max_length=3)
    logits, _ = run_steps(model, normal(10, 1, 4, CHANNELS), model.init_state(1))
    assert np.isfinite(logits[:, :3]).all()
    assert np.isnan(logits[:, 3:]).all()


@pytest.mark.parametrize(("mechanism", "pooling"), STREAMING)
def test_bfloat16_streams(mechanism, pooling):
    model, exact = (
        classifier(mechanism, pooling, dtype=jnp.bfloat16),
        classifier(mechanism, pooling),
    )
    x = normal(11, 2, LENGTH, CHANNELS)
    start = model.init_state(2)
    by_steps, state = run_steps(model, x, start)

    def run(model):
        return model(x, state=start, every_step=True, return_state=True)

    (running, parallel_state), (want, _) = jax.jit(lambda: (run(model), run(exact)))()

    def dtypes(tree):
        return jax.tree.map(lambda a: a.dtype, tree)

    assert dtypes(state) == dtypes(parallel_state) == dtypes(start)
    assert running.dtype == by_steps.dtype == jnp.float32
    assert_close(running, want, "bfloat16")
    assert_close(by_steps, want, "bfloat16")


def test_dropout_only_with_a_key():
    model, sure = classifier(dropout_rate=0.5), classifier()
    x = normal(12, 2, LENGTH, CHANNELS)
    run = jax.jit(lambda x, key: model(x, dropout_key=key))
    np.testing.assert_array_equal(run(x, None), jax.jit(sure)(x))
    np.testing.assert_array_equal(run(x, jax.random.key(1)), run(x, jax.random.key(1)))
    assert not jnp.allclose(run(x, jax.random.key(1)), run(x, jax.random.key(2)), atol=1e-3)


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
        ({"embedding_padding": "circular"}, "has a circular value embedding"),
    ],
)
def test_models_that_look_ahead_do_not_stream(options, why):
    model = classifier(**options)
    x = normal(15, 2, LENGTH, CHANNELS)
    assert jax.jit(model)(x).shape == (2, CLASSES)
    for call in (lambda: model.init_state(2), lambda: model(x, return_state=True)):
        with pytest.raises(ValueError, match=f"{why}.*cannot stream"):
            call()
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
        ({"pooling": "max"}, "unknown pooling 'max'; choose one of: last, mean, flatten"),
        ({"pooling": "flatten", "max_length": None}, "flatten .* needs max_length"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"position": "rotary"}, "'sinusoidal' or 'learned', got 'rotary'"),
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
    np.testing.assert_allclose(seen(x, mask=mask), seen(zeros, mask=mask), rtol=1e-5)
    same = np.allclose(masked(x, mask=mask), seen(x, mask=mask), rtol=1e-4, atol=1e-4)
    assert same == causal
