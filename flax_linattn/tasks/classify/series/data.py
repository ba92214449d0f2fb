"""The time series of a classification run: read, completed, scaled, batched."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn import data
from flax_linattn.checks import OptionError, at_least, check_same_length, itemize
from flax_linattn.data.series.outliers import find_outliers, find_still
from flax_linattn.tasks.classify.series.options import ClassifyConfig, ClassifyData
from flax_linattn.tasks.classify.sources import FileSource, LabelSpec, about_classes
from flax_linattn.tasks.files import checksum
from flax_linattn.tasks.run import explain_missing_data
from flax_linattn.tasks.spec import Run

MAX_SEQUENCE_LENGTH = 2**24
"""Steps of a sequence."""
MAX_VALUE = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class ClassifySpec(LabelSpec):
    """What the training data say: kept in the run folder so that a run needs no training data.

    Attributes:
        dataset: its name.
        channels: names of the observed channels.
        classes: names of the classes, in the order of the logits.
        lengths: lengths that sequences are padded to; the longest is that of all data.
        standardizer: mean and standard deviation a channel.
        checksum: of the training data ("train") and the test data ("test").
    """

    dataset: str
    channels: tuple[str, ...]
    classes: tuple[str, ...]
    lengths: tuple[int, ...]
    standardizer: data.Standardizer
    checksum: Mapping[str, str]
    scale_fields: ClassVar[tuple[str, ...]] = ("standardizer",)
    free_fields: ClassVar[tuple[str, ...]] = ("dataset", "lengths", "checksum")

    def continue_from(self, previous: Self, *, refit_scales: bool = False) -> Self:
        """With sequences as long as before, which the model takes."""
        spec = super().continue_from(previous, refit_scales=refit_scales)
        longest = max(self.max_length, previous.max_length)
        return dataclasses.replace(spec, lengths=tuple(sorted({*self.lengths, longest})))

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """The shape of one observation of all channels."""
        return jax.ShapeDtypeStruct((1, len(self.channels)), jnp.float32)

    @property
    def max_length(self) -> int:
        """The longest sequence of training and test data."""
        return self.lengths[-1]

    def check(self) -> None:
        """Types, sizes, and as many of each as there are channels."""
        super().check()
        at_least(1, num_lengths=len(self.lengths))
        for length in self.lengths:
            at_least(1, MAX_SEQUENCE_LENGTH, lengths=length)
        check_same_length(channels=self.channels, standardizer=self.standardizer.mean)


class SeriesSource(FileSource[ClassifyConfig, ClassifySpec, data.TimeSeriesDataset]):
    """Labeled time series, of which a stratified part is held out to select the parameters.

    Args:
        train: training series.
        test: test series, of the same classes.
        config: the run's options.

    Attributes:
        files: the training and the test series, as given; all others have no missing values.

    Raises:
        ValueError: the classes are too small for a part that validates.
    """

    def __init__(
        self, train: data.TimeSeriesDataset, test: data.TimeSeriesDataset, config: ClassifyConfig
    ) -> None:
        split = (config.data.select_on, config.data.validation_fraction, config.seed)
        super().__init__(train.name, complete(train), complete(test), *split)
        self.files = train, test

    @property
    def notes(self) -> list[str]:
        return find_notes(*self.files)

    def describe(self, config: ClassifyConfig) -> ClassifySpec:
        """Describes the names, lengths and scales of the data."""
        train, test = self.files
        longest = int(max(train.lengths.max(), test.lengths.max()))
        # Lengths for equal fractions of the training sequences.
        fractions = np.linspace(0, 1, config.data.buckets + 1)[1:-1]
        shorter = np.ceil(np.quantile(self.fitted.lengths, fractions)).astype(int).tolist()
        return ClassifySpec(
            dataset=train.name,
            channels=train.channels,
            classes=train.classes,
            lengths=(*shorter, longest),
            standardizer=data.Standardizer.fit(self.fitted.series),
            checksum={"train": compute_checksum(train), "test": compute_checksum(test)},
        )

    def about(self, config: ClassifyConfig) -> str:
        """Summarizes the sizes and the classes of the data."""
        train, test = self.files
        lengths = np.concatenate([train.lengths, test.lengths])
        return (
            f"{train.name}: {train.num_examples} sequences to train and {test.num_examples} to "
            f"test, {train.num_channels} channels, {lengths.min()} to {lengths.max()} steps\n"
            f"{about_classes(train.classes)}"
        )

    def part_batches(
        self,
        part: data.TimeSeriesDataset,
        config: ClassifyConfig,
        data_spec: ClassifySpec,
        sequence_shards: int,
        *,
        training: bool,
    ) -> data.BucketBatches:
        """Sequences of one length a batch."""
        seed = config.seed if training else None
        return make_batches(part, config, data_spec, seed=seed, sequence_shards=sequence_shards)


def load_data(files: ClassifyData) -> tuple[data.TimeSeriesDataset, data.TimeSeriesDataset]:
    """The training and the test data of a run, on the same classes."""
    if files.train_file is None or files.test_file is None:
        return data.japanese_vowels()
    train = data.load_dataset(files.train_file)
    test = data.load_dataset(files.test_file).with_classes(train.classes)
    if train.num_channels != test.num_channels:
        raise ValueError(
            f"{files.train_file} has {train.num_channels} channels and {files.test_file} "
            f"{test.num_channels}; give two files of one data set."
        )
    check_values(files.train_file, train)
    check_values(files.test_file, test)
    return train, test


def load_train(run: Run) -> data.TimeSeriesDataset:
    """A run's whole training data, unchanged, with the sequences that select its parameters."""
    if run.data is not None:
        train: data.TimeSeriesDataset = run.data.files[0]
        return train
    path = run.config.data.train_file
    train = data.japanese_vowels()[0] if path is None else data.load_dataset(path)
    train = train.with_classes(run.data_spec.classes)
    if compute_checksum(train) != run.data_spec.checksum.get("train"):
        raise ValueError(f"{train.name} ({path}) has changed since.")
    return train


