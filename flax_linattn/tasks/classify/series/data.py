"""The sequences of a classification run: read, completed, scaled, batched."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError, listed
from flax_linattn.data.outliers import find_outliers, find_still
from flax_linattn.tasks.classify.series.options import ClassifyConfig, ClassifyData
from flax_linattn.tasks.classify.series.problem import ClassifyProblem
from flax_linattn.tasks.files import checksum


def load_data(files: ClassifyData) -> tuple[data.TimeSeriesDataset, data.TimeSeriesDataset]:
    """The training and the test data of a run, on the same classes.

    Raises:
        ValueError: a damaged file, two that do not belong together, or a value beyond float32.
        FileNotFoundError: a file is missing.
    """
    if files.train_file is None or files.test_file is None:
        return data.japanese_vowels()
    train = data.load_dataset(files.train_file)
    test = data.load_dataset(files.test_file).with_classes(train.classes)
    if train.num_channels != test.num_channels:
        raise ValueError(
            f"{files.train_file} has {train.num_channels} channels and {files.test_file} "
            f"{test.num_channels}; give two files of one problem."
        )
    check_values(files.train_file, train)
    check_values(files.test_file, test)
    return train, test


def check_values(source: Path | str, dataset: data.TimeSeriesDataset) -> None:
    """Refuses values that float32 cannot hold.

    Args:
        source: of the sequences, for the message.
        dataset: the sequences.

    Raises:
        ValueError: there is one; names its place.
    """
    for index, values in enumerate(dataset.series):
        if (beyond := np.argwhere(np.abs(values) > _LARGEST)).size:
            step, channel = beyond[0].tolist()
            raise ValueError(
                f"{source}: expected values up to {_LARGEST:.2g}, the largest of float32, got "
                f"{values[step, channel]:g} for channel {dataset.channels[channel]} (sequence "
                f"{index}, step {step}, from 0); write ? if it stands for a missing value."
            )


_LARGEST = float(np.finfo(np.float32).max)


def notes(train: data.TimeSeriesDataset, test: data.TimeSeriesDataset) -> list[str]:
    """Missing values, channels that hardly change, values that flatten all others of theirs."""
    found = []
    missing = sum(int(np.isnan(x).sum()) for part in (train, test) for x in part.series)
    if missing:
        found.append(f"missing values, interpolated over time: {missing}")
    for what, part in (("to train", train), ("to test", test)):
        if few := _nearly_still(part):
            found.append(
                f"channels {what} of one value but for a few steps ({listed(few)}): {len(few)}"
            )
        if outliers := _outliers(part):
            found.append(
                f"values {what} so far out that they flatten all others of their channel: "
                f"{len(outliers)} ({listed(outliers, 3)}); write ? where one stands for a missing "
                "value"
            )
    return found


def _nearly_still(dataset: data.TimeSeriesDataset) -> list[str]:
    return [
        f"{dataset.channels[found.channel]} {found.value:g} but for {len(found.rows)}, the first "
        f"{_place(dataset, int(found.rows[0]), found.channel)}"
        for found in find_still(np.concatenate(dataset.series))
    ]


def _outliers(dataset: data.TimeSeriesDataset) -> list[str]:
    return [
        f"{dataset.channels[channel]} {_place(dataset, row, channel)}"
        for row, channel in find_outliers(np.concatenate(dataset.series)).tolist()
    ]


def _place(dataset: data.TimeSeriesDataset, row: int, channel: int) -> str:
    """A value, and where it stands, by its row in all sequences one behind the other."""
    ends = np.cumsum(dataset.lengths)
    sequence = int(np.searchsorted(ends, row, side="right"))
    step = row - int(ends[sequence] - dataset.lengths[sequence])
    return f"{dataset.series[sequence][step, channel]:g}, sequence {sequence}, step {step}, from 0"


def checksum_of(dataset: data.TimeSeriesDataset) -> str:
    """A checksum of the sequences and their classes."""
    return checksum([*dataset.series, dataset.labels])


def complete(dataset: data.TimeSeriesDataset) -> data.TimeSeriesDataset:
    """The data with missing values interpolated."""
    return dataclasses.replace(dataset, series=data.interpolate_missing(dataset.series))


def make_batches(
    dataset: data.TimeSeriesDataset,
    config: ClassifyConfig,
    problem: ClassifyProblem,
    *,
    seed: int | None,
    spans: int = 1,
) -> data.BucketBatches:
    """Batches whose length is a multiple of ``spans``, where the model allows it.

    Raises:
        ValueError: a sequence is longer than the model can take.
    """
    standardizer, scaling = problem.standardizer, config.data.scaling
    if scaling != "train":
        standardizer = data.Standardizer.fit(dataset.series)
    # Sequences of a file that came later may be longer.
    longest = max(problem.max_length, int(dataset.lengths.max()))
    if longest > problem.max_length and config.model.pooling == "flatten":
        raise OptionError(
            f"{dataset.name} has a sequence of {longest} steps; the flatten head of the run has "
            f"weights for {problem.max_length}: give shorter ones, or train with pooling mean.",
            "pooling",
        )
    lengths = [-(-length // spans) * spans for length in (*problem.lengths[:-1], longest)]
    series = standardizer.apply(dataset.series, dataset.channels)
    if scaling == "each-across-channels":
        series = tuple(_scale_across_channels(values) for values in series)
    values, mask = data.pad(series, lengths[-1])
    arrays = {"values": values, "mask": mask, "labels": dataset.labels}
    return data.BucketBatches(arrays, config.fit.batch_size, lengths=lengths, seed=seed)


def _scale_across_channels(values: NDArray) -> NDArray:
    """Centred over time, then each step scaled over its channels: x [T, C] -> [T, C]."""
    centred = values - values.mean(axis=0)
    return centred / np.sqrt(centred.var(axis=1, keepdims=True) + 1e-5)


def lengths_of(
    fitted: data.TimeSeriesDataset,
    train: data.TimeSeriesDataset,
    test: data.TimeSeriesDataset,
    buckets: int,
) -> tuple[int, ...]:
    """Lengths for equal shares of the sequences to train on, and that of the longest of all."""
    shares = np.linspace(0, 1, buckets + 1)[1:-1]
    longest = int(max(train.lengths.max(), test.lengths.max()))
    return (*np.ceil(np.quantile(fitted.lengths, shares)).astype(int).tolist(), longest)
