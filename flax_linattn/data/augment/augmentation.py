"""What is done to a picture before a model sees it in training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, at_least, choice
from flax_linattn.data.augment.operations import LARGEST, rand_augment
from flax_linattn.data.augment.pillow import check_pillow, to_pillow, to_pixels

if TYPE_CHECKING:
    from PIL import Image

ATTEMPTS = 10
"""Rectangles that are drawn for one that fits into the picture."""
NOISE = 58.0
"""Standard deviation of what is put into an erased rectangle, grey values: ImageNet's."""
ERASED_AREA = (0.02, 1 / 3)
ERASED_RATIO = (0.3, 1 / 0.3)


@dataclass(frozen=True)
class Augmentation:
    """Random changes of a picture, in the order of the fields; the defaults change nothing.

    Source: H. Touvron et al., "DeiT" (2021), and timm, whose values the defaults are: "resized" is
    the random resized crop of Inception, ``operations=2`` timm's ``rand-m9-mstd0.5-inc1``. Apart
    from timm's, colours from outside are one grey for all channels, and noise is drawn in grey
    values, which end at 0 and 255.

    Attributes:
        crop: "none"; "resized": a rectangle of random area and ratio, brought to the size by
            bicubic interpolation; "padded": a window of the picture's size in the picture with
            ``padding`` black pixels on every side.
        size: Height and width of what comes out of "resized"; None keeps the picture's.
        scale: Least and largest area of the rectangle, as a share of the picture's.
        ratio: Least and largest width of the rectangle, as a share of its height.
        padding: Pixels.
        flip: Probability that left and right change places.
        operations: Of RandAugment, drawn for each picture; 0 for none.
        magnitude: Theirs, from 0 to 10, the mean of what is drawn for each.
        magnitude_std: Its standard deviation.
        erase: Probability that a rectangle of 2 to 33 % of the picture becomes noise.
        fill: Grey value of what comes in from outside when a picture is turned or moved, and the
            mean of the noise.

    Raises:
        OptionError: A value is out of range.

    Example:
        >>> picture = np.zeros((32, 32, 3), np.uint8)
        >>> DEIT(picture, np.random.default_rng(0)).shape
        (32, 32, 3)
        >>> NONE(picture, np.random.default_rng(0)) is picture
        True
    """

    crop: Literal["none", "resized", "padded"] = "none"
    size: int | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    padding: int = 4
    flip: float = 0.0
    operations: int = 0
    magnitude: float = 9.0
    magnitude_std: float = 0.5
    erase: float = 0.0
    fill: int = 128

    def __post_init__(self) -> None:
        choice(("none", "resized", "padded"), crop=self.crop)
        at_least(1, 2**16, size=self.size)
        at_least(0, 2**16, padding=self.padding)
        at_least(0, 1000, operations=self.operations)
        at_least(0, 255, fill=self.fill)
        if self.size is not None and self.crop != "resized":
            raise OptionError(
                f'size is that of crop="resized", got size={self.size} and crop={self.crop!r}; '
                "load the pictures in that size.",
                "size",
                "crop",
            )
        for name, (low, high), most in (
            ("scale", self.scale, 1.0),
            ("ratio", self.ratio, math.inf),
        ):
            if not 0 < low <= high <= most:
                raise OptionError(f"{name} must rise from above 0, got {(low, high)}.", name)
        for name, value in (("flip", self.flip), ("erase", self.erase)):
            if not 0 <= value <= 1:
                raise OptionError(f"{name} must be from 0 to 1, got {value}.", name)
        if not 0 <= self.magnitude <= LARGEST:
            raise OptionError(f"magnitude must be from 0 to 10, got {self.magnitude}.", "magnitude")
        if not 0 <= self.magnitude_std < math.inf:
            raise OptionError(
                f"magnitude_std must be at least 0, got {self.magnitude_std}.", "magnitude_std"
            )

    @property
    def is_random(self) -> bool:
        """Whether there is anything to draw."""
        return self.crop != "none" or bool(self.operations) or self.flip > 0 or self.erase > 0

    @property
    def takes_pillow(self) -> bool:
        """Whether Pillow, an extra, does some of it."""
        return self.crop == "resized" or bool(self.operations)

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of what comes out, given those of what goes in."""
        return (height, width) if self.size is None else (self.size, self.size)

    def __call__(self, image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        """Changes a picture.

        Args:
            image: uint8 [H, W, C], C 1 or 3; it stays as it is.
            rng: The source of chance.

        Returns:
            uint8 [H', W', C]: H' and W' are ``size`` if that is given.
        """
        if self.crop == "padded":
            image = self._window(image, rng)
        if self.takes_pillow:
            check_pillow()
            picture = to_pillow(image)
            if self.crop == "resized":
                picture = self._resized(picture, rng)
            if rng.random() < self.flip:
                picture = _mirrored(picture)
            if self.operations:
                picture = rand_augment(
                    picture,
                    rng,
                    operations=self.operations,
                    magnitude=self.magnitude,
                    deviation=self.magnitude_std,
                    fill=self.fill,
                )
            image = to_pixels(picture)
        elif self.flip and rng.random() < self.flip:
            image = image[:, ::-1]
        if self.erase and rng.random() < self.erase:
            image = self._erased(image, rng)
        return image

    def _window(self, image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        height, width, channels = image.shape
        margin = self.padding
        padded = np.zeros((height + 2 * margin, width + 2 * margin, channels), np.uint8)
        padded[margin : margin + height, margin : margin + width] = image
        top, left = rng.integers(2 * margin + 1, size=2)
        return padded[top : top + height, left : left + width]

    def _resized(self, picture: Image.Image, rng: np.random.Generator) -> Image.Image:
        from PIL import Image

        left, top, width, height = self._rectangle(picture.width, picture.height, rng)
        target = self.shape(picture.height, picture.width)[::-1]
        part = picture.crop((left, top, left + width, top + height))
        return part.resize(target, Image.Resampling.BICUBIC)

    def _rectangle(
        self, width: int, height: int, rng: np.random.Generator
    ) -> tuple[int, int, int, int]:
        """Left, top, width and height of what is kept; the middle where none that fits is drawn."""
        low, high = np.log(self.ratio)
        for _ in range(ATTEMPTS):
            area = rng.uniform(*self.scale) * width * height
            ratio = math.exp(rng.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
        whole = width / height
        w = round(height * self.ratio[1]) if whole > self.ratio[1] else width
        h = round(width / self.ratio[0]) if whole < self.ratio[0] else height
        return (width - w) // 2, (height - h) // 2, w, h

    def _erased(self, image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        height, width, channels = image.shape
        low, high = np.log(ERASED_RATIO)
        for _ in range(ATTEMPTS):
            area = rng.uniform(*ERASED_AREA) * height * width
            ratio = math.exp(rng.uniform(low, high))
            h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < h < height and 0 < w < width:
                top, left = rng.integers(height - h + 1), rng.integers(width - w + 1)
                noise = rng.normal(self.fill, NOISE, size=(h, w, channels))
                image = image.copy()
                image[top : top + h, left : left + w] = np.clip(np.rint(noise), 0, 255)
                return image
        return image


def _mirrored(picture: Image.Image) -> Image.Image:
    from PIL import Image

    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


NONE = Augmentation()
"""No change: for validation and test."""
LIGHT = Augmentation(crop="padded", flip=0.5)
"""A shift of up to four pixels and a flip: for small pictures such as CIFAR-10's."""
DEIT = Augmentation(crop="resized", flip=0.5, operations=2, erase=0.25)
"""DeiT's; for pictures of 32 pixels or fewer DeiT has ``crop="padded"`` in it."""
