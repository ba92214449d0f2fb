"""Loss, metrics, confusion matrix and predictions of classifiers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import training
from flax_linattn.data.batches.batches import ExampleBatches
from flax_linattn.tasks.prediction_table import make_table
from flax_linattn.typing import Array

LogitsFn: TypeAlias = Callable[[Any, dict[str, Array], Array | None], Array]
"""(model, batch, dropout key or None) -> logits [B, classes]."""


@functools.lru_cache  # always the same function, so that steps stay compiled
def make_label_loss(compute_logits: LogitsFn, label_smoothing: float = 0.0) -> training.LossFn:
    """Makes a loss function: mean cross-entropy over the valid examples of a batch.

    A batch has "labels", int32 [B], or [B, T] for packed sequences; "weight", float32 of the same
    shape, 0 for padding; and perhaps "class_weight", float32 of the same shape. Labels are smoothed
    only with a dropout key, thus not in validation.
    """

    def loss_fn(
        model: Any, batch: dict[str, Array], dropout_key: Array | None
    ) -> tuple[Array, dict[str, tuple[Array, Array]]]:
        logits, labels = compute_logits(model, batch, dropout_key), batch["labels"]
        weight = batch.get("weight", jnp.ones(labels.shape, jnp.float32))
        weight = weight * batch.get("class_weight", jnp.ones((), jnp.float32))
        smoothing = 0.0 if dropout_key is None else label_smoothing
        losses = training.smoothed_cross_entropy(logits, labels, smoothing)
        hits = (jnp.argmax(logits, axis=-1) == labels).astype(weight.dtype)
        total, count = jnp.sum(losses * weight), jnp.sum(weight)
        return total / count, {"loss": (total, count), "accuracy": (jnp.sum(hits * weight), count)}

    return loss_fn


NUM_BINS = 15
"""Number of bins of the expected calibration error, as in Guo et al., 2017."""
TOP_K = 5
"""Number of classes of the top-k accuracy, which is reported for more than twice as many."""


def _log_probabilities(
    model: Any, batches: training.BatchSource, compute_logits: LogitsFn
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float32]]]:
    """Yields labels [N] and log-probabilities [N, classes] of the examples of each batch."""
    graphdef, variables = nnx.split(model)
    for index in range(len(batches)):
        batch = dict(batches.batch(index))
        log_p = np.asarray(_compute(graphdef, variables, compute_logits, batch))
        real = np.asarray(batch.get("weight", np.ones(len(log_p)))) > 0
        yield batch["labels"][real], log_p[real]


@functools.partial(jax.jit, static_argnums=(0, 2))  # compiled once for many runs
def _compute(
    graphdef: nnx.GraphDef[Any], variables: Any, compute_logits: LogitsFn, batch: dict[str, Array]
) -> Array:
    return jax.nn.log_softmax(compute_logits(nnx.merge(graphdef, variables), batch, None), axis=-1)


def classifier_values(
    model: Any, batches: training.BatchSource, compute_logits: LogitsFn, classes: Sequence[str]
) -> dict[str, Any]:
    """Computes the metrics of a classifier, of each class, and the confusion matrix."""
    pairs = [*zip(*_log_probabilities(model, batches, compute_logits), strict=True)]
    labels, log_p = (np.concatenate(part) for part in pairs)
    counts = count(labels, log_p.argmax(axis=1), len(classes))
    own = np.take_along_axis(log_p, labels[:, None].astype(np.int64), axis=1)
    metrics = averages(counts)
    if len(classes) > 2 * TOP_K:
        rank = np.sum(log_p > own, axis=1)
        metrics[f"top_{TOP_K}_accuracy"] = float(np.mean(rank < TOP_K))
    metrics["loss"] = -float(own.mean(dtype=np.float64))
    metrics["calibration_error"] = calibration_error(np.exp(log_p), labels)
    return {
        **{f"test_{name}": value for name, value in metrics.items()},
        "classes": class_metrics(counts, classes),
        "confusion": counts.tolist(),
    }


def calibration_error(probabilities: NDArray, labels: NDArray[np.integer]) -> float:
    """Expected calibration error of the most likely class.

    Examples are put into bins of equal width by the probability of their most likely class. The
    error is the mean, over the examples, of the absolute difference between accuracy and mean
    probability of the bin (Guo et al., "On Calibration of Modern Neural Networks", 2017, eq. 3).

    Example:
        >>> calibration_error(np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([0, 1]))
        0.4
    """
    confidence = probabilities.max(axis=1).astype(np.float64)
    hits = probabilities.argmax(axis=1) == labels
    bins = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    gaps = np.bincount(bins, hits - confidence, minlength=NUM_BINS)
    return float(np.abs(gaps).sum() / len(labels))


def count(
    labels: NDArray[np.integer], predictions: NDArray[np.integer], num_classes: int
) -> NDArray[np.int64]:
    """Confusion matrix: number of examples by class and prediction, [classes, classes]."""
    counts = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(counts, (labels, predictions), 1)
    return counts


def averages(counts: NDArray[np.int64]) -> dict[str, float]:
    """Computes accuracy, macro F1 and balanced accuracy from a confusion matrix.

    The means over classes skip undefined values: the recall of a class without examples, and the F1
    of a class with neither examples nor predictions.

    Example:
        >>> averages(np.array([[1, 1, 0], [0, 2, 0], [0, 0, 0]]))
        {'accuracy': 0.75, 'macro_f1': 0.7333333333333334, 'balanced_accuracy': 0.75}
    """
    hits, of_class, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    has_recall, has_f1 = of_class > 0, of_class + predicted > 0
    return {
        "accuracy": float(hits.sum() / counts.sum()),
        "macro_f1": float(np.mean(2 * hits[has_f1] / (of_class + predicted)[has_f1])),
        "balanced_accuracy": float(np.mean(hits[has_recall] / of_class[has_recall])),
    }


def class_metrics(counts: NDArray[np.int64], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Recall, precision, F1 (None if undefined) and most frequent confusions of each class."""

    def fraction(part: int, whole: int) -> float | None:
        return round(part / whole, 3) if whole else None

    rows = []
    for index, name in enumerate(classes):
        hits, of_class = int(counts[index, index]), int(counts[index].sum())
        predicted = int(counts[:, index].sum())
        mistakes = [i for i in np.argsort(-counts[index], kind="stable") if i != index]
        rows.append(
            {
                "class": name,
                "count": of_class,
                "recall": fraction(hits, of_class),
                "precision": fraction(hits, predicted),
                "f1": fraction(2 * hits, of_class + predicted),
                "taken_for": ", ".join(
                    f"{classes[i]}: {counts[index, i]}" for i in mistakes if counts[index, i]
                ),
            }
        )
    return rows


