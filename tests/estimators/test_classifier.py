"""Classifiers on arrays and lists: one small fit of Japanese Vowels, of which most tests ask."""

import pickle

import numpy as np
import pytest
from flax import nnx

from flax_linattn import data, tasks
from flax_linattn.estimators import Classifier
from tests.contract.tolerances import assert_same_bits
from tests.tasks.commands import FEW_FEATURES, no_training

SMALL = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8}


def vowels(part, classes, count):
    """Sequences of some speakers, each of its own length, and who speaks, in words."""
    dataset = data.japanese_vowels()[part]
    chosen = np.concatenate([np.flatnonzero(dataset.labels == c)[:count] for c in range(classes)])
    names = np.array([f"speaker {name}" for name in dataset.classes])
    return [dataset.series[i] for i in chosen], names[dataset.labels[chosen]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs") / "kept"


@pytest.fixture(scope="module")
def fitted(folder):
    X, y = vowels(0, 3, 30)
    steps = {**SMALL, "steps": 40, "validate_every": 20}
    classifier = Classifier(
        batch_size=32, learning_rate=0.02, random_state=0, run=folder, options=steps
    )
    return classifier.fit(X, y)


def test_speakers_are_told_apart(fitted):
    X, y = vowels(1, 3, 20)
    assert fitted.classes_.tolist() == ["speaker 1", "speaker 2", "speaker 3"]
    assert fitted.n_features_in_ == 12
    proba = fitted.predict_proba(X)
    assert proba.shape == (len(X), 3)
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[proba.argmax(axis=1)])
    assert fitted.score(X, y) == np.mean(fitted.predict(X) == y) > 0.8


def test_the_closed_form_has_the_linear_maps_of_the_default(fitted):
    X, y = vowels(0, 3, 30)
    closed = Classifier(random_state=0, options={"model": "closed-form"}).fit(X, y).run_.model
    assert closed.attention is None and (closed.weights[:, 1] == 0).all()
    for name in ("kernel", "bias", "whole_kernel", "held_out_accuracy"):
        default = getattr(fitted.run_.model, name)
        assert_same_bits(getattr(closed, name)[...], default[...])


def test_sequences_do_not_depend_on_those_beside_them(fitted):
    X, _ = vowels(1, 3, 4)
    together = fitted.predict_proba(X)
    order = np.argsort([len(own) for own in X])[::-1]
    np.testing.assert_allclose(
        fitted.predict_proba([X[i] for i in order]), together[order], atol=1e-6
    )
    cube = np.stack([X[0], X[0]])
    np.testing.assert_allclose(fitted.predict_proba(cube)[1], together[0], atol=1e-6)
    longer = np.concatenate([X[0]] * 4)  # than any that was trained on
    assert np.isfinite(fitted.predict_proba([longer])).all()


def test_the_run_is_kept(fitted, folder):
    X, _ = vowels(1, 3, 2)
    run = tasks.load_run(folder)
    assert run.data_spec.classes == ("speaker 1", "speaker 2", "speaker 3")
    from flax_linattn.tasks.classify import predict_proba

    dataset = data.TimeSeriesDataset(
        "X", tuple(X), np.zeros(len(X), np.int32), run.data_spec.classes, run.data_spec.channels
    )
    np.testing.assert_allclose(predict_proba(run, dataset), fitted.predict_proba(X), atol=1e-6)


def test_a_fit_continues_a_run(fitted):
    X, y = vowels(1, 3, 20)
    with no_training():
        again = Classifier(random_state=1).fit(X, y, init_run=fitted.run_)
    ours, theirs = again.run_.model, fitted.run_.model
    assert_same_bits(nnx.state(ours.attention), nnx.state(theirs.attention))
    # The linear maps are fitted to the new sequences.
    assert (ours.bias[...] != theirs.bias[...]).any() and again.score(X, y) == 1
    with pytest.raises(
        ValueError, match="expected data with the same classes as the run to continue"
    ):
        Classifier(random_state=1).fit(*vowels(1, 2, 20), init_run=fitted.run_)


def test_pickles_say_the_same(fitted):
    X, _ = vowels(1, 3, 2)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))


def test_what_does_not_fit(fitted):
    with pytest.raises(ValueError, match="X has 2 features, but Classifier is expecting 12"):
        fitted.predict(np.zeros((3, 4, 2)))
    with pytest.raises(ValueError, match="X has 5 features, but Classifier is expecting 12"):
        fitted.predict(np.zeros((3, 5)))
    with pytest.raises(ValueError, match="so that some can be held out"):
        Classifier(random_state=0).fit(np.zeros((2, 4)), [0, 1])
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        Classifier(epochs=0).fit(np.zeros((9, 4)), [0, 1, 1] * 3)


@pytest.mark.slow
def test_numbers_as_classes_missing_values_and_seeds():
    """Classes 2 and 10 stand in the order of numbers, and the same seed gives the same bits."""
    rng = np.random.default_rng(0)
    y = np.tile([10, 2, 3], 20)
    X = y[:, None] * np.linspace(0, 1, 8) + 0.3 * rng.normal(size=(60, 8))
    X[::7, 3] = np.nan
    steps = {**SMALL, "steps": 450, "validate_every": 90}
    fits = [
        Classifier(learning_rate=0.01, random_state=seed, options=steps).fit(X, y)
        for seed in (0, 0, 1)
    ]
    assert fits[0].classes_.tolist() == [2, 3, 10]
    probas = [fit.predict_proba(X) for fit in fits]
    np.testing.assert_array_equal(probas[0], probas[1])
    assert not np.allclose(probas[0], probas[2])
    assert fits[0].score(X, y) > 0.8 and fits[0].predict(X).dtype == y.dtype


@pytest.mark.parametrize("model", ["minirocket", "attention", "closed-form"])
def test_a_classifier_of_noise_warns(model, monkeypatch):
    monkeypatch.setattr("flax_linattn.training.checkpointer.write_checkpoint", None)  # no folder
    X, y = np.random.default_rng(0).normal(size=(40, 12, 1)), np.arange(40) % 2
    y = np.where(np.arange(40) < 30, 0, y)
    options = {"model": model} | (FEW_FEATURES if model != "attention" else {})
    with no_training(), pytest.warns(UserWarning, match="the most frequent class 8. %"):
        Classifier(random_state=0, options=options).fit(X, y)
