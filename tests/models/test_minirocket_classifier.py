"""Linear maps on MiniRocket features: fitted prefix by prefix, and streamed with attention."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import inference, models
from flax_linattn.models.closed_form import fit_ridge, fit_weights
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import call

NUM_CLASSES, LENGTH = 3, 24


def waves(count, seed):
    """Series [N, T, 2] whose frequency is the class, and lengths from 12 to T."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, NUM_CLASSES, count)
    time = np.arange(LENGTH) + rng.uniform(0, 9, size=(count, 1))
    x = np.sin((0.4 + 0.4 * labels[:, None]) * time)[..., None]
    x = np.concatenate([x, rng.normal(size=x.shape)], axis=-1) + 0.3 * rng.normal(size=x.shape)
    lengths = rng.integers(12, LENGTH + 1, count)
    lengths[0] = LENGTH
    return x.astype(np.float32), labels, np.arange(LENGTH) < lengths[:, None]


@pytest.fixture(scope="module")
def fitted():
    model = models.MiniRocketClassifier(
        2, NUM_CLASSES, LENGTH, num_features=168, num_prefixes=3, rngs=nnx.Rngs(0)
    )
    x, labels, mask = waves(40, 0)
    return model, model.fit(x, labels, mask=mask, seed=2)


def test_each_prefix_has_the_ridge_of_its_features(fitted):
    model, held_out = fitted
    assert model.prefix_lengths == (8, 16, 24)
    assert held_out.shape == (40, 4, NUM_CLASSES)
    x, labels, mask = waves(40, 0)
    for place, length in enumerate(model.prefix_lengths):
        features = np.asarray(call(model.features, x[:, :length], mask=mask[:, :length]))
        want, expected = reference(features, labels)
        np.testing.assert_allclose(held_out[:, place], expected, rtol=1e-4, atol=1e-4)
        got = call(model, x[:, :length], mask=mask[:, :length])
        at_length = mask[:, :length].sum(axis=1) > (0, *model.prefix_lengths)[place]
        assert at_length.sum() > 5
        np.testing.assert_allclose(got[at_length], want[at_length], atol=1e-4)


def reference(features, labels):
    """Logits, and leave-one-out logits, of a map from features [N, F]."""
    scale = np.where(features.std(axis=0) > 0, features.std(axis=0), 1)
    fit = fit_ridge(features / scale, labels, NUM_CLASSES)
    prior = np.log((np.bincount(labels) + 1) / (len(labels) + NUM_CLASSES))
    pair = np.stack([fit.held_out_scores, np.tile(prior, (len(labels), 1))])
    weight, of_prior = fit_weights(pair, labels)
    logits = weight * (features / scale @ fit.kernel + fit.bias) + of_prior * prior
    return logits, weight * fit.held_out_scores + of_prior * prior


