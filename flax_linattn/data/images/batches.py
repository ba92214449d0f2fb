"""Batches of images: normalized, and augmented at random for training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError
from flax_linattn.data.batches.batches import Batches
from flax_linattn.data.images.images import LabeledImages

PADDING = 4
"""Number of black pixels that ``shift_and_flip`` adds on every side."""

Augmentation: TypeAlias = Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]]
"""(image uint8 [H, W, C], random generator) -> an image of the same shape."""


def shift_and_flip(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Shifts a small image by up to four pixels, and mirrors it with probability one half.

    Pixels from outside the image are black.

    Source: K. He et al., "Deep Residual Learning for Image Recognition" (2016), section 4.2.

    Example:
        >>> image = np.zeros((32, 32, 3), np.uint8)
        >>> shift_and_flip(image, np.random.default_rng(0)).shape
        (32, 32, 3)
    """
    height, width, channels = image.shape
    padded = np.zeros((height + 2 * PADDING, width + 2 * PADDING, channels), np.uint8)
    padded[PADDING : PADDING + height, PADDING : PADDING + width] = image
    top, left = rng.integers(2 * PADDING + 1, size=2)
    window = padded[top : top + height, left : left + width]
    return window[:, ::-1] if rng.random() < 0.5 else window


class ImageBatches(Batches):
    """``Batches`` of images: normalized, and augmented at random in each epoch.

    A batch has "image", float32 [B, H, W, C], ``(pixels / 255 - mean) / std``; "labels", int32 [B];
    and "weight", float32 [B]. The augmentation of an image depends only on (seed, epoch, example),
    so a resumed run repeats it exactly.

    Args:
        images: Images and their labels.
        batch_size: Number B of examples of a batch; it may exceed N.
        augmentation: Random change of a training image, such as ``shift_and_flip``; None for none.
        seed: Random seed of the order and the augmentation in each epoch. None keeps the order of
            the images and disables augmentation, as for validation and test.
        mean: Mean of the pixels, from 0 to 1: one number, or one for each channel.
        std: Standard deviation of the pixels, likewise.

    Raises:
        ValueError: If there are no images, or the batch size or the seed is out of range.
        OptionError: If the mean or standard deviation does not fit the channels, or augmentations
            have no seed.

    Example:
        >>> pixels = np.full((3, 8, 8, 1), 255, np.uint8)
        >>> images = LabeledImages("toy", ("a", "b"), np.array([0, 1, 1], np.int32), pixels)
        >>> batches = ImageBatches(images, 2, seed=None, mean=0.5, std=0.25)
        >>> batch = batches.batch(1)
        >>> batch["image"].shape, batch["image"][0, 0, 0, 0], batch["weight"].tolist()
        ((2, 8, 8, 1), np.float32(2.0), [1.0, 0.0])
    """

    def __init__(
        self,
        images: LabeledImages,
        batch_size: int,
        *,
        augmentation: Augmentation | None = None,
        seed: int | None,
        mean: float | Sequence[float],
        std: float | Sequence[float],
    ) -> None:
        arrays: dict[str, NDArray] = {"image": images.pixels, "labels": images.labels}
        super().__init__(arrays, batch_size, seed=seed)
        if seed is None and augmentation is not None:
            raise OptionError(
                "augmentation needs a seed, got None; pass a seed, or disable augmentation.",
                "seed",
            )
        self.augmentation = augmentation
        # One product and one sum: (x / 255 - mean) / std.
        channels = images.image_shape[-1]
        std_values = _by_channel("std", std, channels)
        if not np.all(std_values > 0):
            raise OptionError(f"std must be positive, got {std}.", "std")
        self._factor = 1 / (255 * std_values)
        self._shift = -_by_channel("mean", mean, channels) / std_values

    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        pixels: NDArray[np.uint8] = self.arrays["image"]
        if self.augmentation is None:
            taken = pixels[examples]
        else:
            changed = {
                int(i): self.augmentation(pixels[i], self._rng(epoch, int(i)))
                for i in np.unique(examples)  # filler is a copy of an example
            }
            taken = np.stack([changed[int(i)] for i in examples])
        return {"image": self._normalized(taken), "labels": self.arrays["labels"][examples]}

    def _normalized(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        rows, height, width, channels = pixels.shape
        # Whole lines of pixels at once: NumPy is slow where the last axis is of length 3.
        image = pixels.reshape(rows, height, width * channels).astype(np.float32)
        image *= np.tile(self._factor, width).astype(np.float32)
        image += np.tile(self._shift, width).astype(np.float32)
        return image.reshape(pixels.shape)

    def _rng(self, epoch: int, example: int) -> np.random.Generator:
        # The leading 0 keeps these streams apart from others of the same seed.
        return np.random.default_rng(
            np.random.SeedSequence(self.seed, spawn_key=(0, epoch, example))
        )


def _by_channel(name: str, value: float | Sequence[float], channels: int) -> NDArray[np.float64]:
    numbers = np.asarray(value, np.float64)
    if numbers.shape not in ((), (1,), (channels,)) or not np.all(np.isfinite(numbers)):
        raise OptionError(
            f"{name} must be one number, or one for each of {channels} channels, got {value}.", name
        )
    return np.broadcast_to(numbers, channels)
