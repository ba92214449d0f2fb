"""Labeled examples of runs: files, generated data, and which of them select the parameters."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from flax_linattn import data, training
from flax_linattn.checks import OptionError, at_least
from flax_linattn.data.batches.generated import ExampleGenerator
from flax_linattn.data.images import LabelledImages, load_images
from flax_linattn.data.labels import LabelledExamples
from flax_linattn.tasks.classify.label_options import LabelData
from flax_linattn.tasks.files import checksum
from flax_linattn.tasks.options import Config
from flax_linattn.tasks.spec import DataSpec

C = TypeVar("C", bound=Config)
P = TypeVar("P", bound="LabelSpec")
Examples = TypeVar("Examples", bound=LabelledExamples)

PATHFINDER_SIZE = 32
"""Default side of Long Range Arena's images."""
PATHFINDER_CLASSES = ("apart", "joined")
"""Classes of its labels 0 and 1: whether a curve joins the dots."""
MAX_NAMED_CLASSES = 10
"""Class names that a summary lists."""


class LabelSpec(DataSpec):
    """What a run with labels remembers of its data.

    Attributes:
        dataset: name of the data set.
        classes: names of the classes, in the order of the logits.
    """

    dataset: str
    classes: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Kind of the examples, and their classes: those of other data that a model takes."""
        return f"examples of the classes {', '.join(self.classes)}"

    def check(self) -> None:
        """Types, and at least one class."""
        super().check()
        at_least(1, num_classes=len(self.classes))


class Source(abc.ABC, Generic[C, P]):
    """The labeled examples of a run.

    Attributes:
        name: name of the data set.
        classes: names of the classes, in the order of the labels.
    """

    name: str
    classes: tuple[str, ...]

    @property
    def notes(self) -> Sequence[str]:
        """Warnings about the examples of the source."""
        return ()

    @abc.abstractmethod
    def describe(self, config: C) -> P:
        """The data spec of a run; scales are those of the training part."""

    @abc.abstractmethod
    def about(self, config: C) -> str:
        """Sizes and classes, in a line or two."""

    @abc.abstractmethod
    def splits(self, config: C, data_spec: P, sequence_shards: int = 1) -> training.Splits:
        """Batches of lengths that are multiples of ``sequence_shards``, for all three splits."""


class FileSource(Source[C, P], Generic[C, P, Examples]):
    """Training and test examples of files, of which a part selects the parameters.

    Attributes:
        fitted: examples that the parameters learn from.
        validation: examples that select the parameters: a stratified part of the training data, or
            the test data.
        test: test examples.
    """

    def __init__(
        self,
        name: str,
        train: Examples,
        test: Examples,
        select_on: str,
        fraction: float,
        seed: int,
    ) -> None:
        self.name, self.classes = name, train.classes
        self.fitted: Examples = train
        self.validation: Examples = test
        self.test: Examples = test
        if select_on != "test":
            kept, held_out = data.stratified_split(train.labels, fraction, seed)
            self.fitted, self.validation = train.subset(kept), train.subset(held_out)

    def splits(self, config: C, data_spec: P, sequence_shards: int = 1) -> training.Splits:
        """Training examples in an order of each epoch's own; the others always alike."""
        return training.Splits(
            self.part_batches(self.fitted, config, data_spec, sequence_shards, training=True),
            self.part_batches(self.validation, config, data_spec, sequence_shards, training=False),
            self.part_batches(self.test, config, data_spec, sequence_shards, training=False),
        )

    @abc.abstractmethod
    def part_batches(
        self, part: Examples, config: C, data_spec: P, sequence_shards: int, *, training: bool
    ) -> training.BatchSource:
        """Batches of a part, those to train on with the random order and changes of options."""


class TreeSource(FileSource[C, P, Examples]):
    """Images or texts of a folder or an archive, and the checksum of all of them."""

    def __init__(self, name: str, train: Any, test: Any, options: LabelData, checksum: str) -> None:
        split = (options.select_on, options.validation_fraction, options.split_seed)
        super().__init__(name, train, test, *split)
        self._checksum = checksum
        self._notes = tuple(dict.fromkeys((*train.notes, *test.notes)))

    @property
    def notes(self) -> Sequence[str]:
        return self._notes

    def checksum(self, config: C) -> str:
        """Checksum of all examples and classes."""
        return self._checksum

    def counts(self, unit: str = "") -> str:
        """Numbers of examples to train, to validate and to test on, for people."""
        parts = (self.fitted, self.validation, self.test)
        train, validation, test = (f"{part.num_examples:,}" for part in parts)
        return f"{train}{unit} to train, {validation} to validate and {test} to test"


def about_classes(classes: Sequence[str]) -> str:
    """The number of classes and the first of their names.

    Example:
        >>> about_classes(("cat", "dog"))
        '2 classes: cat, dog'
    """
    names = [*classes[:MAX_NAMED_CLASSES], "..."] if classes[MAX_NAMED_CLASSES:] else classes
    return f"{len(classes)} classes: {', '.join(names)}"


def generated_batches(
    task: ExampleGenerator, config: Config, size: int, stream: int
) -> data.GeneratedBatches:
    """Generated batches of an epoch of ``size`` examples, from a random stream of the run's seed.

    Examples of stream 0, that of training, are new in each epoch; those of others stay the same.
    """
    rows, fixed = min(config.fit.batch_size, size), stream > 0
    return data.GeneratedBatches(
        task,
        rows,
        -(-size // rows),
        seed=config.seed,
        stream=stream,
        fixed=fixed,
        num_examples=size if fixed else None,
    )


def generated_splits(task: ExampleGenerator, config: Any) -> training.Splits:
    """Generated examples: training sees none twice; validation and test are always the same."""
    options: LabelData = config.data
    sizes = (options.epoch_size, options.validation_size, options.test_size)
    return training.Splits(
        *(generated_batches(task, config, size, stream) for stream, size in enumerate(sizes))
    )


def generated_checksum(splits: training.Splits) -> str:
    """A checksum of the first batch of each part."""
    firsts = [part.batch(0) for part in splits if part is not None]
    return checksum(batch[name] for batch in firsts for name in sorted(batch))


def describe_generated(name: str, options: LabelData, what: str) -> str:
    """Sizes of generated data in a line, which ends with ``what`` they are."""
    return (
        f"{name}: drawn anew, {options.epoch_size:,} an epoch to train, "
        f"{options.validation_size:,} to validate and {options.test_size:,} to test, {what}"
    )


def data_path(path: Path) -> Path:
    """The path, or the only file of a folder, as ``data fetch`` leaves an archive."""
    if not path.is_dir():
        return path
    inside = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    return inside[0] if len(inside) == 1 and inside[0].is_file() else path


def read_images(path: Path, image_size: int) -> tuple[LabelledImages, LabelledImages]:
    """Training and test images of two classes or more, of this height and width unless it is 0."""
    try:
        train, test = load_images(data_path(path), size=image_size or None)
    except OptionError as error:
        if "size" not in error.options:
            raise
        raise OptionError(str(error), "image_size") from error
    check_classes(path, train.classes)
    return train, test


def check_classes(path: Path, classes: Sequence[str]) -> None:
    """Refuses data with fewer than two classes."""
    if len(classes) < 2:
        raise ValueError(
            f"{path}: expected at least two classes to tell apart, got {', '.join(classes)}; add "
            "folders of others."
        )


def images_checksum(*parts: LabelledImages) -> str:
    """A checksum of the pixels and labels of images."""
    return checksum(array for part in parts for array in (part.labels, part.pixels))
