"""Runs on sequences and images, trained in memory, and their accuracies."""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from experiments.classification.archive_sets import Part, Prepared
from experiments.classification.baseline_classifiers import classify_by_minirocket
from experiments.measured import Rows
from experiments.verdicts import rows_with
from flax_linattn import tasks, training
from flax_linattn.data.images import LabeledImages
from flax_linattn.data.labels import LabeledExamples
from flax_linattn.tasks import Config, Options

TESTED = 2500
"""Most test examples of a data set of files, evenly spread over it."""
FITTED = 5_000
"""Maximum number of images that MiniRocket is fitted to, evenly spread: the time of its ridge grows
with the cube of their number. With 10,000 it takes 16 minutes of a core."""


@functools.lru_cache(maxsize=8)
def _loaded(task: str, options: Options) -> Any:
    of_task = tasks.get_task(task)
    data = of_task.load(of_task.Config.of(**dataclasses.asdict(options)))
    if hasattr(data, "test"):  # of files
        data.test = spread(data.test, TESTED)
    return data


def spread(examples: LabeledExamples, count: int) -> Any:
    """At most ``count`` examples, evenly spread over all."""
    chosen = np.linspace(0, examples.num_examples - 1, min(count, examples.num_examples))
    return examples.subset(chosen.astype(int))


def minirocket(task: str, config: Config, seed: int) -> dict[str, Any]:
    """The test accuracy of MiniRocket on images as series of pixels, row by row."""
    data = cached_task(task).load(config.resolve())
    train, test = map(_pixel_series, (spread(data.fitted, FITTED), data.test))
    prepared = Prepared(train, test, len(data.test.classes))
    return {"accuracy": classify_by_minirocket(prepared, seed)["test_accuracy"]}


def _pixel_series(images: LabeledImages) -> Part:
    """Pixels as series, in [0, 1]."""
    pixels = np.asarray(images.pixels, np.float32) / 255
    values = pixels.reshape(len(pixels), -1, pixels.shape[-1])
    return Part(values, np.ones(values.shape[:2], bool), images.labels)


def cached_task(name: str) -> tasks.Task[Any, Any, Any]:
    """A task that reads its data once for all runs of this process, and tests on some of them.

    Simple methods are computed apart, once for all runs.
    """
    task: Any = tasks.get_task(name)
    task.load = lambda config: _loaded(name, config.data)
    task.test_baselines = lambda run, batches: {}
    return task  # type: ignore[no-any-return]


def train_and_test(task: str, config: Config) -> dict[str, Any]:
    """Trains a run and tests its selected parameters.

    Returns:
        Accuracy and loss of the test, accuracy at further lengths where they are asked for, the
        losses of training and validation by step, parameters, seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            values = tasks.train(
                cached_task(task), config, training.Session(folder, progress=False)
            )
        except training.NonFiniteLossError as error:
            return {"failed": str(error).partition(".")[0], "curve": curve(Path(folder))}
        run = tasks.load_run(folder)
        lines = curve(Path(folder))
    results = {
        "accuracy": values["test_accuracy"],
        "loss": values["test_loss"],
        "seconds": values["train_seconds"],
        "parameters": sum(p.size for p in jax.tree.leaves(nnx.state(run.model, nnx.Param))),
        "curve": lines,
    }
    return results | ({"lengths": values["lengths"]} if "lengths" in values else {})


def curve(folder: Path) -> list[dict[str, float]]:
    """What a run wrote down at each validation."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    names = ("step", "train_loss", "validation_loss", "validation_accuracy")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: line[name] for name in names if name in line} for line in lines]


def accuracies(rows: Rows, wanted: str = "", /, **values: Any) -> dict[int, float]:
    """The accuracies of the rows with these values, in percent by seed; 0 for a failed run.

    Args:
        rows: the rows of an experiment.
        wanted: the name of these rows for the error; default their values.
        **values: by the names of a row.

    Raises:
        NotMeasuredError: no row has these values.
    """
    matching = rows_with(rows, wanted, **values)
    return {row["seed"]: 100 * row.get("accuracy", 0.0) for row in matching}


def baselines(task: str, config: Config) -> dict[str, Any]:
    """The accuracy of each simple method on the test data of this seed."""
    of_task = tasks.get_task(task)
    config = config.resolve()
    data = cached_task(task).load(config)
    run = tasks.Run(of_task, config, of_task.describe(data, config), None, data)
    values = of_task.test_baselines(run, of_task.test_batches(run, None))
    end = "_accuracy"
    return {
        name.removesuffix(end): value
        for name, value in values.items()
        if name.endswith(end) and not name.endswith("balanced_accuracy")
    }
