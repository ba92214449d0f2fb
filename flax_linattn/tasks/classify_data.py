"""What a classifier sees of its data: their scale, their lengths, their batches."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.tasks.classify_config import ClassifyConfig
from flax_linattn.tasks.runs import checksum


@dataclasses.dataclass(frozen=True)
class ClassifyProblem:
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
    checksum: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def max_length(self) -> int:
        """The longest sequence of training and test data."""
        return self.lengths[-1]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            **dataclasses.asdict(self),
            "standardizer": json.loads(self.standardizer.to_json()),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ClassifyProblem:
        """Back from ``to_json``."""
        return cls(
            dataset=values["dataset"],
            channels=tuple(values["channels"]),
            classes=tuple(values["classes"]),
            lengths=tuple(values["lengths"]),
            standardizer=data.Standardizer.from_json(json.dumps(values["standardizer"])),
            checksum=values["checksum"],
        )


def load_data(config: ClassifyConfig) -> tuple[data.TimeSeriesDataset, data.TimeSeriesDataset]:
    """The training and the test data of a run, on the same classes.

    Raises:
        ValueError: a damaged file, or two that do not belong together.
        FileNotFoundError: a file is missing.
    """
    if config.train_file is None or config.test_file is None:
        return data.japanese_vowels()
    train = data.load_dataset(config.train_file)
    test = data.load_dataset(config.test_file).with_classes(train.classes)
    if train.num_channels != test.num_channels:
        raise ValueError(
            f"{config.train_file} has {train.num_channels} channels and {config.test_file} "
            f"{test.num_channels}; give two files of one problem."
        )
    return train, test


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
    standardizer = problem.standardizer
    if config.protocol == "tslib":
        standardizer = data.Standardizer.fit(dataset.series)
    # Sequences of a file that came later may be longer.
    longest = max(problem.max_length, int(dataset.lengths.max()))
    if longest > problem.max_length and config.resolve().pooling == "flatten":
        raise ValueError(
            f"{dataset.name} has a sequence of {longest} steps; the flatten head of the run has "
            f"weights for {problem.max_length}: give shorter ones, or train with --pooling mean."
        )
    lengths = [-(-length // spans) * spans for length in (*problem.lengths[:-1], longest)]
    series = standardizer.apply(dataset.series, dataset.channels)
    if config.protocol == "tslib" and dataset.name == "EthanolConcentration":
        series = tuple(_scale_across_channels(values) for values in series)
    values, mask = data.pad(series, lengths[-1])
    arrays = {"values": values, "mask": mask, "labels": dataset.labels}
    return data.BucketBatches(arrays, config.batch_size, lengths=lengths, seed=seed)


def _scale_across_channels(values: NDArray) -> NDArray:
    """Time-Series-Library's for one data set: centred over time, scaled over channels, [T, C]."""
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
