"""What a classifier takes for what: counts, and the figures of each class."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import models, training
from flax_linattn.typing import Array


def confusion(model: models.SequenceClassifier, batches: training.BatchSource) -> NDArray[np.int64]:
    """Counts of examples by class and prediction, [classes, classes]."""
    predict = partial(_predict, *nnx.split(model))
    counts = np.zeros((model.num_classes, model.num_classes), np.int64)
    for index in range(len(batches)):
        batch = batches.batch(index)
        real = batch["weight"] > 0
        predictions = np.asarray(predict(batch))
        counts += count(batch["labels"][real], predictions[real], model.num_classes)
    return counts


@partial(jax.jit, static_argnums=0)  # of many runs compiled once
def _predict(graphdef: nnx.GraphDef[Any], variables: Any, batch: dict[str, Array]) -> Array:
    logits = nnx.merge(graphdef, variables)(batch["values"], mask=batch["mask"])
    return jnp.argmax(logits, axis=-1)


def count(
    labels: NDArray[np.integer], predictions: NDArray[np.integer], num_classes: int
) -> NDArray[np.int64]:
    """Counts of examples by class and prediction, [classes, classes]."""
    counts = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(counts, (labels, predictions), 1)
    return counts


def averages(counts: NDArray[np.int64]) -> dict[str, float]:
    """Accuracy, and the means over classes of F1 ("macro") and of recall ("balanced accuracy").

    A class without examples has no recall, and without predictions, too, no F1: the means leave it
    out.

    Args:
        counts: examples by class and prediction, [classes, classes].

    Example:
        >>> averages(np.array([[1, 1, 0], [0, 2, 0], [0, 0, 0]]))
        {'accuracy': 0.75, 'macro_f1': 0.7333333333333334, 'balanced_accuracy': 0.75}
    """
    hits, of_class, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    seen, named = of_class > 0, of_class + predicted > 0
    return {
        "accuracy": float(hits.sum() / counts.sum()),
        "macro_f1": float(np.mean(2 * hits[named] / (of_class + predicted)[named])),
        "balanced_accuracy": float(np.mean(hits[seen] / of_class[seen])),
    }


def class_figures(counts: NDArray[np.int64], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Recall, precision and F1 of each class, None where nothing counts, and its confusions.

    Args:
        counts: examples by class and prediction, [classes, classes].
        classes: their names.

    Example:
        >>> class_figures(np.array([[3, 1], [0, 0]]), ["a", "b"])[0]["f1"]
        0.857
    """
    figures = []
    for index, name in enumerate(classes):
        hits, of_class = int(counts[index, index]), int(counts[index].sum())
        predicted = int(counts[:, index].sum())
        mistakes = [i for i in np.argsort(-counts[index], kind="stable") if i != index]
        figures.append(
            {
                "class": name,
                "count": of_class,
                "recall": _share(hits, of_class),
                "precision": _share(hits, predicted),
                "f1": _share(2 * hits, of_class + predicted),
                "taken_for": ", ".join(
                    f"{classes[i]}: {counts[index, i]}" for i in mistakes if counts[index, i]
                ),
            }
        )
    return figures


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None
