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

from flax_linattn import training
from flax_linattn.tasks.classify.loss import LogitsFn
from flax_linattn.tasks.run_types import Run
from flax_linattn.typing import Array


def classifier_values(
    model: Any, batches: training.BatchSource, logits_of: LogitsFn, classes: Sequence[str]
) -> dict[str, Any]:
    """Metrics of a classifier, the figures of each class, and what it takes for what.

    Args:
        model: the classifier.
        batches: with "labels", and perhaps a "weight" of 0 where a row is filler.
        logits_of: its logits of a batch.
        classes: their names.
    """
    tell = partial(_tell, *nnx.split(model), logits_of)
    counts = np.zeros((len(classes), len(classes)), np.int64)
    loss, examples = 0.0, 0
    for index in range(len(batches)):
        batch = batches.batch(index)
        real = np.asarray(batch.get("weight", np.ones(len(batch["labels"])))) > 0
        predictions, losses = map(np.asarray, tell(dict(batch)))
        counts += count(batch["labels"][real], predictions[real], len(classes))
        loss += float(losses[real].sum(dtype=np.float64))
        examples += int(real.sum())
    metrics = averages(counts) | {"loss": loss / examples}
    return {
        **{f"test_{name}": value for name, value in metrics.items()},
        "classes": class_figures(counts, classes),
        "confusion": counts.tolist(),
    }


def run_values(run: Run, batches: training.BatchSource, logits_of: LogitsFn) -> dict[str, Any]:
    """``classifier_values`` of a run, what they are of, and what selected its parameters."""
    tested = classifier_values(run.model, batches, logits_of, run.problem.classes)
    on_test = run.config.data.select_on == "test"
    return {
        "dataset": run.problem.dataset,
        "selected_on": "TEST SET" if on_test else "data held out for validation",
        "num_test": int(np.sum(tested["confusion"])),
        **tested,
    }


@partial(jax.jit, static_argnums=(0, 2))  # of many runs compiled once
def _tell(
    graphdef: nnx.GraphDef[Any], variables: Any, logits_of: LogitsFn, batch: dict[str, Array]
) -> tuple[Array, Array]:
    """Predictions and losses of a batch, [B] each."""
    logits = logits_of(nnx.merge(graphdef, variables), batch, None)
    losses = training.smoothed_cross_entropy(logits, batch["labels"])
    return jnp.argmax(logits, axis=-1), losses


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
