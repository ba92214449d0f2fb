"""Early decisions: the rule by hand, its threshold, and the weight of the attention."""

import numpy as np
import pytest
from flax import nnx

from flax_linattn import data, models
from flax_linattn.tasks.classify.series import early

PREFIXES = (2, 4, 8)


def logits_of(probabilities):
    """Logits [N, P + 1, 2] of the probability of class 1."""
    p = np.asarray(probabilities, np.float64)
    return np.log(np.stack([1 - p, p], axis=-1))


def test_decisions_by_hand():
    logits = logits_of(
        [
            [0.9, 0.2, 0.2, 0.2],  # at once
            [0.6, 0.2, 0.9, 0.9],  # after the second prefix length, for class 0
            [0.6, 0.6, 0.6, 0.4],  # never: as at the end
            [0.6, 0.1, 0.1, 0.1],  # of three observations: it ends before the second prefix length
        ]
    )
    found = early.decide(logits, np.array([8, 16, 10, 3]), PREFIXES, 0.75)
    assert found.classes.tolist() == [1, 0, 0, 0]
    assert found.fractions.tolist() == [2 / 8, 4 / 16, 1, 1]
    values = found.values(np.array([1, 1, 0, 0]))
    assert values["accuracy"] == 0.75 and values["earliness"] == 0.625
    assert values["harmonic_mean"] == pytest.approx(2 * 0.75 * 0.375 / (0.75 + 0.375))
    assert (
        early.decide(logits, np.array([8, 16, 10, 3]), PREFIXES, 2.0).fractions.tolist() == [1] * 4
    )


def test_the_threshold_has_the_largest_harmonic_mean():
    """Early probabilities up to 0.8 are chance; above they are right."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    first = rng.uniform(0.5, 1, 400)
    right = np.where(first > 0.8, True, rng.random(400) < 0.5)
    p = np.where(right == labels, first, 1 - first)
    at_end = np.where(labels, 0.99, 0.01)
    logits = logits_of(np.stack([p, at_end, at_end, at_end], axis=1))
    lengths = np.full(400, 20)
    threshold = early.choose_threshold(logits, labels, lengths, PREFIXES)
    best = max(
        early.decide(logits, lengths, PREFIXES, t).values(labels)["harmonic_mean"]
        for t in np.linspace(0.5, 1, 501)
    )
    found = early.decide(logits, lengths, PREFIXES, threshold).values(labels)
    assert found["harmonic_mean"] == pytest.approx(best, abs=5e-3)


def test_streams_are_compared_in_each_bucket():
    """Batches of several padded lengths, and the answer for whole series."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(12, 24, 2)).astype(np.float32), np.arange(12) % 2
    lengths = np.where(np.arange(12) < 6, 10, 24)
    arrays = {"values": x, "mask": np.arange(24) < lengths[:, None], "labels": labels}
    model = models.MiniRocketClassifier(2, 2, 24, num_features=84, rngs=nnx.Rngs(0))
    model.fit(x, labels, mask=arrays["mask"])
    batches = data.BucketBatches(arrays, 4, lengths=(12, 24), seed=None)
    assert {batch["mask"].shape[1] for batch in batches} == {12, 24}
    found = early.stream_error(model, batches)
    assert found["stream_max_error"] < 1e-5 and found["stream_steps"] == 12 * 11


def test_attention_gets_a_weight_only_where_it_helps():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 60)
    truth = np.eye(3)[labels]
    linear = truth + rng.normal(size=(60, 3))
    assert early._choose_weights(linear, rng.normal(size=(60, 3)), labels).tolist() == [1, 0]
    helped = early._choose_weights(linear, 2 * truth + rng.normal(size=(60, 3)), labels)
    assert helped[0] == 0.5 and helped[1] > 0
    # Right as often as chance, however small the weight.
    wrong = early._choose_weights(linear, np.roll(truth, 1, axis=1), labels)
    assert wrong.tolist() == [1, 0]
    # Without weight, the attention does not temper linear maps that are too sure.
    sure = early._choose_weights(20 * linear, np.roll(truth, 1, axis=1), labels)
    assert sure.tolist() == [1, 0]
    # One example has no standard error.
    assert early._choose_weights(linear[:1], truth[:1], labels[:1]).tolist() == [1, 0]
