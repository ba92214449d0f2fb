"""What a classifier of sequences says of those whose classes are not known."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.tasks.classify.predictions import class_table, probabilities_of
from flax_linattn.tasks.classify.series.data import check_values, complete, make_batches
from flax_linattn.tasks.classify.series.evaluate import load_test
from flax_linattn.tasks.classify.series.model import logits_of
from flax_linattn.tasks.predicted import Table
from flax_linattn.tasks.run_types import Run


def predict(run: Run, file: Path | None) -> Table:
    """A row a sequence; labels of the file do not count, and may all be "?".

    Raises:
        ValueError: a damaged file, or other channels than the run was trained on.
        FileNotFoundError: it is missing.
    """
    given = load_test(run) if file is None else data.load_dataset(file)
    if file is not None:
        check_values(file, given)
    return class_table(predict_proba(run, given), run.problem.classes)


def predict_proba(run: Run, dataset: data.TimeSeriesDataset) -> NDArray[np.float32]:
    """Probabilities of the classes, float32 [N, classes].

    Args:
        run: the trained run.
        dataset: sequences with its channels, in their order; their labels do not count.

    Raises:
        ValueError: they have another number of channels; one is too long for the model.
    """
    if dataset.num_channels != len(run.problem.channels):
        raise ValueError(
            f"{dataset.name} has {dataset.num_channels} channels, the run was trained on "
            f"{len(run.problem.channels)}; give sequences of the same problem."
        )
    unknown = dataclasses.replace(
        dataset, labels=np.zeros_like(dataset.labels), classes=run.problem.classes
    )
    batches = make_batches(complete(unknown), run.config, run.problem, seed=None)
    return probabilities_of(run.model, batches, logits_of)
