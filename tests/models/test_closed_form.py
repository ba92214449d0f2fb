"""Ridge classifiers and weights against least squares, one example left out after another."""

import numpy as np
import pytest
from scipy import optimize
from scipy.special import log_softmax

from flax_linattn.models import closed_form


def least_squares(x, targets, weights, strength, new):
    """Weighted ridge with an intercept that is not shrunk, with rows for the penalty."""
    root = np.sqrt(weights)[:, None]
    penalty = np.sqrt(strength) * np.eye(x.shape[1])
    rows = root * np.block([x, np.ones((len(x), 1))])
    left = np.block([[rows], [penalty, np.zeros((x.shape[1], 1))]])
    right = np.concatenate([root * targets, np.zeros((x.shape[1], targets.shape[1]))])
    solution = np.linalg.lstsq(left, right, rcond=None)[0]
    return new @ solution[:-1] + solution[-1]


def held_out(x, targets, weights, strength):
    """Scores of each example by a ridge that is fitted to the others."""
    scores = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        one = least_squares(x[others], targets[others], weights[others], strength, x[i : i + 1])
        scores.append(one[0])
    return np.array(scores)


@pytest.mark.parametrize("features", [4, 30])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_ridge_is_least_squares_with_the_best_strength(features, weighted):
    """Fewer features than examples, and more."""
    rng = np.random.default_rng(features)
    labels = rng.integers(0, 3, 18)
    x = rng.normal(size=(18, features)) + labels[:, None] * np.linspace(0, 1, features)
    given = rng.uniform(0.5, 4, size=18) if weighted else None
    weights = np.ones(18) if given is None else given / given.mean()
    targets = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    centered = np.sqrt(weights)[:, None] * (x - np.average(x, axis=0, weights=weights))
    strengths = closed_form.RIDGE_STRENGTHS * np.sum(np.square(centered)) / min(x.shape)
    scores = [held_out(x, targets, weights, strength) for strength in strengths]
    errors = [np.mean(weights[:, None] * np.square(targets - one)) for one in scores]
    best = int(np.argmin(errors))
    assert 0 < best < len(errors) - 1
    fit = closed_form.fit_ridge(x, labels, 3, given)
    new = rng.normal(size=(5, features))
    want = least_squares(x, targets, weights, strengths[best], new)
    np.testing.assert_allclose(new @ fit.kernel + fit.bias, want, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(fit.held_out_scores, scores[best], rtol=1e-7, atol=1e-9)


def test_features_without_variance_leave_the_mean():
    fit = closed_form.fit_ridge(np.ones((4, 3)), np.array([0, 0, 0, 1]), 2)
    assert not fit.kernel.any()
    np.testing.assert_allclose(fit.bias, [0.5, -0.5])
    # Without the last example there is no other of its class.
    np.testing.assert_allclose(fit.held_out_scores[-1], [1, -1])


def test_weights_have_the_smallest_cross_entropy():
    """Nelder and Mead need no gradient; the better classifier has the larger weight."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200)
    truth = np.eye(4)[labels]
    logits = np.stack([2 * truth + rng.normal(size=(200, 4)), truth + rng.normal(size=(200, 4))])
    targets = np.full((200, 4), 1 / 202 / 3)
    targets[np.arange(200), labels] = 201 / 202

    def loss(weights):
        return -np.mean(np.sum(targets * log_softmax(np.tensordot(weights, logits, 1), -1), -1))

    want = optimize.minimize(loss, [1, 1], method="Nelder-Mead", options={"xatol": 1e-6}).x
    got = closed_form.fit_weights(logits, labels)
    np.testing.assert_allclose(got, want, atol=2e-3)
    assert got[0] > got[1] > 0
    # Logits of the wrong classes get no weight.
    assert closed_form.fit_weights(np.stack([logits[0], -logits[1]]), labels)[1] == 0


def test_weights_of_perfect_logits_are_finite_and_of_constant_ones_harmless():
    labels = np.array([0, 1, 1])
    (weight,) = closed_form.fit_weights(np.eye(2)[labels][None] * 5, labels)
    probability = np.exp(-closed_form.cross_entropy(weight * 5 * np.eye(2)[labels], labels))
    np.testing.assert_allclose(probability, 4 / 5, rtol=1e-4)  # (N + 1) / (N + 2)
    for constant in (0, np.log(0.5)):
        assert closed_form.fit_weights(np.full((1, 3, 2), constant), labels).tolist() == [0]
