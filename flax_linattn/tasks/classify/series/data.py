"""Time series of classification runs: reading, interpolation, scaling and batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn import data
from flax_linattn.checks import (
    OptionError,
    check_integers,
    check_same_length,
    format_count,
    itemize,
)
from flax_linattn.data.series.outliers import find_outliers, find_still
from flax_linattn.tasks.classify.series.options import ClassifyConfig, ClassifyData
from flax_linattn.tasks.classify.sources import FileSource, LabelSpec, about_classes
from flax_linattn.tasks.files import checksum
from flax_linattn.tasks.run import explain_missing_data
from flax_linattn.tasks.spec import Run, omit_if_empty

MAX_SEQUENCE_LENGTH = 2**24
"""Maximum number of steps of a sequence."""
MAX_VALUE = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class ClassifySpec(LabelSpec):
    """Metadata of the training data, saved in the run folder; a run needs no training data.

    Attributes:
        dataset: Name of the data set.
        channels: Names of the observed channels.
        classes: Names of the classes, in the order of the logits.
        lengths: Lengths that sequences are padded to; the last is the maximum length of all data.
        standardizer: Mean and standard deviation of each channel.
        checksum: Checksums of the training data ("train") and the test data ("test").
        series_length: Length of the longest training sequence; 0 in runs of older versions.
    """

    dataset: str
    channels: tuple[str, ...]
    classes: tuple[str, ...]
    lengths: tuple[int, ...]
    standardizer: data.Standardizer
    checksum: Mapping[str, str]
    series_length: int = omit_if_empty(0, compare=False)
    scale_fields: ClassVar[tuple[str, ...]] = ("standardizer",)
    free_fields: ClassVar[tuple[str, ...]] = ("dataset", "lengths", "checksum", "series_length")

    def continue_from(self, previous: Self, *, refit_scales: bool = False) -> Self:
        """Makes the spec for a continued run, whose maximum length does not decrease."""
        spec = super().continue_from(previous, refit_scales=refit_scales)
        longest = max(self.max_length, previous.max_length)
        lengths = tuple(sorted({*self.lengths, longest}))
        return dataclasses.replace(spec, lengths=lengths)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one observation of all channels."""
        return jax.ShapeDtypeStruct((1, len(self.channels)), jnp.float32)

    @property
    def max_length(self) -> int:
        """Length of the longest training or test sequence."""
        return self.lengths[-1]

    def check(self) -> None:
        """Checks the types and sizes of the fields."""
        super().check()
        check_integers(1, num_lengths=len(self.lengths))
        for length in self.lengths:
            check_integers(1, MAX_SEQUENCE_LENGTH, lengths=length)
        check_same_length(channels=self.channels, standardizer=self.standardizer.mean)


