"""Sources of labeled examples: files or synthetic data, and their splits."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from flax_linattn import data, training
from flax_linattn.checks import OptionError, check_integers
from flax_linattn.data.batches.generated import ExampleGenerator
from flax_linattn.data.images import LabeledImages, load_images
from flax_linattn.data.labels import LabeledExamples
from flax_linattn.tasks.classify.label_options import LabelData
from flax_linattn.tasks.files import checksum
from flax_linattn.tasks.options import Config
from flax_linattn.tasks.spec import DataSpec

C = TypeVar("C", bound=Config)
P = TypeVar("P", bound="LabelSpec")
Examples = TypeVar("Examples", bound=LabeledExamples)

PATHFINDER_SIZE = 32
"""Default height and width of Pathfinder images, as in Long Range Arena."""
PATHFINDER_CLASSES = ("apart", "joined")
"""Classes of the Pathfinder labels 0 and 1: does a curve join the dots?"""
MAX_NAMED_CLASSES = 10
"""Maximum number of class names in a summary."""


class LabelSpec(DataSpec):
    """Metadata of labeled training data.

    Attributes:
        dataset: Name of the data set.
        classes: Names of the classes, in the order of the logits.
    """

    dataset: str
    classes: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Kind of the examples and their classes in words; other test data must have the same."""
        return f"examples of the classes {', '.join(self.classes)}"

    def check(self) -> None:
        """Checks the types of the fields, and that there is a class."""
        super().check()
        check_integers(1, num_classes=len(self.classes))


class Source(abc.ABC, Generic[C, P]):
    """The labeled examples of a run.

    Attributes:
        name: Name of the data set.
        classes: Names of the classes, in the order of the labels.
    """

    name: str
    classes: tuple[str, ...]

    @property
    def notes(self) -> Sequence[str]:
        """Warnings about the examples of the source."""
        return ()

    @abc.abstractmethod
    def describe(self, config: C) -> P:
        """Makes the data spec of a run; scales are fitted on the training part."""

    @abc.abstractmethod
    def about(self, config: C) -> str:
        """Describes sizes and classes in one or two lines."""

    @abc.abstractmethod
    def splits(self, config: C, data_spec: P, sequence_shards: int = 1) -> training.Splits:
        """Makes batches of all three splits; lengths are multiples of ``sequence_shards``."""


class FileSource(Source[C, P], Generic[C, P, Examples]):
    """Examples of files, with a part of the training data held out for validation.

    Attributes:
        fitted: Examples that the parameters are trained on.
        validation: Examples that select the parameters: a stratified part of the training data, or
            the test data.
        test: Test examples.
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
            rest, held_out = data.stratified_split(train.labels, fraction, seed)
            self.fitted, self.validation = train.subset(rest), train.subset(held_out)

    def splits(self, config: C, data_spec: P, sequence_shards: int = 1) -> training.Splits:
        """Makes batches: training examples are shuffled in each epoch, others keep their order."""
        return training.Splits(
            self.part_batches(self.fitted, config, data_spec, sequence_shards, training=True),
            self.part_batches(self.validation, config, data_spec, sequence_shards, training=False),
            self.part_batches(self.test, config, data_spec, sequence_shards, training=False),
        )

    @abc.abstractmethod
    def part_batches(
        self, part: Examples, config: C, data_spec: P, sequence_shards: int, *, training: bool
    ) -> training.BatchSource:
        """Makes batches of one part; training batches are shuffled and augmented."""


class TreeSource(FileSource[C, P, Examples]):
    """Images or texts of a folder or an archive, and their checksum."""

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
        """Describes the numbers of training, validation and test examples."""
        parts = (self.fitted, self.validation, self.test)
        train, validation, test = (f"{part.num_examples:,}" for part in parts)
        return f"{train}{unit} to train, {validation} to validate and {test} to test"


def about_classes(classes: Sequence[str]) -> str:
    """Describes the number of classes and their first names.

    Example:
        >>> about_classes(("cat", "dog"))
        '2 classes: cat, dog'
    """
    names = [*classes[:MAX_NAMED_CLASSES], "..."] if classes[MAX_NAMED_CLASSES:] else classes
    return f"{len(classes)} classes: {', '.join(names)}"


def generated_batches(
    task: ExampleGenerator, config: Config, size: int, stream: int
) -> data.GeneratedBatches:
    """Makes synthetic batches of ``size`` examples from a random stream of the run's seed.

    Stream 0, for training, has new examples in each epoch; other streams repeat theirs.
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
    """Makes synthetic splits: training examples are always new, others are always the same."""
    options: LabelData = config.data
    sizes = (options.epoch_size, options.validation_size, options.test_size)
    return training.Splits(
        *(generated_batches(task, config, size, stream) for stream, size in enumerate(sizes))
    )


def generated_checksum(splits: training.Splits) -> str:
    """Checksum of the first batch of each split."""
    firsts = [part.batch(0) for part in splits if part is not None]
    return checksum(batch[name] for batch in firsts for name in sorted(batch))


def describe_generated(name: str, options: LabelData, what: str) -> str:
    """Describes the sizes of synthetic data in one line, which ends with ``what`` they are."""
    return (
        f"{name}: synthetic, {options.epoch_size:,} new training examples per epoch, "
        f"{options.validation_size:,} to validate and {options.test_size:,} to test, {what}"
    )


def data_path(path: Path) -> Path:
    """Returns the path, or the only file of a folder, such as an archive of ``data fetch``."""
    if not path.is_dir():
        return path
    inside = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    return inside[0] if len(inside) == 1 and inside[0].is_file() else path


def read_images(path: Path, image_size: int) -> tuple[LabeledImages, LabeledImages]:
    """Reads training and test images, resized to ``image_size`` unless it is 0."""
    try:
        train, test = load_images(data_path(path), size=image_size or None)
    except OptionError as error:
        if "size" not in error.options:
            raise
        raise OptionError(str(error), "image_size") from error
    check_classes(path, train.classes)
    return train, test


def check_classes(path: Path, classes: Sequence[str]) -> None:
    """Raises ValueError for data with fewer than two classes."""
    if len(classes) < 2:
        raise ValueError(
            f"{path}: expected at least two classes, got {', '.join(classes)}; add a folder "
            "for each class."
        )


def images_checksum(*parts: LabeledImages) -> str:
    """Checksum of the pixels and labels of images."""
    return checksum(array for part in parts for array in (part.labels, part.pixels))
