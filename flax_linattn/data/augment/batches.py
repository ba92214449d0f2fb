"""Batches of pictures, changed anew in each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import LARGEST_SEED, OptionError, at_least
from flax_linattn.data.augment.augmentation import NONE, Augmentation
from flax_linattn.data.augment.mix import Mix
from flax_linattn.data.augment.pillow import check_pillow
from flax_linattn.data.batching import ALL_ROWS, ExampleBatches, in_rows

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Of ImageNet's training pictures, by channel, from 0 to 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Likewise."""

_PICTURE, _BATCH = 0, 1  # whose randomness a stream is


class Pictures(Protocol):
    """Pictures and their classes, such as ``LabelledImages``."""

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """uint8 [N, H, W, C], C 1 or 3."""

    @property
    def labels(self) -> NDArray[np.int32]:
        """int32 [N]."""


class ImageBatches(ExampleBatches):
    """Batches of pictures, changed at random and normalised; every one comes once in an epoch.

    See ``ExampleBatches``: a batch is a function of the step, and the last one of an epoch is
    filled up with rows of ``weight`` 0. A picture's changes are drawn from (seed, epoch, example),
    a batch's mixture from (seed, step).

    A batch has "image", float32 [B, H, W, C], ``(pixels / 255 - mean) / std``; "labels", int32 [B];
    "weight", float32 [B]; and, with ``mix``, "targets", float32 [B, classes], the shares of the
    classes in a picture. Row i is mixed with row B - 1 - i, filler with the example that it copies.

    Pictures are normalised here, which takes a small part of the time of their changes, so that a
    model and its loss need to know nothing of it. All is done by the thread that asks: for small
    pictures Pillow's work is too short for a second thread to gain anything.

    Args:
        images: Pictures and their labels.
        batch_size: B, the rows of every batch; it may exceed N.
        augmentation: What is done to a picture.
        mix: How pictures are mixed, or None.
        seed: Each epoch has its own order and changes, drawn from it; None keeps the order of the
            pictures, and takes no random changes: for validation and test.
        mean: Of the pixels, from 0 to 1: one number, or one for each channel.
        std: Their standard deviation, likewise.
        num_classes: Of the targets; needed with ``mix``.

    Raises:
        ValueError: The pictures are not of that form, or there are none.
        OptionError: A value is out of range, or changes are asked for without a seed.

    Example:
        >>> from types import SimpleNamespace
        >>> pixels = np.full((3, 8, 8, 1), 255, np.uint8)
        >>> images = SimpleNamespace(pixels=pixels, labels=np.array([0, 1, 1], np.int32))
        >>> batches = ImageBatches(images, 2, seed=None, mean=0.5, std=0.25)
        >>> batch = batches.batch(1)
        >>> batch["image"].shape, batch["image"][0, 0, 0, 0], batch["weight"].tolist()
        ((2, 8, 8, 1), np.float32(2.0), [1.0, 0.0])
    """

    def __init__(
        self,
        images: Pictures,
        batch_size: int,
        *,
        augmentation: Augmentation = NONE,
        mix: Mix | None = None,
        seed: int | None,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        num_classes: int | None = None,
    ) -> None:
        pixels, labels = images.pixels, images.labels
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] not in (1, 3):
            raise ValueError(
                "expected pixels uint8 [N, H, W, C] of 1 or 3 channels, got "
                f"{pixels.dtype} {list(pixels.shape)}; bring them to that form"
            )
        if labels.shape != pixels.shape[:1]:
            raise ValueError(
                f"expected a label for each of {len(pixels)} pictures, got labels of shape "
                f"{labels.shape}"
            )
        super().__init__(len(pixels), batch_size)
        at_least(0, LARGEST_SEED, seed=seed)
        if seed is None and (augmentation.is_random or mix is not None):
            raise OptionError(
                "random changes of pictures take a seed, got None; give a number, or no changes.",
                "seed",
            )
        if augmentation.takes_pillow:
            check_pillow()
        at_least(1, num_classes=num_classes)
        if mix is not None and num_classes is None:
            raise OptionError("mix needs num_classes, the length of the targets.", "num_classes")
        if num_classes is not None and not 0 <= labels.min() <= labels.max() < num_classes:
            raise OptionError(
                f"labels must be from 0 to {num_classes - 1}, got {labels.min()} to "
                f"{labels.max()}; num_classes is too small.",
                "num_classes",
            )
        self.images = images
        self.augmentation = augmentation
        self.mix = mix
        self.seed = seed
        self._num_targets = num_classes or 0
        # One product and one sum: (x / 255 - mean) / std.
        deviation = _of_channels("std", std, pixels.shape[-1])
        if not np.all(deviation > 0):
            raise OptionError(f"std must be positive, got {std}.", "std")
        self._factor = 1 / (255 * deviation)
        self._shift = -_of_channels("mean", mean, pixels.shape[-1]) / deviation

    def batch(self, step: int, rows: slice = ALL_ROWS) -> dict[str, NDArray]:
        """Returns the batch of a step, counted from 0 over all epochs.

        Args:
            step: Its epoch is ``step // len(self)``.
            rows: Which of its B rows to load, such as those of one process of several; those that
                they are mixed with are loaded too.

        Raises:
            ValueError: The step is negative.
        """
        batch = super().batch(step, rows)
        if self.mix is None:
            return batch
        chosen = range(*rows.indices(self.batch_size))
        if len(chosen) == self.batch_size:
            others = {name: array[::-1] for name, array in batch.items()}
        else:  # in rising order, and turned round
            first, last = self.batch_size - 1 - chosen[-1], self.batch_size - chosen[0]
            other_rows = super().batch(step, slice(first, last, chosen.step))
            others = {name: array[::-1] for name, array in other_rows.items()}
        share, box = self.mix.draw(self._rng(_BATCH, step), *batch["image"].shape[1:3])
        one_hot = np.eye(self._num_targets, dtype=np.float32)
        return batch | {
            "image": Mix.pictures(batch["image"], others["image"], share, box),
            "targets": np.float32(share) * one_hot[batch["labels"]]
            + np.float32(1 - share) * one_hot[others["labels"]],
        }

    def _plan(self, epoch: int) -> NDArray[np.int64]:
        order = np.arange(self.num_examples)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.num_examples)
        return in_rows(order, self.batch_size)

    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        pixels = self.images.pixels
        if not self.augmentation.is_random:
            taken = pixels[examples]
        else:
            changed = {
                int(i): self.augmentation(pixels[i], self._rng(_PICTURE, epoch, int(i)))
                for i in np.unique(examples)
            }
            taken = np.stack([changed[int(i)] for i in examples])
        return {
            "image": self._normalised(taken),
            "labels": self.images.labels[examples].astype(np.int32),
        }

    def _normalised(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        rows, height, width, channels = pixels.shape
        # Whole lines of pixels at once: NumPy is slow where the last axis is of length 3.
        image = pixels.reshape(rows, height, width * channels).astype(np.float32)
        image *= np.tile(np.broadcast_to(self._factor, channels), width).astype(np.float32)
        image += np.tile(np.broadcast_to(self._shift, channels), width).astype(np.float32)
        return image.reshape(pixels.shape)

    def _rng(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=stream))


def _of_channels(name: str, value: float | Sequence[float], channels: int) -> NDArray[np.float64]:
    numbers = np.asarray(value, np.float64)
    if numbers.shape not in ((), (1,), (channels,)) or not np.all(np.isfinite(numbers)):
        raise OptionError(
            f"{name} must be one number, or one for each of {channels} channels, got {value}.", name
        )
    return numbers
