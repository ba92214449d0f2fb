"""Pillow, which is an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import import_extra

if TYPE_CHECKING:
    from PIL import Image


def check_pillow() -> None:
    """Refuses to go on without Pillow.

    Raises:
        ValueError: It is not installed.
    """
    import_extra("PIL", 'changing pictures takes Pillow: pip install "flax-linattn[images]"')


def to_pillow(pixels: NDArray[np.uint8]) -> Image.Image:
    """The picture of pixels uint8 [H, W, C], C 1 or 3."""
    from PIL import Image

    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def to_pixels(picture: Image.Image) -> NDArray[np.uint8]:
    """The pixels of a picture, uint8 [H, W, C]."""
    pixels = np.asarray(picture)
    return pixels if pixels.ndim == 3 else pixels[..., None]
