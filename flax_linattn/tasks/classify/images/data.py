"""The images of a run: read or generated, scaled, batched."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flax_linattn import training
from flax_linattn.checks import at_least, positive, same_number
from flax_linattn.data.class_folders import about_others
from flax_linattn.data.file_tree import FileTree
from flax_linattn.data.images import ImageBatches, LabelledImages, shift_and_flip
from flax_linattn.data.images.batches import Augmentation
from flax_linattn.data.images.decode import decode_images, is_image
from flax_linattn.data.sets.pathfinder import Pathfinder
from flax_linattn.tasks.classify.images.options import ImageConfig, ImageData
from flax_linattn.tasks.classify.sources import (
    PATHFINDER_CLASSES,
    PATHFINDER_SIZE,
    LabelSpec,
    Source,
    TreeSource,
    about_classes,
    about_drawn,
    drawn_checksum,
    drawn_splits,
    images_checksum,
    read_images,
)
from flax_linattn.tasks.spec import Run

AUGMENTATIONS: dict[str, Augmentation | None] = {"none": None, "light": shift_and_flip}
MIN_STD = 1e-3
"""Of a channel, from 0 to 1, so that one that is all of a color is not divided by 0."""


@dataclasses.dataclass(frozen=True)
class ImageSpec(LabelSpec):
    """What the training data say; kept in the run folder.

    Attributes:
        dataset: its name.
        classes: names of the classes, in the order of the logits.
        image_shape: height, width, channels.
        mean: of each channel, of values from 0 to 1.
        deviation: of each channel.
        checksum: of the data.
    """

    dataset: str
    classes: tuple[str, ...]
    image_shape: tuple[int, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    checksum: str
    scale_fields: ClassVar[tuple[str, ...]] = ("mean", "deviation")

    @property
    def kind(self) -> str:
        """The shape and the classes."""
        return f"images of {_by(self.image_shape)} of the classes {', '.join(self.classes)}"

    def check(self) -> None:
        """Types and sizes."""
        super().check()
        if len(self.image_shape) != 3:
            raise ValueError(
                f"expected image_shape as height, width and channels, got {self.image_shape}."
            )
        for size in self.image_shape:
            at_least(1, 2**16, image_shape=size)
        same_number(channels=range(self.image_shape[2]), mean=self.mean, deviation=self.deviation)
        for value in self.deviation:
            positive(deviation=value)


class FileImages(TreeSource[ImageConfig, ImageSpec, LabelledImages]):
    """Images of a folder or an archive."""

    def __init__(self, options: ImageData, folder: Path) -> None:
        train, test = read_images(folder, options.image_size)
        name, checksum = folder.name.partition(".")[0], images_checksum(train, test)
        super().__init__(name, train, test, options, checksum)

    @cached_property
    def _scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return _moments(self.fitted.pixels)

    def describe(self, config: ImageConfig) -> ImageSpec:
        """Scales are those of the training part."""
        mean, deviation = self._scale
        return ImageSpec(
            self.name, self.classes, self.test.image_shape, mean, deviation, self._checksum
        )

    def about(self, config: ImageConfig) -> str:
        size = _by(self.test.image_shape)
        return f"{self.name}: images of {size}, {self.counts()}\n{about_classes(self.classes)}"

    def part_batches(
        self,
        part: LabelledImages,
        config: ImageConfig,
        problem: ImageSpec,
        spans: int,
        *,
        training: bool,
    ) -> ImageBatches:
        """Scaled images; those to train on with random changes."""
        if not training:
            return image_batches(part, config, problem)
        augmentation = AUGMENTATIONS[config.data.augmentation]
        return image_batches(part, config, problem, augmentation, config.seed)


def image_batches(
    images: LabelledImages,
    config: ImageConfig,
    problem: ImageSpec,
    augmentation: Augmentation | None = None,
    seed: int | None = None,
) -> ImageBatches:
    """Batches of scaled images, in their order unless a seed is given."""
    return ImageBatches(
        images,
        config.fit.batch_size,
        augmentation=augmentation,
        seed=seed,
        mean=problem.mean,
        std=problem.deviation,
    )


class DrawnImages(Source[ImageConfig, ImageSpec]):
    """Pathfinder, generated: whether a dashed curve joins two dots."""

    def __init__(self, options: ImageData) -> None:
        self.name, self.classes = "pathfinder", PATHFINDER_CLASSES
        self._task = Pathfinder(options.image_size or PATHFINDER_SIZE)

    def describe(self, config: ImageConfig) -> ImageSpec:
        """A checksum is that of the first batches."""
        unscaled = drawn_splits(_ScaledPathfinder(self._task, 0.0, 1.0), config)
        images = [part.batch(0)["image"] for part in unscaled if part is not None]
        size = self._task.size
        return ImageSpec(
            self.name,
            self.classes,
            (size, size, 1),
            *_moments(np.concatenate(images), 1.0),
            drawn_checksum(unscaled),
        )

    def about(self, config: ImageConfig) -> str:
        size = self._task.size
        what = f"images of {size} x {size} x 1, {about_classes(self.classes)}"
        return about_drawn(self.name, config.data, what)

    def splits(self, config: ImageConfig, problem: ImageSpec, spans: int = 1) -> training.Splits:
        task = _ScaledPathfinder(self._task, problem.mean[0], problem.deviation[0])
        return drawn_splits(task, config)


class _ScaledPathfinder:
    """Pathfinder's tokens as scaled images."""

    def __init__(self, task: Pathfinder, mean: float, std: float) -> None:
        self._task, self._mean, self._std = task, mean, std

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        """Images and labels."""
        drawn, size = self._task.draw(rng, rows), self._task.size
        pixels = drawn["tokens"].reshape(rows, size, size, 1).astype(np.float32) / 255
        scaled = (pixels - np.float32(self._mean)) / np.float32(self._std)
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
    std = np.sqrt(np.maximum(square / largest**2 - mean**2, 0))
    return tuple(mean.tolist()), tuple(np.maximum(std, MIN_STD).tolist())


def image_names(file: Path) -> list[str]:
    """Names of the images of a folder or an archive, at any depth, or of a single image."""
    if file.is_file() and is_image(file.name):
        return [file.name]
    tree = FileTree(file)
    names = sorted(name for name in tree.sizes if is_image(name))
    for note in about_others(tree, len(names), "images") if names else ():
        print(f"note: {note}", file=sys.stderr)
    return names


def read_unlabeled(run: Run, file: Path, names: Sequence[str]) -> LabelledImages:
    """Images of these names to predict, of the run's size where it has one; their labels are 0."""
    tree = FileTree(file.parent if file.is_file() and is_image(file.name) else file)
    shape = run.problem.image_shape
    size = run.config.data.image_size or None
    pixels, _ = decode_images(tree, names, size, mode="L" if shape[2] == 1 else "RGB")
    if pixels.shape[1:] != shape:
        raise ValueError(
            f"{file}: expected images of {_by(shape)}, as the run was trained on, got "
            f"{_by(pixels.shape[1:])}; bring them to that size."
        )
    labels = np.zeros(len(names), np.int32)
    return LabelledImages(tree.name, run.problem.classes, labels, pixels)


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
