"""Published classifiers and early classifiers, on prepared data sets, by one signature.

Each function fits a classifier to the training sequences with a seed, and returns its test metrics.
Nothing is selected on test data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.classification.archive_sets import Part, Prepared
from flax_linattn import data
from flax_linattn.tasks.classify.baselines import nearest_neighbor, ridge
from flax_linattn.tasks.classify.metrics import averages, count

NUM_KERNELS = 10_000
WINDOW = 0.1
"""Width of the Sakoe-Chiba band of dynamic time warping, as a fraction of the length."""
NUM_PREFIXES = 20
"""Number of prefix lengths of TEASER, as in its paper."""
MIN_LENGTH = 10
"""Smallest prefix length of TEASER: a kernel of MiniRocket has nine weights."""
TEASER_KERNELS = 1_000
TIME_COSTS = (0.01, 0.1, 0.5, 1.0)
"""Costs of a whole series, in misclassifications, that the non-myopic classifier may have."""

Classify = Callable[[Prepared, int], dict[str, Any]]
"""(data set, seed) -> metrics."""


def accuracy_values(predictions: NDArray, prepared: Prepared) -> dict[str, float]:
    """Test accuracy, macro F1 and balanced accuracy of predicted labels."""
    counts = count(prepared.test.labels, np.asarray(predictions), prepared.num_classes)
    return {f"test_{name}": value for name, value in averages(counts).items()}


def classify_by_ridge(prepared: Prepared, seed: int) -> dict[str, Any]:
    """The ridge on the flattened sequences."""
    train, test = prepared.train, prepared.test
    predictions = ridge(_flatten(train), train.labels, _flatten(test))
    return accuracy_values(predictions, prepared)


def classify_by_neighbor(prepared: Prepared, seed: int) -> dict[str, Any]:
    """The nearest neighbor in Euclidean distance."""
    train, test = prepared.train, prepared.test
    predictions = nearest_neighbor(_flatten(train), train.labels, _flatten(test))
    return accuracy_values(predictions, prepared)


def classify_by_dtw(prepared: Prepared, seed: int) -> dict[str, Any]:
    """The nearest neighbor by dynamic time warping in a band."""
    from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier

    band = {"window": WINDOW}
    made = KNeighborsTimeSeriesClassifier(n_neighbors=1, distance="dtw", distance_params=band)
    return _fit_aeon(made, prepared)


def classify_by_minirocket(prepared: Prepared, seed: int) -> dict[str, Any]:
    """MiniRocket features with scikit-learn's ridge classifier."""
    from aeon.classification.convolution_based import MiniRocketClassifier

    return _fit_aeon(MiniRocketClassifier(NUM_KERNELS, random_state=seed), prepared)


def classify_by_hydra(prepared: Prepared, seed: int) -> dict[str, Any]:
    """Hydra features, 64 groups of 8 kernels, with scikit-learn's ridge classifier."""
    from aeon.classification.convolution_based import HydraClassifier

    return _fit_aeon(HydraClassifier(random_state=seed), prepared)


def classify_by_multirocket_hydra(prepared: Prepared, seed: int) -> dict[str, Any]:
    """Hydra and MultiRocket features with one ridge classifier."""
    from aeon.classification.convolution_based import MultiRocketHydraClassifier

    return _fit_aeon(MultiRocketHydraClassifier(random_state=seed), prepared)


def decide_by_teaser(prepared: Prepared, seed: int) -> dict[str, Any]:
    """TEASER with MiniRocket features and logistic regression, which gives probabilities."""
    from aeon.classification.convolution_based import MiniRocketClassifier
    from aeon.classification.early_classification import TEASER
    from sklearn.linear_model import LogisticRegression

    length = prepared.train.values.shape[1]
    points = np.ceil(length * np.arange(1, NUM_PREFIXES + 1) / NUM_PREFIXES).astype(int)
    features = MiniRocketClassifier(TEASER_KERNELS, estimator=LogisticRegression(max_iter=200))
    points = np.unique(np.maximum(points, min(MIN_LENGTH, length)))
    made = TEASER(features, classification_points=points.tolist(), random_state=seed)
    made.fit(prepared.train.channels_first.astype(np.float64), prepared.train.labels)
    made.predict(prepared.test.channels_first.astype(np.float64))
    decided, predictions = made.state_info[:, 3], made.classes_[made.state_info[:, 2]]
    return decision_values(predictions, decided, prepared)


def decide_non_myopically(prepared: Prepared, seed: int) -> dict[str, Any]:
    """The non-myopic early classifier of tslearn; held-out sequences choose the cost of time."""
    train = prepared.train
    fitted, held_out = data.stratified_split(train.labels, 0.2, seed)
    first, second = (Part(*(array[rows] for array in train)) for rows in (fitted, held_out))
    inner = Prepared(first, second, prepared.num_classes)

    def quality(cost: float) -> float:
        value = _decide(inner, seed, cost)["decision_harmonic_mean"]
        assert isinstance(value, float)
        return value

    best = max(TIME_COSTS, key=quality)
    return {**_decide(prepared, seed, best), "time_cost": best}


def _decide(prepared: Prepared, seed: int, cost: float) -> dict[str, float]:
    from tslearn.early_classification import NonMyopicEarlyClassifier

    train, test = prepared.train, prepared.test
    made = NonMyopicEarlyClassifier(
        lamb=100.0,
        cost_time_parameter=cost / train.values.shape[1],
        random_state=seed,
    )
    made.fit(train.values.astype(np.float64), train.labels)
    predictions, times = made.predict_class_and_earliness(test.values.astype(np.float64))
    return decision_values(predictions, np.asarray(times), prepared)


def decision_values(predictions: NDArray, decided: NDArray, prepared: Prepared) -> dict[str, float]:
    """Accuracy, earliness and their harmonic mean; of padded sequences no padding is counted.

    Example:
        >>> part = Part(np.zeros((2, 4, 1)), np.arange(4) < np.array([[4], [2]]), np.array([0, 1]))
        >>> decision_values(np.array([0, 0]), np.array([1, 3]), Prepared(part, part, 2))
        {'decision_accuracy': 0.5, 'decision_earliness': 0.625, 'decision_harmonic_mean': 0.42...}
    """
    lengths = prepared.test.mask.sum(axis=1)
    accuracy = float(np.mean(predictions == prepared.test.labels))
    earliness = float(np.mean(np.minimum(decided, lengths) / lengths))
    total = accuracy + 1 - earliness
    mean = 2 * accuracy * (1 - earliness) / total if total else 0.0
    return {
        "decision_accuracy": accuracy,
        "decision_earliness": earliness,
        "decision_harmonic_mean": mean,
    }


def _fit_aeon(classifier: Any, prepared: Prepared) -> dict[str, Any]:
    classifier.fit(prepared.train.channels_first, prepared.train.labels)
    return dict(accuracy_values(classifier.predict(prepared.test.channels_first), prepared))


def _flatten(part: Part) -> NDArray:
    return part.values.reshape(len(part.values), -1)


CLASSIFIERS: Mapping[str, Classify] = {
    "ridge": classify_by_ridge,
    "1-NN Euclidean": classify_by_neighbor,
    "1-NN DTW": classify_by_dtw,
    "MiniRocket": classify_by_minirocket,
    "Hydra": classify_by_hydra,
    "Hydra+MultiRocket": classify_by_multirocket_hydra,
    "TEASER": decide_by_teaser,
    "non-myopic": decide_non_myopically,
}
"""By the name of the method."""
