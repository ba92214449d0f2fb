"""The task of classifying images: options, data and model."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import models, training
from flax_linattn.checks import OptionError, check_integers, check_positive, check_same_length
from flax_linattn.data.files.class_folders import about_others
from flax_linattn.data.files.file_tree import FileTree
from flax_linattn.data.generators.pathfinder import Pathfinder
from flax_linattn.data.images import ImageBatches, LabeledImages, shift_and_flip
from flax_linattn.data.images.batches import Augmentation
from flax_linattn.data.images.decode import decode_images, is_image
from flax_linattn.data.sets.catalog import IMAGES, Entry
from flax_linattn.tasks.classify.baselines import Vectors, read_vectors
from flax_linattn.tasks.classify.image_options import (
    ImageConfig,
    ImageData,
    ImageOptions,
    ImageStreamOptions,
)
from flax_linattn.tasks.classify.label_task import SourceTask
from flax_linattn.tasks.classify.sources import (
    PATHFINDER_CLASSES,
    PATHFINDER_SIZE,
    LabelSpec,
    Source,
    TreeSource,
    about_classes,
    describe_generated,
    generated_checksum,
    generated_splits,
    images_checksum,
    read_images,
)
from flax_linattn.tasks.spec import Run
from flax_linattn.typing import Array

AUGMENTATIONS: dict[str, Augmentation | None] = {"none": None, "light": shift_and_flip}
MIN_STD = 1e-3
"""Minimum standard deviation of a channel of values from 0 to 1, for images of one color."""


@dataclasses.dataclass(frozen=True)
class ImageSpec(LabelSpec):
    """Metadata of the training images, saved in the run folder.

    Attributes:
        dataset: Name of the data set.
        classes: Names of the classes, in the order of the logits.
        image_shape: Height, width and channels.
        mean: Mean of each channel, for values from 0 to 1.
        std: Standard deviation of each channel.
        checksum: Checksum of the data.
    """

    dataset: str
    classes: tuple[str, ...]
    image_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    checksum: str
    scale_fields: ClassVar[tuple[str, ...]] = ("mean", "std")

    @property
    def kind(self) -> str:
        """The image shape and the classes, in words."""
        return f"images of {_by(self.image_shape)} of the classes {', '.join(self.classes)}"

    def check(self) -> None:
        """Checks the types and the sizes of the fields."""
        super().check()
        if len(self.image_shape) != 3:
            raise ValueError(
                f"image_shape must be height, width and channels, got {self.image_shape}."
            )
        for size in self.image_shape:
            check_integers(1, 2**16, image_shape=size)
        check_same_length(channels=range(self.image_shape[2]), mean=self.mean, std=self.std)
        for value in self.std:
            check_positive(std=value)


class FileImages(TreeSource[ImageConfig, ImageSpec, LabeledImages]):
    """Images of a folder or an archive."""

    def __init__(self, options: ImageData, folder: Path) -> None:
        train, test = read_images(folder, options.image_size)
        name, checksum = folder.name.partition(".")[0], images_checksum(train, test)
        super().__init__(name, train, test, options, checksum)

    @cached_property
    def _scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return _moments(self.fitted.pixels)

    def describe(self, config: ImageConfig) -> ImageSpec:
        """Makes the data spec, with mean and standard deviation of the training images."""
        mean, std = self._scale
        return ImageSpec(self.name, self.classes, self.test.image_shape, mean, std, self._checksum)

    def about(self, config: ImageConfig) -> str:
        size = _by(self.test.image_shape)
        return f"{self.name}: images of {size}, {self.counts()}\n{about_classes(self.classes)}"

    def part_batches(
        self,
        part: LabeledImages,
        config: ImageConfig,
        data_spec: ImageSpec,
        sequence_shards: int,
        *,
        training: bool,
    ) -> ImageBatches:
        """Makes batches of scaled images, with augmentation for training."""
        if not training:
            return image_batches(part, config, data_spec)
        augmentation = AUGMENTATIONS[config.data.augmentation]
        return image_batches(part, config, data_spec, augmentation, config.seed)


def image_batches(
    images: LabeledImages,
    config: ImageConfig,
    data_spec: ImageSpec,
    augmentation: Augmentation | None = None,
    seed: int | None = None,
) -> ImageBatches:
    """Makes batches of scaled images, shuffled if there is a seed."""
    return ImageBatches(
        images,
        config.fit.batch_size,
        augmentation=augmentation,
        seed=seed,
        mean=data_spec.mean,
        std=data_spec.std,
    )


class GeneratedImages(Source[ImageConfig, ImageSpec]):
    """Synthetic Pathfinder images: does a dashed curve join two dots?"""

    def __init__(self, options: ImageData) -> None:
        self.name, self.classes = "pathfinder", PATHFINDER_CLASSES
        self._task = Pathfinder(options.image_size or PATHFINDER_SIZE)

    def describe(self, config: ImageConfig) -> ImageSpec:
        """Makes the data spec from the first batch of each part."""
        unscaled = generated_splits(_ScaledPathfinder(self._task, 0.0, 1.0), config)
        images = [part.batch(0)["image"] for part in unscaled if part is not None]
        size = self._task.size
        return ImageSpec(
            self.name,
            self.classes,
            (size, size, 1),
            *_moments(np.concatenate(images), 1.0),
            generated_checksum(unscaled),
        )

    def about(self, config: ImageConfig) -> str:
        size = self._task.size
        what = f"images of {size} x {size} x 1, {about_classes(self.classes)}"
        return describe_generated(self.name, config.data, what)

    def splits(
        self, config: ImageConfig, data_spec: ImageSpec, sequence_shards: int = 1
    ) -> training.Splits:
        task = _ScaledPathfinder(self._task, data_spec.mean[0], data_spec.std[0])
        return generated_splits(task, config)


class _ScaledPathfinder:
    """Pathfinder's tokens as scaled images."""

    def __init__(self, task: Pathfinder, mean: float, std: float) -> None:
        self._task, self._mean, self._std = task, mean, std

    def sample(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        """Samples a batch of scaled images and labels."""
        batch, size = self._task.sample(rng, rows), self._task.size
        pixels = batch["tokens"].reshape(rows, size, size, 1).astype(np.float32) / 255
        scaled = (pixels - np.float32(self._mean)) / np.float32(self._std)
        return {"image": scaled, "labels": batch["labels"]}


def _moments(
    pixels: NDArray, max_value: float = 255.0
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, for values from 0 to 1."""
    axes = (0, 1, 2)
    mean = pixels.mean(axis=axes, dtype=np.float64) / max_value
    square = np.mean(
        [np.square(part.astype(np.float64)).mean(axis=(0, 1)) for part in pixels], axis=0
    )
    std = np.sqrt(np.maximum(square / max_value**2 - mean**2, 0))
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


def read_unlabeled(run: Run, file: Path, names: Sequence[str]) -> LabeledImages:
    """Reads images to predict, resized if the run has an image size; labels are 0."""
    tree = FileTree(file.parent if file.is_file() and is_image(file.name) else file)
    shape = run.data_spec.image_shape
    size = run.config.data.image_size or None
    pixels, _ = decode_images(tree, names, size, mode="L" if shape[2] == 1 else "RGB")
    if pixels.shape[1:] != shape:
        raise ValueError(
            f"{file}: expected images of {_by(shape)}, as in training, got "
            f"{_by(pixels.shape[1:])}; resize them."
        )
    labels = np.zeros(len(names), np.int32)
    return LabeledImages(tree.name, run.data_spec.classes, labels, pixels)


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


class ImageTask(ImageOptions, SourceTask[ImageConfig, ImageSpec]):
    """The task of classifying images."""

    DataSpec = ImageSpec
    splits_time = False
    kinds = (IMAGES,)

    def options_for(self, entry: Entry, files: Sequence[Path]) -> dict[str, Any]:
        """Returns the folder of the files as an option."""
        (folder,) = {file.parent for file in files}
        return {"folder": folder}

    def load(self, config: ImageConfig) -> GeneratedImages | FileImages:
        """Reads images from files, or generates them."""
        options = config.data
        return (
            GeneratedImages(options)
            if options.folder is None
            else FileImages(options, options.folder)
        )

    def with_file(self, config: ImageConfig, file: Path) -> ImageConfig:
        """Returns the options with another folder or archive of images."""
        return config.replace(folder=file)

    def baseline_config(self, config: ImageConfig) -> ImageConfig:
        """Returns the options without augmentation."""
        return config if config.data.folder is None else config.replace(augmentation="none")

    def model(
        self,
        config: ImageConfig,
        data_spec: ImageSpec,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> models.ImageClassifier:
        """Builds a new ``models.ImageClassifier`` for a run."""
        options = config.model
        height, width, channels = data_spec.image_shape
        return models.ImageClassifier(
            (height, width),
            options.patch_size,
            len(data_spec.classes),
            in_channels=channels,
            embedding=options.patches,
            position=options.position,
            pooling=options.pooling,
            layers=config.layers.map_mechanisms(placement.mechanism),
            rngs=nnx.Rngs(config.seed),
        )

    @staticmethod
    def compute_logits(model: Any, batch: dict[str, Array], dropout_key: Array | None) -> Array:
        """Logits of a batch of scaled images."""
        logits: Array = model(batch["image"], dropout_key=dropout_key)
        return logits

    def vectors(self, batches: training.BatchSource) -> Vectors:
        """Reads images as vectors of pixels."""
        return read_vectors(batches, "image")

    def predict_batches(
        self, run: Run, file: Path | None
    ) -> tuple[training.BatchSource, Sequence[str] | None]:
        """Makes batches of one image, or of all images in a folder or archive, by name.

        Without a file, or for a folder in an official format, they are the test images.
        """
        names = [] if file is None else image_names(file)
        if file is None or not names:
            return self.test_batches(run, file), None
        return image_batches(read_unlabeled(run, file, names), run.config, run.data_spec), names

    def stream(self, run: Run, options: ImageStreamOptions) -> NoReturn:
        """Raises OptionError: images do not stream."""
        raise OptionError(
            "an image run does not stream, because the model needs whole images; train the task "
            "sequence on the pixels to stream them.",
            "run",
        )
