"""What a model of images has to beat: simple methods on the same pixels."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data, training
from flax_linattn.tasks.classes import yardsticks
from flax_linattn.tasks.classes.metrics import averages, count
from flax_linattn.tasks.image.data import load_images_of, make_batches
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.yardsticks import Yardsticks, at_hand

YARDSTICKS = Yardsticks(
    "accuracy", ("constant", "nearest_neighbour", "ridge"), larger_is_better=True
)


def yardstick_values(run: Run, batches: training.BatchSource) -> dict[str, Any]:
    """Of always the most frequent class, and of methods that learn, where there are data to.

    They learn from the training images as they are, without augmentation.
    """
    test = _vectors(batches)
    labels, num_classes = test.arrays["labels"], len(run.problem.classes)
    most_frequent = int(np.bincount(labels, minlength=num_classes).argmax())
    predictions: dict[str, NDArray[np.integer]] = {"constant": np.full(len(labels), most_frequent)}
    learned: dict[str, int] = {}
    train = at_hand(partial(_train, run))
    if train is not None:
        learned["num_train"] = len(train.arrays["labels"])
        for name, found in yardsticks.predict(train, test).items():
            predictions[name] = found.labels
            learned[f"{name}_learned_from"] = found.num_fitted
    figures = {
        f"{name}_{key}": value
        for name, answers in predictions.items()
        for key, value in averages(count(labels, answers, num_classes)).items()
    }
    return figures | learned


def _train(run: Run) -> data.BucketBatches:
    images = load_images_of(run.config.data) if run.data is None else run.data
    images.check_same(run, own=True)
    plain = run.config
    if run.config.data.folder is not None:
        plain = run.config.replace(augmentation="none", mix=False)
    return _vectors(make_batches(images, plain, run.problem).train)


def _vectors(batches: training.BatchSource) -> data.BucketBatches:
    """The real examples of one pass, each with all its numbers in a row."""
    values, labels = [], []
    for index in range(len(batches)):
        batch = batches.batch(index)
        real = np.asarray(batch.get("weight", np.ones(len(batch["labels"])))) > 0
        values.append(batch["image"][real].reshape(int(real.sum()), -1, 1))
        labels.append(batch["labels"][real])
    x = np.concatenate(values)
    arrays = {"values": x, "labels": np.concatenate(labels), "mask": np.ones(x.shape[:2], bool)}
    return data.BucketBatches(arrays, len(x), lengths=x.shape[1:2], seed=None)
