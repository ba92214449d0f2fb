"""Predictions of a classifier: the likeliest class of each example, and all probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from flax_linattn import training
from flax_linattn.data.batching import ExampleBatches
from flax_linattn.tasks.classify.metrics import LogitsFn, real_outputs
from flax_linattn.tasks.predicted import Table
from flax_linattn.typing import Array


def probabilities_of(
    model: Any, batches: training.BatchSource, logits_of: LogitsFn
) -> NDArray[np.float32]:
    """Probabilities of the classes, in the order of the examples: float32 [N, classes].

    Args:
        model: the classifier.
        batches: of the examples, perhaps with a "weight" of 0 where a row is filler.
        logits_of: logits of a batch.

    Raises:
        ValueError: one is NaN.
    """
    outputs = real_outputs(model, batches, logits_of, _softmax)
    probabilities = np.concatenate([found for _, _, (found,) in outputs])
    if isinstance(batches, ExampleBatches):
        probabilities = probabilities[np.argsort(batches.order)]
    if np.isnan(probabilities).any():
        example = int(np.argwhere(np.isnan(probabilities))[0, 0])
        raise ValueError(
            f"the answer to example {example} is NaN: the model's numbers overflow, it has no "
            "position for so many tokens, or its parameters hold NaN."
        )
    return probabilities


def _softmax(logits: Array, batch: dict[str, Array]) -> tuple[Array, ...]:
    return (jax.nn.softmax(logits, axis=-1),)


def class_table(
    probabilities: NDArray[np.float32], classes: Sequence[str], files: Sequence[str] | None = None
) -> Table:
    """A row an example: its number or its file, the likeliest class, the probability of each.

    Args:
        probabilities: float32 [N, classes].
        classes: their names.
        files: of the examples; default they are numbered from 0.

    Example:
        >>> table = class_table(np.array([[0.25, 0.75]], np.float32), ("cat", "dog"))
        >>> table.names, next(table.rows())
        (('example', 'prediction', 'p(cat)', 'p(dog)'), (0, 'dog', 0.25, 0.75))
    """
    best = np.array(classes, object)[np.argmax(probabilities, axis=1)]
    number = np.arange(len(best)) if files is None else np.array(files, object)
    names = ("example" if files is None else "file", "prediction")
    return Table((*names, *(f"p({name})" for name in classes)), (number, best, *probabilities.T))
