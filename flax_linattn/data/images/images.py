"""``LabeledImages``, a labeled collection of images of equal shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.labels import LabeledExamples, check_classes, check_labels


@dataclass(frozen=True, eq=False)
class LabeledImages(LabeledExamples):
    """Labeled images of equal shape.

    Attributes:
        name: The data set's name.
        classes: The class names, in the order of ``data.labels.in_order``, or in that of text.
        labels: Indices into ``classes``, int32 ``[N]``.
        pixels: Pixels, uint8 ``[N, H, W, C]``; C is 1 (gray) or 3 (red, green, blue).
        notes: Notes on the images, such as "images are JPEG files".

    Raises:
        ValueError: If the parts do not match.

    Example:
        >>> images = LabeledImages("toy", ("cat", "dog"), np.array([1, 0], np.int32),
        ...                         np.zeros((2, 4, 6, 3), np.uint8))
        >>> images.num_examples, images.image_shape, images.gray().image_shape
        (2, (4, 6, 3), (4, 6, 1))
    """

    name: str
    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    pixels: NDArray[np.uint8]
    notes: tuple[str, ...] = ()
    _examples: ClassVar[str] = "pixels"

    def __post_init__(self) -> None:
        shape = self.pixels.shape
        if self.pixels.dtype != np.uint8 or len(shape) != 4 or shape[-1] not in (1, 3):
            raise ValueError(
                "expected pixels uint8 [N, H, W, C] with C = 1 or 3, got "
                f"{self.pixels.dtype} {list(shape)}; channels come last"
            )
        if 0 in shape[1:3]:
            raise ValueError(
                f"expected images of at least one pixel, got {list(shape)}; remove the empty ones"
            )
        check_labels(self.labels, len(self.pixels), self.classes)
        check_classes(self.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image, (H, W, C)."""
        height, width, channels = self.pixels.shape[1:]
        return height, width, channels

    def gray(self) -> LabeledImages:
        """Converts the images to grayscale, C = 1, by the luma of ITU-R BT.601 in integers.

        ``(19595 R + 38470 G + 7471 B + 2**15) >> 16``, as in mode "L" of Pillow and torchvision.

        Example:
            >>> red = np.array([[[[255, 0, 0]]]], np.uint8)
            >>> LabeledImages("toy", ("a",), np.zeros(1, np.int32), red).gray().pixels.tolist()
            [[[[76]]]]
        """
        if self.image_shape[-1] == 1:
            return self
        gray = np.empty((*self.pixels.shape[:3], 1), np.uint8)
        step = max(1, 2**24 // max(1, self.pixels[:1].size))  # a bounded share of memory at a time
        for begin in range(0, self.num_examples, step):
            part = self.pixels[begin : begin + step].astype(np.uint32)
            red, green, blue = part[..., 0], part[..., 1], part[..., 2]
            luma = 19595 * red + 38470 * green + 7471 * blue + 2**15
            gray[begin : begin + step, ..., 0] = luma >> 16
        return replace(self, pixels=gray)

    def pixels_as_tokens(self) -> NDArray[np.uint8]:
        """Gray values as tokens 0..255, row by row from the top left, uint8 ``[N, H * W]``.

        Raises:
            ValueError: If the images are in color.

        Example:
            >>> gray = np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1)
            >>> LabeledImages("toy", ("a",), np.zeros(1, np.int32), gray).pixels_as_tokens()
            array([[0, 1, 2, 3]], dtype=uint8)
        """
        if self.image_shape[-1] != 1:
            raise ValueError(
                "expected gray images, whose pixels are one token each, got "
                f"{self.image_shape[-1]} channels; call gray() first"
            )
        return self.pixels.reshape(self.num_examples, -1)