def test_series_that_have_ended_have_a_map_of_features_and_length(fitted):
    model, held_out = fitted
    x, labels, mask = waves(40, 0)
    features = np.asarray(call(model.features, x, mask=mask))
    fraction = mask.sum(axis=1, keepdims=True).astype(np.float32) / LENGTH
    want, expected = reference(np.concatenate([features, features * fraction], axis=1), labels)
    np.testing.assert_allclose(held_out[:, -1], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(call(model, x, mask=mask, ended=True), want, atol=1e-4)
    right = held_out[:, -1].argmax(axis=-1) == labels
    assert model.held_out_accuracy[...] == np.float32(right.mean())
    # A stream that is told of the end, and a series that is longer than all that were fitted.
    logits, state = inference.unroll(model, x[:5], mask[:5], return_state=True)
    last = mask[:5].sum(axis=1) - 1
    assert_close(model.finish(logits[np.arange(5), last], state), want[:5], "float32")
    longer = np.concatenate([x, x], axis=1)
    features = np.asarray(call(model.features, longer))
    kernel = np.asarray(model.whole_kernel[...].sum(axis=0))
    want = features @ kernel + np.asarray(model.whole_bias[...])
    np.testing.assert_allclose(call(model, longer, ended=True), want, atol=1e-4)
    with pytest.raises(ValueError, match="expected every_step or ended, got both"):
        model(x, ended=True, every_step=True)


def test_the_end_says_nothing_if_all_series_have_one_length():
    model = models.MiniRocketClassifier(
        2, NUM_CLASSES, LENGTH, num_features=84, num_prefixes=2, rngs=nnx.Rngs(0)
    )
    x, labels, _ = waves(30, 0)
    held_out = model.fit(x, labels)
    assert_same_bits(held_out[:, -1], held_out[:, -2])
    for length in (9, LENGTH):
        assert_same_bits(call(model, x[:, :length], ended=True), call(model, x[:, :length]))


def test_padding_may_stand_anywhere(fitted):
    model, held_out = fitted
    x, labels, mask = waves(40, 0)
    again = models.MiniRocketClassifier(**model.options, rngs=nnx.Rngs(1))
    gaps = np.zeros((40, 2 * LENGTH, 2), np.float32)
    gaps[:, 1::2] = x
    moved = again.fit(
        gaps, labels, mask=np.repeat(mask, 2, axis=1) & (np.arange(48) % 2 > 0), seed=2
    )
    assert_same_bits(moved, held_out)
    assert_same_bits(nnx.state(again), nnx.state(model))


def test_it_generalizes_and_its_held_out_accuracy_says_so(fitted):
    model, held_out = fitted
    labels = waves(40, 0)[1]
    expected = np.mean(held_out.argmax(axis=-1) == labels[:, None], axis=0)
    x, labels, mask = waves(300, 1)
    accuracy = np.mean(call(model, x, mask=mask).argmax(axis=-1) == labels)
    assert accuracy > 0.9 and abs(accuracy - expected[-1]) < 0.1


def test_streams_of_a_fitted_model_are_its_calls(fitted):
    model, _ = fitted
    x, _, mask = waves(5, 3)
    stream = inference.Stream(model, batch_size=5)
    for t in range(LENGTH):
        logits = stream.step(x[:, t], mask=mask[:, t])
        lengths = mask[:, : t + 1].sum(axis=1)
        ended = lengths < t + 1
        assert_close(
            np.asarray(logits)[~ended],
            np.asarray(call(model, x[:, : t + 1], mask=mask[:, : t + 1]))[~ended],
            "float32",
        )


@pytest.mark.parametrize("interpolates", [True, False])
def test_logits_between_prefix_lengths(fitted, interpolates):
    """Interpolated, or by the next map if training series have different lengths."""
    model, _ = fitted
    assert not model.interpolates[...]
    again = models.MiniRocketClassifier(**model.options, rngs=nnx.Rngs(0))
    nnx.update(again, nnx.state(model))
    again.interpolates[...] = interpolates
    x = waves(4, 7)[0]
    cases = {3: (1, 0, 0), 8: (1, 0, 0), 10: (0.75, 0.25, 0), 18: (0, 0.75, 0.25)}
    for length, coefficients in cases.items():
        if not interpolates and length > 8:
            coefficients = (0, 1, 0) if length == 10 else (0, 0, 1)
        features = np.asarray(call(model.features, x[:, :length]))
        maps = np.einsum("bf,pfk->bpk", features, model.kernel[...]) + model.bias[...]
        want = np.einsum("p,bpk->bk", np.array(coefficients), maps)
        np.testing.assert_allclose(call(again, x[:, :length]), want, atol=1e-4)


def test_longer_series_use_the_last_map_and_short_ones_need_no_nine_observations(fitted):
    model, _ = fitted
    x = np.concatenate([waves(4, 4)[0]] * 2, axis=1)
    assert np.isfinite(call(model, x)).all()
    short = models.MiniRocketClassifier(2, 2, 3, num_features=84, rngs=nnx.Rngs(0))
    assert short.prefix_lengths == (1, 2, 3)
    labels = np.arange(12) % 2
    x = np.random.default_rng(0).normal(size=(12, 3, 2)) + 3 * labels[:, None, None]
    held_out = short.fit(x, labels)
    assert np.mean(held_out[:, -1].argmax(axis=-1) == labels) > 0.8
    assert np.mean(call(short, x.astype(np.float32)).argmax(axis=-1) == labels) > 0.8


def test_features_that_do_not_help_leave_the_class_frequencies():
    x = np.random.default_rng(0).normal(size=(60, LENGTH, 2)).astype(np.float32)
    labels = (np.random.default_rng(1).random(60) < 0.2).astype(int)
    model = models.MiniRocketClassifier(2, 2, LENGTH, num_prefixes=1, rngs=nnx.Rngs(0))
    model.fit(x, labels)
    assert model.interpolates[...]
    p = np.exp(call(model, x))
    p = p / p.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(p.mean(axis=0)[1], labels.mean(), atol=0.05)
    assert model.held_out_accuracy[...] >= 0.7


def test_features_that_are_constant_but_for_rounding_count_for_nothing():
    """Few series of other lengths: a feature with the same value in all of them has no scale."""
    rng = np.random.default_rng(4)
    lengths, labels = rng.integers(8, 21, 64), np.arange(64) % 2
    lengths[0] = 20
    x = rng.normal(size=(64, 20, 1))
    x = np.where(labels[:, None, None] == 1, 0.3 * x.cumsum(axis=1), x).astype(np.float32)
    mask = np.arange(20) < lengths[:, None]
    model = models.MiniRocketClassifier(1, 2, 20, num_features=840, rngs=nnx.Rngs(0))
    model.fit(x[:4], labels[:4], mask=mask[:4])
    logits = model(jnp.asarray(x), mask=jnp.asarray(mask), ended=True)
    assert jnp.abs(logits).max() < 20  # 7,442 if divided by the rounding error


def test_rare_classes_count_by_their_weights():
    model = models.MiniRocketClassifier(
        2, 2, LENGTH, num_features=84, num_prefixes=1, rngs=nnx.Rngs(0)
    )
    x, labels, mask = waves(60, 5)
    rare = (labels == 2) & (np.cumsum(labels == 2) <= 4)
    chosen = (labels != 2) | rare
    x, labels, mask = x[chosen], rare[chosen].astype(int), mask[chosen]
    x = x + np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    recalls = []
    for weights in (None, np.where(labels == 1, 10.0, 1.0)):
        held_out = model.fit(x, labels, mask=mask, example_weights=weights)[:, 0]
        recalls.append(np.mean(held_out[labels == 1, 1] - held_out[labels == 1, 0]))
    assert recalls[1] > recalls[0]


def test_attention_answers_before_the_fit_and_linear_maps_after_it():
    """Also where the attention overflows; a second fit forgets the weights of the first."""
    attention = models.SequenceClassifier(
        2, NUM_CLASSES, features=8, num_layers=1, num_heads=2, rngs=nnx.Rngs(0)
    )
    model = models.MiniRocketClassifier(
        2, NUM_CLASSES, LENGTH, num_features=84, attention=attention, rngs=nnx.Rngs(0)
    )
    x, labels, mask = waves(30, 0)
    assert_close(call(model, x, mask=mask), call(attention, x, mask=mask), "float32")
    for _ in range(2):
        model.fit(x, labels, mask=mask)
        attention.bias[...] = attention.bias[...] * np.nan
        assert np.isfinite(call(model, x, mask=mask)).all()
        whole = call(model, x, mask=mask, ended=True)
        model.weights[...] = 0.5 * model.weights[...]
        assert_close(call(model, x, mask=mask, ended=True), whole / 2, "float32")
        model.threshold[...] = np.float32(0.5)
    model.fit(x[:, :20], labels, mask=mask[:, :20])
    assert model.weights[...].tolist() == [[1, 0]] * len(model.prefix_lengths)
    assert model.threshold[...] > 1 and not model.interpolates[...]


def test_the_attention_of_other_channels_or_classes_is_refused():
    attention = models.SequenceClassifier(2, 4, features=8, num_heads=2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="expected attention of 2 channels and 3 classes"):
        models.MiniRocketClassifier(2, 3, LENGTH, attention=attention, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"series": np.zeros((3, 20, 5))}, r"expected series \[N, T, 2\]"),
        ({"labels": [0, 1]}, "expected an integer label for each"),
        ({"series": np.ones((3, 21, 2))}, "make the model with series_length=21"),
        ({"example_weights": [1.0, 0.0, 1.0]}, "expected positive example_weights of shape"),
        ({"example_weights": [1.0]}, "expected positive example_weights of shape"),
        ({"labels": [0, 1, 3]}, "expected labels from 0 to 2, got labels from 0 to 3"),
        ({"labels": [0.0, 1.0, 2.0]}, "expected an integer label"),
        ({"series": np.full((3, 20, 2), np.nan)}, "finite"),
        (
            {"mask": np.zeros((3, 20), bool)},
            "expected an observation in each series",
        ),
    ],
)
def test_series_that_cannot_be_fitted(change, message):
    model = models.MiniRocketClassifier(2, 3, 20, num_features=84, rngs=nnx.Rngs(0))
    given = {"series": np.zeros((3, 20, 2)), "labels": [0, 1, 2]} | change
    with pytest.raises(ValueError, match=message):
        model.fit(**given)
    assert not jnp.any(model.kernel[...])
