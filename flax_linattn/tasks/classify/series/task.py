"""The classification task, as the commands see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn import data, training
from flax_linattn.checks import OptionError
from flax_linattn.data.catalog import SEQUENCES, Entry
from flax_linattn.tasks.classify.figures import draw_confusion
from flax_linattn.tasks.classify.metrics import classifier_values
from flax_linattn.tasks.classify.series import evaluate
from flax_linattn.tasks.classify.series.data import (
    checksum_of,
    complete,
    lengths_of,
    load_data,
    make_batches,
    notes,
)
from flax_linattn.tasks.classify.series.model import (
    Classifier,
    build_classifier,
    classification_loss,
    logits_of,
)
from flax_linattn.tasks.classify.series.options import ClassifyConfig, tslib
from flax_linattn.tasks.classify.series.predict import predict
from flax_linattn.tasks.classify.series.problem import ClassifyProblem
from flax_linattn.tasks.classify.series.stream import ClassifyStream, ClassifyStreamOptions
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.predicted import Table
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.task import Report, Task


class Sequences(NamedTuple):
    """The data of a run.

    Attributes:
        files: the training and the test data, as they came.
        fitted: what the parameters learn from, without missing values.
        validation: what selects them.
        test: what they are tested on.
    """

    files: tuple[data.TimeSeriesDataset, data.TimeSeriesDataset]
    fitted: data.TimeSeriesDataset
    validation: data.TimeSeriesDataset
    test: data.TimeSeriesDataset


class ClassifyTask(Task[ClassifyConfig, Sequences, ClassifyProblem]):
    """Time-series classification."""

    name = "classify"
    Config = ClassifyConfig
    Problem = ClassifyProblem
    StreamOptions = ClassifyStreamOptions
    presets: ClassVar[Mapping[str, Any]] = {"tslib": tslib}
    kinds = (SEQUENCES,)

    def options_for(self, entry: Entry, files: Sequence[Path]) -> dict[str, Any]:
        """The two files."""
        return dict(zip(("train_file", "test_file"), files, strict=True))

    def check(self, config: ClassifyConfig, placement: training.Placement) -> None:
        """Sequences that are split over devices are padded for it."""
        if placement.spans > 1 and config.model.sees_padding:
            raise OptionError(
                "sequences are padded to be split over devices, which a circular embedding and an "
                'attention that sees the padding would notice; use embedding="causal" and '
                'padding="masked", or leave seq out of the mesh.',
                "embedding",
                "padding",
                "mesh",
            )

    def load(self, config: ClassifyConfig) -> Sequences:
        """The sequences, and which of them validate."""
        return self.parts(load_data(config.data), config)

    def parts(
        self,
        files: tuple[data.TimeSeriesDataset, data.TimeSeriesDataset],
        config: ClassifyConfig,
    ) -> Sequences:
        """The data of a run.

        Args:
            files: the training and the test data, on the same classes.
            config: the run's options.

        Raises:
            ValueError: the classes are too small for a part that validates.
        """
        train, test = map(complete, files)
        if config.data.select_on == "test":
            return Sequences(files, train, test, test)
        kept, held_out = data.stratified_split(
            train.labels, config.data.validation_fraction, config.seed
        )
        return Sequences(files, train.subset(kept), train.subset(held_out), test)

    def describe(self, data_: Sequences, config: ClassifyConfig) -> ClassifyProblem:
        """Names, lengths, scales."""
        train, test = data_.files
        return ClassifyProblem(
            dataset=train.name,
            channels=train.channels,
            classes=train.classes,
            lengths=lengths_of(data_.fitted, train, test, config.data.buckets),
            standardizer=data.Standardizer.fit(data_.fitted.series),
            checksum=dict(zip(("train", "test"), map(checksum_of, data_.files), strict=True)),
        )

    def about_data(self, data_: Sequences, config: ClassifyConfig) -> str:
        """Sizes and classes."""
        train, test = data_.files
        lengths = np.concatenate([train.lengths, test.lengths])
        names = ", ".join(train.classes[:10]) + (", ..." if len(train.classes) > 10 else "")
        return (
            f"{train.name}: {train.num_examples} sequences to train and {test.num_examples} to "
            f"test, {train.num_channels} channels, {lengths.min()} to {lengths.max()} steps\n"
            f"{len(train.classes)} classes: {names}"
        )

    def notes(self, data_: Sequences) -> Sequence[str]:
        """Missing values, outliers."""
        return notes(*data_.files)

    def batches(
        self, data_: Sequences, config: ClassifyConfig, problem: ClassifyProblem, spans: int
    ) -> training.Splits:
        """Sequences of one length a batch."""
        batches = partial(make_batches, config=config, problem=problem, spans=spans)
        return training.Splits(
            batches(data_.fitted, seed=config.seed),
            batches(data_.validation, seed=None),
            batches(data_.test, seed=None),
        )

    def model(
        self,
        config: ClassifyConfig,
        problem: ClassifyProblem,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> Classifier:
        """A ``models.SequenceClassifier``, or a ``models.PerceiverReader`` where latents read."""
        return build_classifier(config, problem, placement)

    def objective(
        self, config: ClassifyConfig, problem: ClassifyProblem, steps_per_epoch: int
    ) -> training.Objective:
        """Cross-entropy, RAdam."""
        # Time-Series-Library's early stopping watches the accuracy; on a small held-out share the
        # loss tells more.
        of_library = config.data.select_on == "test"
        return training.Objective(
            classification_loss,
            config.fit.make_optimizer(steps_per_epoch),
            monitor="accuracy" if of_library else "loss",
            mode="max" if of_library else "min",
        )

    def observation(self, problem: ClassifyProblem) -> jax.ShapeDtypeStruct:
        """Of all channels."""
        return jax.ShapeDtypeStruct((1, len(problem.channels)), jnp.float32)

    def test_batches(self, run: Run, file: Path | None) -> training.BatchSource:
        """Other sequences of the run's channels and classes."""
        test = complete(evaluate.load_test(run, file))
        return make_batches(test, run.config, run.problem, seed=None)

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Accuracy, figures of each class."""
        assert isinstance(batches, data.BucketBatches)
        tested = classifier_values(run.model, batches, logits_of, run.problem.classes)
        counts = np.array(tested["confusion"])
        values = {
            "dataset": run.problem.dataset,
            "mechanism": mechanism_name(run.config.layers),
            "selected_on": "TEST SET (as Time-Series-Library)"
            if run.config.data.select_on == "test"
            else "validation share of the training data",
            "num_test": int(counts.sum()),
            **tested,
        }
        draw = partial(draw_confusion, counts, run.problem.classes)
        return Report(
            values,
            tables=("classes",),
            figures={"confusion.png": draw},
            yardsticks=evaluate.YARDSTICKS,
        )

    def yardsticks(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Of the most frequent class, the nearest neighbour, a ridge."""
        assert isinstance(batches, data.BucketBatches)
        return evaluate.evaluate_yardsticks(run, batches)

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Of class probabilities, over all steps of all sequences."""
        return evaluate.stream_error(run.model, batches) if run.model.streams else {}

    def predict(self, run: Run, file: Path | None) -> Table:
        """The class of each sequence."""
        return predict(run, file)

    def stream(self, run: Run, options: ClassifyStreamOptions) -> ClassifyStream:
        """Class probabilities after each observation."""
        return ClassifyStream(run, sequence=options.sequence, max_length=options.max_length)
