"""What a classifier takes for what: counts, and the figures of each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import data, models
from flax_linattn.tasks.figure import new_figure
from flax_linattn.typing import Array


def confusion(model: models.SequenceClassifier, batches: data.Batches) -> NDArray[np.int64]:
    """Counts of examples by class and prediction, [classes, classes]."""
    graphdef, variables = nnx.split(model)

    @jax.jit
    def predict(variables: Any, batch: dict[str, Array]) -> Array:
        logits = nnx.merge(graphdef, variables)(batch["values"], mask=batch["mask"])
        return jnp.argmax(logits, axis=-1)

    counts = np.zeros((model.num_classes, model.num_classes), np.int64)
    for batch in batches:
        real = batch["weight"] > 0
        predictions = np.asarray(predict(variables, batch))
        np.add.at(counts, (batch["labels"][real], predictions[real]), 1)
    return counts


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


def draw_confusion(counts: NDArray[np.int64], classes: Sequence[str], path: Path) -> None:
    """Draws the counts to a PNG file, coloured by the share of each class.

    Raises:
        ValueError: matplotlib is not installed.
    """
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = 2.0 + 0.45 * len(classes)
    canvas = new_figure(side + 0.8, side)
    axes = canvas.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour)
    ticks = range(len(classes))
    longest = max(map(len, classes))
    axes.set_xticks(ticks, classes, rotation=90 if longest > 2 else 0)
    axes.set_yticks(ticks, classes)
    axes.set(xlabel="predicted", ylabel="class")
    canvas.colorbar(image, label="share of the class", shrink=0.8)
    canvas.savefig(path, dpi=120)
