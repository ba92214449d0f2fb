"""Base classes of the classification tasks: series, token sequences and images."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from flax_linattn import training
from flax_linattn.checks import OptionError
from flax_linattn.tasks.baselines import Baselines
from flax_linattn.tasks.classify.baselines import Vectors, baseline_values, predict_vectors
from flax_linattn.tasks.classify.figures import plot_confusion
from flax_linattn.tasks.classify.label_options import RecipeFit
from flax_linattn.tasks.classify.metrics import (
    LogitsFn,
    class_table,
    classifier_values,
    make_label_loss,
    predict_probabilities,
)
from flax_linattn.tasks.classify.sources import C, P, Source, TreeSource
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.task import DataSummary, Report, Task
from flax_linattn.typing import Array


class LabelTask(Task[C, Source[C, P], P]):
    """A classification task: loss, metrics, baselines, predictions and figures.

    Attributes:
        baseline_names: Names of the baselines that a report compares the model with.
        selections: Description of the data that select the parameters, by ``select_on``.
    """

    baseline_names: ClassVar[tuple[str, ...]] = ("constant", "nearest_neighbor", "ridge")
    selections: ClassVar[Mapping[str, str]] = {
        "validation": "data held out for validation",
        "test": "TEST SET",
    }

    @staticmethod
    @abc.abstractmethod
    def compute_logits(model: Any, batch: dict[str, Array], dropout_key: Array | None) -> Array:
        """Computes the logits of a batch, float [B, classes]."""

    @classmethod
    def trained_logits(cls) -> LogitsFn:
        """Function that computes the logits of the part of a model that gradients train."""
        return cls.compute_logits

    @abc.abstractmethod
    def vectors(self, batches: training.BatchSource) -> Vectors:
        """Reads the examples of one epoch as inputs of the baselines."""

    @abc.abstractmethod
    def train_batches(self, run: Run) -> training.BatchSource:
        """Makes training batches for the baselines, without augmentation."""

    @abc.abstractmethod
    def predict_batches(
        self, run: Run, file: Path | None
    ) -> tuple[training.BatchSource, Sequence[str] | None]:
        """Makes batches of examples to predict, with their names, if any; see ``predict``."""

    def describe(self, data: Source[C, P], config: C) -> P:
        return data.describe(config)

    def about_data(self, data: Source[C, P], config: C) -> DataSummary:
        return DataSummary(data.about(config), data.notes)

    def batches(
        self, data: Source[C, P], config: C, data_spec: P, sequence_shards: int
    ) -> training.Splits:
        return data.splits(config, data_spec, sequence_shards)

    def objective(self, config: C, data_spec: P, steps_per_epoch: int) -> training.Objective:
        """Makes the objective: cross-entropy, and the metric that selects the parameters."""
        fit, monitor = config.fit, self.monitor(config)
        smoothing = fit.label_smoothing if isinstance(fit, RecipeFit) else 0.0
        return training.Objective(
            make_label_loss(self.trained_logits(), smoothing),
            fit.make_optimizer(steps_per_epoch),
            monitor=monitor,
            mode="min" if monitor == "loss" else "max",
        )

    def monitor(self, config: C) -> str:
        """Name of the metric that selects parameters, as in TaylorShift and Long Range Arena."""
        return "accuracy"

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Reports metrics, metrics of each class, and the confusion matrix."""
        classes = run.data_spec.classes
        tested = classifier_values(run.model, batches, self.compute_logits, classes)
        counts = np.array(tested["confusion"])
        values = {
            "dataset": run.data_spec.dataset,
            "selected_on": self.selections[run.config.data.select_on],
            "num_test": int(counts.sum()),
            **tested,
        }
        return Report(
            values,
            tables=("classes",),
            figures={"confusion.png": partial(plot_confusion, counts, classes)},
            baselines=Baselines("accuracy", self.baseline_names, larger_is_better=True),
        )

    def test_baselines(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Tests the most frequent class, the nearest neighbor and the ridge."""
        test = self.vectors(batches)
        return baseline_values(
            test.labels,
            len(run.data_spec.classes),
            partial(self.train_batches, run),
            lambda train: predict_vectors(self.vectors(train), test),
        )

    def predict(self, run: Run, file: Path | None) -> pd.DataFrame:
        """Predicts the class of each example, with the probability of each class."""
        batches, names = self.predict_batches(run, file)
        probabilities = predict_probabilities(run.model, batches, self.compute_logits)
        return class_table(probabilities, run.data_spec.classes, names)


class SourceTask(LabelTask[C, P]):
    """A classification task on synthetic data, or on files of a folder or an archive."""

    @abc.abstractmethod
    def with_file(self, config: C, file: Path) -> C:
        """Returns the options with another folder or archive of data."""

    def baseline_config(self, config: C) -> C:
        """Returns the options to read training data for baselines, without augmentation."""
        return config

    def load_source(self, run: Run, file: Path | None = None) -> Source[C, P]:
        """Loads the unchanged examples of a run, or the examples of another folder or archive."""
        if file is not None:
            source = self.load(self.with_file(run.config, file))
            ours, theirs = (p.kind for p in (run.data_spec, source.describe(run.config)))
            if ours != theirs:
                raise ValueError(
                    f"expected {ours}, as in training, got {theirs} in {file}; pass data of "
                    "the same data set."
                )
            return source
        source = self.load(run.config) if run.data is None else run.data
        if source.describe(run.config).checksum != run.data_spec.checksum:
            version = ", or this version of NumPy or of the library generates other data"
            raise OptionError(
                f"the data of the run ({run.data_spec.dataset}) have changed since training"
                f"{'' if isinstance(source, TreeSource) else version}; pass other test data.",
                "test_file",
            )
        return source

    def test_batches(self, run: Run, file: Path | None) -> training.BatchSource:
        """Makes batches of the run's own test data, or of another folder or archive."""
        test = self.load_source(run, file).splits(run.config, run.data_spec).test
        assert test is not None
        return test

    def train_batches(self, run: Run) -> training.BatchSource:
        return self.load_source(run).splits(self.baseline_config(run.config), run.data_spec).train
