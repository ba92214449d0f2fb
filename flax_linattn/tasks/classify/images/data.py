"""The images of a run: read or drawn, scaled, batched."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn import training
from flax_linattn.checks import OptionError
from flax_linattn.data.images import ImageBatches, LabelledImages, shift_and_flip
from flax_linattn.data.images.batches import Augmentation
from flax_linattn.data.sets.pathfinder import Pathfinder
from flax_linattn.tasks.classify.archives import read_images
from flax_linattn.tasks.classify.drawn import (
    PATHFINDER_CLASSES,
    PATHFINDER_SIZE,
    TEST,
    TRAIN,
    VALIDATION,
    drawn_batches,
)
from flax_linattn.tasks.classify.held_out import hold_out
from flax_linattn.tasks.classify.images.options import ImageConfig, ImageData
from flax_linattn.tasks.classify.images.problem import ImageProblem
from flax_linattn.tasks.files import checksum
from flax_linattn.tasks.run_types import Run

AUGMENTATIONS: dict[str, Augmentation | None] = {"none": None, "light": shift_and_flip}
SMALLEST_DEVIATION = 1e-3
"""Of a channel, from 0 to 1, so that one that is all of a colour is not divided by 0."""


class Images(abc.ABC):
    """Images with their classes.

    Attributes:
        name: of the data.
        classes: their names, in the order of the labels.
        notes: what deserves a second look.
    """

    name: str
    classes: tuple[str, ...]
    notes: Sequence[str] = ()

    @abc.abstractmethod
    def describe(self, config: ImageConfig) -> ImageProblem:
        """Names, sizes, scales."""

    @abc.abstractmethod
    def about(self, config: ImageConfig) -> str:
        """What there is, in a line or two."""

    @abc.abstractmethod
    def splits(self, config: ImageConfig, problem: ImageProblem) -> training.Splits:
        """Batches to train, validate and test on."""

    def check_same(self, run: Run, *, own: bool) -> None:
        """Refuses images that do not fit a run.

        Args:
            run: the run.
            own: whether they are to be those that it was trained on.

        Raises:
            ValueError: they have other classes or another shape, or its own have changed.
        """
        given, kept = self.describe(run.config), run.problem
        if own and given.checksum != kept.checksum:
            raise OptionError(
                f"the data of the run have changed since ({kept.dataset}); give other data to test "
                "on.",
                "test_file",
            )
        ours, theirs = _kind(kept), _kind(given)
        if ours != theirs:
            raise ValueError(
                f"{self.name} has {theirs}, and the run was trained on {ours}; give images of the "
                "same problem."
            )


def _kind(problem: ImageProblem) -> str:
    shape = " x ".join(map(str, problem.image_shape))
    return f"images of {shape} of the classes {', '.join(problem.classes)}"


class FileImages(Images):
    """Images of a folder or an archive.

    Args:
        options: of the data.
        folder: where they are.

    Raises:
        ValueError: a damaged file, or none of such a kind.
        FileNotFoundError: there is nothing.
    """

    def __init__(self, options: ImageData, folder: Path) -> None:
        train, test = read_images(folder, options.image_size)
        self.name, self.classes = folder.name.partition(".")[0], train.classes
        self.notes = tuple(dict.fromkeys((*train.notes, *test.notes)))
        self._checksum = checksum(
            array for part in (train, test) for array in (part.labels, part.pixels)
        )
        self.fitted, self.validation = hold_out(train, test, options)
        self.test = test

    @cached_property
    def _scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return _moments(self.fitted.pixels)

    def describe(self, config: ImageConfig) -> ImageProblem:
        """Scales are those of the training part."""
        mean, deviation = self._scale
        return ImageProblem(
            self.name, self.classes, self.test.image_shape, mean, deviation, self._checksum
        )

    def about(self, config: ImageConfig) -> str:
        """Sizes."""
        names = ", ".join(self.classes[:10]) + (", ..." if len(self.classes) > 10 else "")
        shape = " x ".join(map(str, self.test.image_shape))
        counts = [part.num_examples for part in (self.fitted, self.validation, self.test)]
        return (
            f"{self.name}: images of {shape}, {counts[0]:,} to train, {counts[1]:,} to validate "
            f"and {counts[2]:,} to test\n{len(self.classes)} classes: {names}"
        )

    def splits(self, config: ImageConfig, problem: ImageProblem) -> training.Splits:
        """Training images in an order, and with changes, of each epoch's own."""
        return training.Splits(
            self._batches(self.fitted, config, problem, training=True),
            self._batches(self.validation, config, problem),
            self._batches(self.test, config, problem),
        )

    def _batches(
        self,
        images: LabelledImages,
        config: ImageConfig,
        problem: ImageProblem,
        *,
        training: bool = False,
    ) -> ImageBatches:
        options = config.data
        return ImageBatches(
            images,
            config.fit.batch_size,
            augmentation=AUGMENTATIONS[options.augmentation] if training else None,
            seed=config.seed if training else None,
            mean=problem.mean,
            std=problem.deviation,
        )


