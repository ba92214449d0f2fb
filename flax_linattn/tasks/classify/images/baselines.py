"""What a model of images has to beat: simple methods on the same pixels."""

from __future__ import annotations

from functools import partial
from typing import Any

from flax_linattn import training
from flax_linattn.tasks.classify import baselines
from flax_linattn.tasks.classify.images.data import load_images_of
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.yardsticks import Yardsticks, at_hand

YARDSTICKS = Yardsticks(
    "accuracy", ("constant", "nearest_neighbour", "ridge"), larger_is_better=True
)


def yardstick_values(run: Run, batches: training.BatchSource) -> dict[str, Any]:
    """Of always the test's most frequent class, and of methods that learn, where there are data.

    They learn from the training images as they are, without augmentation.
    """
    test = baselines.as_vectors(batches, "image")
    judged = baselines.Judged(test.arrays["labels"], len(run.problem.classes))
    train = at_hand(partial(_train, run))
    if train is not None:
        judged.figures["num_train"] = baselines.num_examples(train)
        vectors = baselines.as_vectors(train, "image")
        for name, found in baselines.predict(vectors, test).items():
            judged.add(name, found)
    return judged.figures


def _train(run: Run) -> training.BatchSource:
    images = load_images_of(run.config.data) if run.data is None else run.data
    images.check_same(run, own=True)
    plain = run.config
    if run.config.data.folder is not None:
        plain = run.config.replace(augmentation="none")
    batches: training.BatchSource = images.splits(plain, run.problem).train
    return batches
