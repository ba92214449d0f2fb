"""What the tasks with labels share: classes of series, of sequences of tokens, of images."""

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
    """A task of classes: one loss, one set of metrics, baselines, predictions and figures.

    Attributes:
        baselines: names of the simple methods that a report compares with.
        selections: what a report calls the data that select the parameters, by ``select_on``.
    """

    baseline_names: ClassVar[tuple[str, ...]] = ("constant", "nearest_neighbour", "ridge")
    selections: ClassVar[Mapping[str, str]] = {
        "validation": "data held out for validation",
        "test": "TEST SET",
    }

    @staticmethod
    @abc.abstractmethod
    def compute_logits(model: Any, batch: dict[str, Array], dropout_key: Array | None) -> Array:
        """Logits of a batch, float [B, classes]."""

    @abc.abstractmethod
    def vectors(self, batches: training.BatchSource) -> Vectors:
        """Examples of one pass as the baselines receive them."""

    @abc.abstractmethod
    def train_batches(self, run: Run) -> training.BatchSource:
        """The training data of a run for the baselines, without random changes."""

    @abc.abstractmethod
    def predict_batches(
        self, run: Run, file: Path | None
    ) -> tuple[training.BatchSource, Sequence[str] | None]:
        """Batches of examples to predict, and their names where they have any; see ``predict``."""

    def describe(self, data: Source[C, P], config: C) -> P:
        return data.describe(config)

    def about_data(self, data: Source[C, P], config: C) -> DataSummary:
        return DataSummary(data.about(config), data.notes)

    def batches(
        self, data: Source[C, P], config: C, data_spec: P, sequence_shards: int
    ) -> training.Splits:
        return data.splits(config, data_spec, sequence_shards)

    def objective(self, config: C, data_spec: P, steps_per_epoch: int) -> training.Objective:
        """Cross-entropy, and the metric that selects the parameters."""
        fit, monitor = config.fit, self.monitor(config)
        smoothing = fit.label_smoothing if isinstance(fit, RecipeFit) else 0.0
        return training.Objective(
            make_label_loss(self.compute_logits, smoothing),
            fit.make_optimizer(steps_per_epoch),
            monitor=monitor,
            mode="min" if monitor == "loss" else "max",
        )

    def monitor(self, config: C) -> str:
        """The metric that selects: accuracy, as TaylorShift and Long Range Arena do."""
        return "accuracy"

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Metrics, figures of each class, confusions."""
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
        """Metrics of the most frequent class, the nearest neighbor, a ridge."""
        test = self.vectors(batches)
        return baseline_values(
            test.labels,
            len(run.data_spec.classes),
            partial(self.train_batches, run),
            lambda train: predict_vectors(self.vectors(train), test),
        )

    def predict(self, run: Run, file: Path | None) -> pd.DataFrame:
        """The class of each example, and the probability of each class."""
        batches, names = self.predict_batches(run, file)
        probabilities = predict_probabilities(run.model, batches, self.compute_logits)
        return class_table(probabilities, run.data_spec.classes, names)


class SourceTask(LabelTask[C, P]):
    """A task whose examples are generated, or come from a folder or an archive."""

    @abc.abstractmethod
    def config_of_file(self, config: C, file: Path) -> C:
        """Options that name a folder or an archive."""

    def baseline_config(self, config: C) -> C:
        """Options by which baselines read the training data: without random changes."""
        return config

    def load_source(self, run: Run, file: Path | None = None) -> Source[C, P]:
        """The examples of a run, checked to be unchanged, or those of another folder or archive."""
        if file is not None:
            source = self.load(self.config_of_file(run.config, file))
            ours, theirs = (p.kind for p in (run.data_spec, source.describe(run.config)))
            if ours != theirs:
                raise ValueError(
                    f"{file} holds {theirs}, and the run was trained on {ours}; give data of the "
                    "same data set."
                )
            return source
        source = self.load(run.config) if run.data is None else run.data
        if source.describe(run.config).checksum != run.data_spec.checksum:
            drawn = ", or this version of NumPy or of the library draws others"
            raise OptionError(
                f"the data of the run have changed since ({run.data_spec.dataset})"
                f"{'' if isinstance(source, TreeSource) else drawn}; give other data to test on.",
                "test_file",
            )
        return source

    def test_batches(self, run: Run, file: Path | None) -> training.BatchSource:
        """The run's own test data, or those of another folder or archive."""
        test = self.load_source(run, file).splits(run.config, run.data_spec).test
        assert test is not None
        return test

    def train_batches(self, run: Run) -> training.BatchSource:
        return self.load_source(run).splits(self.baseline_config(run.config), run.data_spec).train