class SeriesSource(FileSource[ClassifyConfig, ClassifySpec, data.TimeSeriesDataset]):
    """Labeled time series, with a stratified part of the training series held out.

    Args:
        train: Training series.
        test: Test series with the same classes.
        config: Options of the run.

    Attributes:
        files: Training and test series as given; other series have missing values interpolated.

    Raises:
        ValueError: If the classes are too small for a validation part.
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
        """Makes the data spec: names, lengths and scales."""
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
            series_length=int(train.lengths.max()),
        )

    def about(self, config: ClassifyConfig) -> str:
        """Summarizes the sizes and the classes of the data."""
        train, test = self.files
        lengths = np.concatenate([train.lengths, test.lengths])
        return (
            f"{train.name}: {format_count(train.num_examples, 'sequence')} to train and "
            f"{test.num_examples:,} to test, {format_count(train.num_channels, 'channel')}, "
            f"{lengths.min()} to {format_count(lengths.max(), 'step')}\n"
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
        """Makes batches, each of sequences padded to one length."""
        seed = config.seed if training else None
        batches = make_batches(part, config, data_spec, seed=seed, sequence_shards=sequence_shards)
        if training and config.fit.class_weights != "none":
            batches.arrays["class_weight"] = config.fit.example_weights(part.labels)
        return batches


def load_data(files: ClassifyData) -> tuple[data.TimeSeriesDataset, data.TimeSeriesDataset]:
    """Loads the training and test data of a run, with the same classes."""
    if files.train_file is None or files.test_file is None:
        return data.japanese_vowels()
    train = data.load_dataset(files.train_file)
    test = data.load_dataset(files.test_file).with_classes(train.classes, files.test_file)
    if train.num_channels != test.num_channels:
        raise ValueError(
            f"expected files with the same channels, got {train.num_channels} channels in "
            f"{files.train_file} and {test.num_channels} in {files.test_file}."
        )
    if len(labels := np.unique(train.labels)) < 2:
        raise OptionError(
            f"{files.train_file}: expected sequences of at least two classes, got 1 class: "
            f"{train.classes[labels[0]]!r}; add sequences of another class.",
            "train_file",
        )
    check_values(files.train_file, train)
    check_values(files.test_file, test)
    return train, test


def load_train(run: Run) -> data.TimeSeriesDataset:
    """Loads the unchanged training data of a run, including its validation sequences."""
    if run.data is not None:
        train: data.TimeSeriesDataset = run.data.files[0]
        return train
    path = run.config.data.train_file
    train = data.japanese_vowels()[0] if path is None else data.load_dataset(path)
    train = train.with_classes(run.data_spec.classes, path)
    if compute_checksum(train) != run.data_spec.checksum.get("train"):
        raise ValueError(
            f"{train.name} ({path}) has changed since the run was trained; restore the file."
        )
    return train


def load_test(run: Run, test_file: Path | None = None) -> data.TimeSeriesDataset:
    """Loads the unchanged test data of a run, or another file with the same classes."""
    path = run.config.data.test_file if test_file is None else test_file
    if path is None:
        test = data.japanese_vowels()[1]
    else:
        with explain_missing_data(test_file is None):
            test = data.load_dataset(path).with_classes(run.data_spec.classes, path)
        check_values(path, test)
    check_channels(run, test)
    if test_file is None and compute_checksum(test) != run.data_spec.checksum["test"]:
        raise OptionError(
            f"the test data of the run ({test.name}, {test.num_examples} sequences) have changed "
            "since training; restore them, or pass other test data.",
            "test_file",
        )
    return test


def check_channels(run: Run, dataset: data.TimeSeriesDataset) -> None:
    """Raises ValueError for sequences with another number of channels than the run."""
    if dataset.num_channels != len(run.data_spec.channels):
        raise ValueError(
            f"expected sequences of {len(run.data_spec.channels)} channels, as in training, got "
            f"{dataset.num_channels} in {dataset.name}; pass data of the same data set."
        )


def check_values(source: Path | str, dataset: data.TimeSeriesDataset) -> None:
    """Raises ValueError for values beyond float32 or channels without any, and names the place."""
    for index, values in enumerate(dataset.series):
        if (empty := np.flatnonzero(np.isnan(values).all(axis=0))).size:
            raise ValueError(
                f"{source}: channel {dataset.channels[empty[0]]} of sequence {index} (counted from "
                "0) has no values; expected at least one. Remove the sequence or the channel."
            )
        if (beyond := np.argwhere(np.abs(values) > MAX_VALUE)).size:
            step, channel = beyond[0].tolist()
            raise ValueError(
                f"{source}: expected values up to {MAX_VALUE:.2g}, the largest of float32, got "
                f"{values[step, channel]:g} for channel {dataset.channels[channel]} (sequence "
                f"{index}, step {step}, from 0); write ? if it stands for a missing value."
            )


def find_notes(train: data.TimeSeriesDataset, test: data.TimeSeriesDataset) -> list[str]:
    """Notes on rare classes, missing values, channels that hardly or never change, and outliers."""
    notes = []
    counts = np.bincount(train.labels, minlength=len(train.classes))
    for count, what in ((0, "no training sequence, never predicted"), (1, "one training sequence")):
        if rare := [name for name, own in zip(train.classes, counts, strict=True) if own == count]:
            notes.append(f"classes with {what}: {itemize(rare)}")
    missing = sum(int(np.isnan(x).sum()) for part in (train, test) for x in part.series)
    if missing:
        notes.append(f"missing values, interpolated over time: {missing}")
    for what, part in (("to train", train), ("to test", test)):
        values, channels = np.concatenate(part.series), part.channels
        is_flat = np.nanmin(values, axis=0) == np.nanmax(values, axis=0)
        if part is train and is_flat.any():
            flat = [channels[channel] for channel in np.flatnonzero(is_flat)]
            notes.append(f"channels with a single value in the training data: {itemize(flat)}")
        still = [
            f"{channels[run.channel]} {run.value:g} except "
            f"{format_count(len(run.rows), 'step')}, the first "
            f"{_place(part, int(run.rows[0]), run.channel)}"
            for run in find_still(values)
        ]
        if still:
            notes.append(
                f"channels {what} with one value at nearly all steps ({itemize(still)}): "
                f"{len(still)}"
            )
        outliers = [
            f"{channels[channel]} {_place(part, row, channel)}"
            for row, channel in find_outliers(values).tolist()
        ]
        if outliers:
            notes.append(
                f"values {what} so extreme that they flatten the rest of their channel: "
                f"{len(outliers)} ({itemize(outliers, 3)}); write ? if one stands for a missing "
                "value"
            )
    return notes


def _place(dataset: data.TimeSeriesDataset, row: int, channel: int) -> str:
    """Describes a value and its place, by its row in the concatenated sequences."""
    ends = np.cumsum(dataset.lengths)
    sequence = int(np.searchsorted(ends, row, side="right"))
    step = row - int(ends[sequence] - dataset.lengths[sequence])
    return f"{dataset.series[sequence][step, channel]:g}, sequence {sequence}, step {step}, from 0"


def compute_checksum(dataset: data.TimeSeriesDataset) -> str:
    """Checksum of the sequences and their labels."""
    return checksum([*dataset.series, dataset.labels])


def complete(dataset: data.TimeSeriesDataset) -> data.TimeSeriesDataset:
    """Interpolates missing values over time."""
    return dataclasses.replace(dataset, series=data.interpolate_missing(dataset.series))


def make_batches(
    dataset: data.TimeSeriesDataset,
    config: ClassifyConfig,
    data_spec: ClassifySpec,
    *,
    seed: int | None,
    sequence_shards: int = 1,
) -> data.BucketBatches:
    """Makes batches of scaled sequences, padded to multiples of ``sequence_shards``."""
    standardizer, scaling = data_spec.standardizer, config.data.scaling
    if scaling != "train":
        standardizer = data.Standardizer.fit(dataset.series)
    # Another test file may have longer sequences.
    longest = max(data_spec.max_length, int(dataset.lengths.max()))
    if longest > data_spec.max_length and config.model.pooling == "flatten":
        raise OptionError(
            f"{dataset.name} has a sequence of {longest} steps, but the flatten head has "
            f"weights for {data_spec.max_length}; pass shorter sequences, or train with "
            "pooling='mean'.",
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