def load_test(run: Run, test_file: Path | None = None) -> data.TimeSeriesDataset:
    """A run's unchanged test data, or those of another file, of the run's channels and classes."""
    path = run.config.data.test_file if test_file is None else test_file
    if path is None:
        test = data.japanese_vowels()[1]
    else:
        with explain_missing_data(test_file is None):
            test = data.load_dataset(path).with_classes(run.data_spec.classes)
    check_channels(run, test, "a file")
    if test_file is None and compute_checksum(test) != run.data_spec.checksum["test"]:
        raise OptionError(
            f"the data of the run have changed since ({test.name}, {test.num_examples} "
            "sequences); give other data to test on.",
            "test_file",
        )
    return test


def check_channels(run: Run, dataset: data.TimeSeriesDataset, what: str) -> None:
    """Refuses sequences with another number of channels than the run's."""
    if dataset.num_channels != len(run.data_spec.channels):
        raise ValueError(
            f"{dataset.name} has {dataset.num_channels} channels, the run was trained on "
            f"{len(run.data_spec.channels)}; give {what} of the same data set."
        )


def check_values(source: Path | str, dataset: data.TimeSeriesDataset) -> None:
    """Refuses values that float32 cannot hold, and names their place in the source."""
    for index, values in enumerate(dataset.series):
        if (beyond := np.argwhere(np.abs(values) > MAX_VALUE)).size:
            step, channel = beyond[0].tolist()
            raise ValueError(
                f"{source}: expected values up to {MAX_VALUE:.2g}, the largest of float32, got "
                f"{values[step, channel]:g} for channel {dataset.channels[channel]} (sequence "
                f"{index}, step {step}, from 0); write ? if it stands for a missing value."
            )


def find_notes(train: data.TimeSeriesDataset, test: data.TimeSeriesDataset) -> list[str]:
    """Missing values, channels that hardly change, values that flatten all others of theirs."""
    notes = []
    missing = sum(int(np.isnan(x).sum()) for part in (train, test) for x in part.series)
    if missing:
        notes.append(f"missing values, interpolated over time: {missing}")
    for what, part in (("to train", train), ("to test", test)):
        values, channels = np.concatenate(part.series), part.channels
        still = [
            f"{channels[found.channel]} {found.value:g} but for {len(found.rows)}, the first "
            f"{_place(part, int(found.rows[0]), found.channel)}"
            for found in find_still(values)
        ]
        if still:
            notes.append(
                f"channels {what} of one value but for a few steps ({itemize(still)}): {len(still)}"
            )
        outliers = [
            f"{channels[channel]} {_place(part, row, channel)}"
            for row, channel in find_outliers(values).tolist()
        ]
        if outliers:
            notes.append(
                f"values {what} so far out that they flatten all others of their channel: "
                f"{len(outliers)} ({itemize(outliers, 3)}); write ? where one stands for a missing "
                "value"
            )
    return notes


def _place(dataset: data.TimeSeriesDataset, row: int, channel: int) -> str:
    """A value and its place, by its row in the concatenated sequences."""
    ends = np.cumsum(dataset.lengths)
    sequence = int(np.searchsorted(ends, row, side="right"))
    step = row - int(ends[sequence] - dataset.lengths[sequence])
    return f"{dataset.series[sequence][step, channel]:g}, sequence {sequence}, step {step}, from 0"


def compute_checksum(dataset: data.TimeSeriesDataset) -> str:
    """A checksum of the sequences and their classes."""
    return checksum([*dataset.series, dataset.labels])


def complete(dataset: data.TimeSeriesDataset) -> data.TimeSeriesDataset:
    """The data with missing values interpolated."""
    return dataclasses.replace(dataset, series=data.interpolate_missing(dataset.series))


def make_batches(
    dataset: data.TimeSeriesDataset,
    config: ClassifyConfig,
    data_spec: ClassifySpec,
    *,
    seed: int | None,
    sequence_shards: int = 1,
) -> data.BucketBatches:
    """Batches whose length is a multiple of ``sequence_shards``, where the model allows it."""
    standardizer, scaling = data_spec.standardizer, config.data.scaling
    if scaling != "train":
        standardizer = data.Standardizer.fit(dataset.series)
    # Sequences of a file that came later may be longer.
    longest = max(data_spec.max_length, int(dataset.lengths.max()))
    if longest > data_spec.max_length and config.model.pooling == "flatten":
        raise OptionError(
            f"{dataset.name} has a sequence of {longest} steps; the flatten head of the run has "
            f"weights for {data_spec.max_length}: give shorter ones, or train with pooling mean.",
            "pooling",
        )
    lengths = [
        -(-length // sequence_shards) * sequence_shards
        for length in (*data_spec.lengths[:-1], longest)
    ]
    series = standardizer.apply(dataset.series, dataset.channels)
    if scaling == "each-across-channels":
        centered = [values - values.mean(axis=0) for values in series]
        series = tuple(x / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) for x in centered)
    values, mask = data.pad(series, lengths[-1])
    arrays = {"values": values, "mask": mask, "labels": dataset.labels}
    return data.BucketBatches(arrays, config.fit.batch_size, lengths=lengths, seed=seed)
