"""Trained classifiers: loaded from their run folders and tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_linattn import data, inference, models, training
from flax_linattn.tasks.classify_config import ClassifyConfig
from flax_linattn.tasks.classify_data import ClassifyProblem, checksum_of, complete, make_batches
from flax_linattn.tasks.classify_metrics import class_figures, confusion
from flax_linattn.tasks.classify_model import build_classifier, classification_loss
from flax_linattn.tasks.runs import reading_data, reading_problem
from flax_linattn.typing import Array


class ClassifyRun(NamedTuple):
    """A trained run, loaded from its folder.

    Attributes:
        model: with the selected parameters.
        config: what the run was started with, resolved.
        problem: what it learned of the data.
    """

    model: models.SequenceClassifier
    config: ClassifyConfig
    problem: ClassifyProblem


def load_classifier(run_dir: Path) -> ClassifyRun:
    """Loads a run's model with its selected parameters.

    Raises:
        FileNotFoundError: there is no such run, or it has no checkpoint.
        ValueError: its files are damaged.
    """
    config = ClassifyConfig.read(run_dir)
    with reading_problem(run_dir) as values:
        problem = ClassifyProblem.from_json(values)
    model = build_classifier(config, problem)
    training.load_best(model, run_dir)
    return ClassifyRun(model, config, problem)


def load_test(run: ClassifyRun, test_file: Path | None = None) -> data.TimeSeriesDataset:
    """A run's test data, or those of another file, on the run's classes.

    Raises:
        ValueError: other channels or classes than the run was trained on; the run's own file has
            changed.
        FileNotFoundError: the file is missing.
    """
    path = run.config.test_file if test_file is None else test_file
    if path is None:
        test = data.japanese_vowels()[1]
    else:
        with reading_data(test_file):
            test = data.load_dataset(path).with_classes(run.problem.classes)
    if test.num_channels != len(run.problem.channels):
        raise ValueError(
            f"{test.name} has {test.num_channels} channels, the run was trained on "
            f"{len(run.problem.channels)}; give a file of the same problem."
        )
    if test_file is None and checksum_of(test) != run.problem.checksum["test"]:
        raise ValueError(
            f"the data of the run have changed since ({test.name}, {test.num_examples} "
            "sequences); give other data with --test-file."
        )
    return test


def evaluate_run(run_dir: Path, test_file: Path | None = None) -> dict[str, Any]:
    """Tests a run and, if its model streams, compares the stream with the parallel model.

    Args:
        run_dir: the run folder.
        test_file: other test data than the run's own.

    Returns:
        Test metrics, as ``train_classifier``; ``stream_max_error``, the largest difference between
        streamed and parallel class probabilities over all steps of all sequences, and the number of
        steps compared.

    Raises:
        FileNotFoundError: the run or the file is missing.
        ValueError: damaged files, or data of another problem.
    """
    run = load_classifier(run_dir)
    test = complete(load_test(run, test_file))
    batches = make_batches(test, run.config, run.problem, seed=None)
    report: dict[str, Any] = {
        "dataset": test.name,
        "mechanism": run.config.mechanism,
        "protocol": run.config.protocol,
        "num_test": test.num_examples,
    }
    report |= evaluate_classifier(run.model, batches, run.problem)
    if run.model.backbone.streams:
        report |= _compare_stream(run.model, batches)
    return report


def evaluate_classifier(
    model: models.SequenceClassifier, batches: data.Batches, problem: ClassifyProblem
) -> dict[str, Any]:
    """Test metrics, and the figures of each class.

    Args:
        model: the trained model.
        batches: the test data.
        problem: what the run learned of the data.
    """
    metrics = training.evaluate(model, classification_loss, batches)
    counts = confusion(model, batches)
    return {
        **{f"test_{name}": value for name, value in metrics.items()},
        "constant_accuracy": float(counts.sum(axis=1).max() / counts.sum()),
        "classes": class_figures(counts, problem.classes),
        "confusion": counts.tolist(),
    }


def _compare_stream(model: models.SequenceClassifier, batches: data.Batches) -> dict[str, Any]:
    graphdef, variables = nnx.split(model)

    @jax.jit
    def errors(variables: Any, batch: dict[str, Array]) -> Array:
        model = nnx.merge(graphdef, variables)
        x, mask = batch["values"], batch["mask"]
        parallel = jax.nn.softmax(model(x, mask=mask, every_step=True))
        streamed = jax.nn.softmax(inference.unroll(model, x, mask))
        return jnp.where(mask[:, :, None], jnp.abs(parallel - streamed), 0.0)

    largest, steps = 0.0, 0
    for batch in batches:
        real = batch["mask"] & (batch["weight"] > 0)[:, None]
        # Unlike max(), it keeps NaN.
        largest = float(np.maximum(largest, jnp.max(errors(variables, {**batch, "mask": real}))))
        steps += int(real.sum())
    return {"stream_max_error": largest, "stream_steps": steps}