class DrawnImages(Images):
    """Pathfinder, drawn: whether a dashed curve joins two dots.

    Args:
        options: of the data.
    """

    def __init__(self, options: ImageData) -> None:
        self.name, self.classes = "pathfinder", PATHFINDER_CLASSES
        self._task = _Pictures(Pathfinder(options.image_size or PATHFINDER_SIZE))

    def describe(self, config: ImageConfig) -> ImageProblem:
        """A checksum is that of the first batches."""
        drawn = [part.batch(0) for part in self._drawn(config, (0.0,), (1.0,)) if part is not None]
        size = self._task.task.size
        return ImageProblem(
            self.name,
            self.classes,
            (size, size, 1),
            *_moments(np.concatenate([batch["image"] for batch in drawn]), 1.0),
            checksum(batch[name] for batch in drawn for name in sorted(batch)),
        )

    def about(self, config: ImageConfig) -> str:
        """Sizes."""
        options, size = config.data, self._task.task.size
        return (
            f"{self.name}: drawn anew, {options.epoch_size:,} an epoch to train, "
            f"{options.validation_size:,} to validate and {options.test_size:,} to test, images of "
            f"{size} x {size} x 1, 2 classes: {', '.join(self.classes)}"
        )

    def splits(self, config: ImageConfig, problem: ImageProblem) -> training.Splits:
        """Training never sees an image twice; validation and test are always the same."""
        return self._drawn(config, problem.mean, problem.deviation)

    def _drawn(
        self, config: ImageConfig, mean: Sequence[float], deviation: Sequence[float]
    ) -> training.Splits:
        task = _Pictures(self._task.task, mean[0], deviation[0])
        options, size, seed = config.data, config.fit.batch_size, config.seed
        return training.Splits(
            drawn_batches(task, size, options.epoch_size, seed=seed, stream=TRAIN),
            drawn_batches(task, size, options.validation_size, seed=seed, stream=VALIDATION),
            drawn_batches(task, size, options.test_size, seed=seed, stream=TEST),
        )


class _Pictures:
    """Pathfinder's tokens as images, scaled."""

    def __init__(self, task: Pathfinder, mean: float = 0.0, deviation: float = 1.0) -> None:
        self.task, self._mean, self._deviation = task, mean, deviation

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        """Images and labels."""
        drawn = self.task.draw(rng, rows)
        size = self.task.size
        pixels = drawn["tokens"].reshape(rows, size, size, 1).astype(np.float32) / 255
        scaled = (pixels - np.float32(self._mean)) / np.float32(self._deviation)
        return {"image": scaled, "labels": drawn["labels"]}


def _moments(
    pixels: NDArray, largest: float = 255.0
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of values from 0 to 1."""
    axes = (0, 1, 2)
    mean = pixels.mean(axis=axes, dtype=np.float64) / largest
    square = np.mean(
        [np.square(part.astype(np.float64)).mean(axis=(0, 1)) for part in pixels], axis=0
    )
    deviation = np.sqrt(np.maximum(square / largest**2 - mean**2, 0))
    return tuple(mean.tolist()), tuple(np.maximum(deviation, SMALLEST_DEVIATION).tolist())


def load_images_of(options: ImageData) -> Images:
    """The images that options name.

    Raises:
        ValueError: a damaged file.
        FileNotFoundError: there is nothing.
    """
    if options.folder is None:
        return DrawnImages(options)
    return FileImages(options, options.folder)