def log_probabilities(
    model: Any, batches: training.BatchSource, compute_logits: LogitsFn
) -> NDArray[np.float32]:
    """Logarithms of class probabilities in the order of the examples, float32 [N, classes]."""
    pairs = _log_probabilities(model, batches, compute_logits)
    log_p = np.concatenate([part for _, part in pairs])
    return log_p[np.argsort(batches.order)] if isinstance(batches, ExampleBatches) else log_p


def predict_probabilities(
    model: Any, batches: training.BatchSource, compute_logits: LogitsFn
) -> NDArray[np.float32]:
    """Class probabilities in the order of the examples, float32 [N, classes]."""
    probabilities = np.exp(log_probabilities(model, batches, compute_logits))
    if np.isnan(probabilities).any():
        example = int(np.argwhere(np.isnan(probabilities))[0, 0])
        raise ValueError(
            f"the prediction of example {example} is NaN: the model overflows, has no position for "
            "one of its tokens, or has NaN parameters."
        )
    return probabilities


def class_table(
    probabilities: NDArray[np.float32], classes: Sequence[str], files: Sequence[str] | None = None
) -> pd.DataFrame:
    """Table of predictions: example number or file, predicted class, class probabilities.

    Example:
        >>> table = class_table(np.array([[0.25, 0.75]], np.float32), ("cat", "dog"))
        >>> table.to_dict("records")
        [{'example': 0, 'prediction': 'dog', 'p(cat)': 0.25, 'p(dog)': 0.75}]
    """
    best = np.array(classes, object)[np.argmax(probabilities, axis=1)]
    number = np.arange(len(best)) if files is None else np.array(files, object)
    of_classes = [f"p({name})" for name in classes]
    names = ("example" if files is None else "file", "prediction", *of_classes)
    return make_table(names, (number, best, *probabilities.T))
