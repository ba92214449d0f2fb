"""Trained classifiers: tested, and their streams compared with the parallel model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_linattn import data, inference, training
from flax_linattn.checks import OptionError
from flax_linattn.tasks.classify import baselines
from flax_linattn.tasks.classify.series.data import checksum_of, complete, make_batches
from flax_linattn.tasks.classify.series.model import Classifier
from flax_linattn.tasks.run import reading_data
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.yardsticks import Yardsticks, at_hand
from flax_linattn.typing import Array

YARDSTICKS = Yardsticks(
    "accuracy", ("constant", "nearest_neighbour", "ridge"), larger_is_better=True
)


def prepared_train(run: Run) -> data.BucketBatches:
    """A run's whole training data, with the sequences that select its parameters.

    Raises:
        ValueError: they have changed.
        FileNotFoundError: the file is missing.
    """
    path = run.config.data.train_file
    if run.data is not None:
        train = run.data.files[0]
    else:
        train = data.japanese_vowels()[0] if path is None else data.load_dataset(path)
        train = train.with_classes(run.problem.classes)
        if checksum_of(train) != run.problem.checksum.get("train"):
            raise ValueError(f"{train.name} ({path}) has changed since.")
    return make_batches(complete(train), run.config, run.problem, seed=None)


def load_test(run: Run, test_file: Path | None = None) -> data.TimeSeriesDataset:
    """A run's test data, or those of another file, on the run's classes.

    Raises:
        ValueError: other channels or classes than the run was trained on; the run's own file has
            changed.
        FileNotFoundError: the file is missing.
    """
    path = run.config.data.test_file if test_file is None else test_file
    if path is None:
        test = data.japanese_vowels()[1]
    else:
        with reading_data(test_file is None):
            test = data.load_dataset(path).with_classes(run.problem.classes)
    if test.num_channels != len(run.problem.channels):
        raise ValueError(
            f"{test.name} has {test.num_channels} channels, the run was trained on "
            f"{len(run.problem.channels)}; give a file of the same problem."
        )
    if test_file is None and checksum_of(test) != run.problem.checksum["test"]:
        raise OptionError(
            f"the data of the run have changed since ({test.name}, {test.num_examples} "
            "sequences); give other data to test on.",
            "test_file",
        )
    return test


def evaluate_yardsticks(run: Run, batches: data.BucketBatches) -> dict[str, Any]:
    """What the model has to beat on the same test data.

    Args:
        run: the run.
        batches: the test data.

    Returns:
        Accuracy, macro F1 and balanced accuracy of always answering the most frequent class of the
        test data ("constant") and, where the run's training data are at hand, of the nearest
        neighbour and of a ridge, with how many sequences they learned from (``num_train``: of how
        many).
    """
    judged = baselines.Judged(batches.arrays["labels"], len(run.problem.classes))
    train = at_hand(partial(prepared_train, run))
    if train is not None:
        judged.figures["num_train"] = len(train.arrays["labels"])
        for name, found in baselines.predict(train, batches).items():
            judged.add(name, found)
    return judged.figures


def stream_error(model: Classifier, batches: training.BatchSource) -> dict[str, Any]:
    """The largest difference between streamed and parallel class probabilities over all steps.

    Args:
        model: one that streams.
        batches: the test data.
    """
    errors = partial(_stream_errors, *nnx.split(model))
    largest, steps = 0.0, 0
    for index in range(len(batches)):
        batch = batches.batch(index)
        real = batch["mask"] & (batch["weight"] > 0)[:, None]
        # Unlike max(), it keeps NaN.
        largest = float(np.maximum(largest, jnp.max(errors({**batch, "mask": real}))))
        steps += int(real.sum())
    return {"stream_max_error": largest, "stream_steps": steps}


@partial(jax.jit, static_argnums=0)  # of many runs compiled once
def _stream_errors(graphdef: nnx.GraphDef[Any], variables: Any, batch: dict[str, Array]) -> Array:
    model = nnx.merge(graphdef, variables)
    x, mask = batch["values"], batch["mask"]
    parallel = jax.nn.softmax(model(x, mask=mask, every_step=True))
    streamed = jax.nn.softmax(inference.unroll(model, x, mask))
    return jnp.where(mask[:, :, None], jnp.abs(parallel - streamed), 0.0)
