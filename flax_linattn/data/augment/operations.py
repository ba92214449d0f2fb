"""RandAugment's operations on pictures, with timm's values, its increasing set.

An operation takes a magnitude from 0 to 10 and a sign. Source: E. Cubuk et al., "RandAugment"
(2020); timm, ``auto_augment.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

Operation = Callable[["Image.Image", float, int, int], "Image.Image"]
"""(picture, magnitude, sign, grey value of what comes from outside) -> picture."""

LARGEST = 10.0
"""Magnitude, above which none is."""
PROBABILITY = 0.5
"""Of an operation that has been chosen: timm carries out every other one."""


def rand_augment(
    picture: Image.Image,
    rng: np.random.Generator,
    *,
    operations: int,
    magnitude: float,
    deviation: float,
    fill: int,
) -> Image.Image:
    """Carries out operations drawn at random, with replacement, each with probability 0.5.

    Args:
        picture: Grey or of three colours.
        rng: The source of chance.
        operations: How many to draw.
        magnitude: The mean of a normal distribution, from 0 to 10; what it gives is brought there.
        deviation: Its standard deviation.
        fill: Grey value of what comes in from outside of the picture.
    """
    for number in rng.integers(len(OPERATIONS), size=operations):
        acts, is_negative = rng.random(2) < PROBABILITY
        drawn = float(np.clip(rng.normal(magnitude, deviation), 0, LARGEST))
        if acts:
            picture = OPERATIONS[NAMES[number]](picture, drawn, -1 if is_negative else 1, fill)
    return picture


def _autocontrast(picture: Image.Image, magnitude: float, sign: int, fill: int) -> Image.Image:
    from PIL import ImageOps

    return ImageOps.autocontrast(picture)


def _equalize(picture: Image.Image, magnitude: float, sign: int, fill: int) -> Image.Image:
    from PIL import ImageOps

    return ImageOps.equalize(picture)


def _invert(picture: Image.Image, magnitude: float, sign: int, fill: int) -> Image.Image:
    from PIL import ImageOps

    return ImageOps.invert(picture)


def _rotate(picture: Image.Image, magnitude: float, sign: int, fill: int) -> Image.Image:
    from PIL import Image

    degrees = sign * 30 * magnitude / LARGEST
    colour = _colour(picture, fill)
    return picture.rotate(degrees, resample=Image.Resampling.BICUBIC, fillcolor=colour)


def _posterize(picture: Image.Image, magnitude: float, sign: int, fill: int) -> Image.Image:
    """Keeps 4 bits to 1; timm's highest magnitude keeps none, which Pillow refuses by now."""
    from PIL import ImageOps

    return ImageOps.posterize(picture, max(4 - int(4 * magnitude / LARGEST), 1))


def _solarize(picture: Image.Image, magnitude: float, sign: int, fill: int) -> Image.Image:
    from PIL import ImageOps

    return ImageOps.solarize(picture, 256 - int(256 * magnitude / LARGEST))


def _solarize_add(picture: Image.Image, magnitude: float, sign: int, fill: int) -> Image.Image:
    """Makes dark pixels, those below 128, brighter."""
    more = int(110 * magnitude / LARGEST)
    table = [min(255, value + more) if value < 128 else value for value in range(256)]
    return picture.point(table * len(picture.getbands()))


def _enhance(name: str) -> Operation:
    """An enhancement of Pillow's: factors of 1 - 0.9 or 1 + 0.9 at the highest magnitude."""

    def enhance(picture: Image.Image, magnitude: float, sign: int, fill: int) -> Image.Image:
        from PIL import ImageEnhance

        factor = max(0.1, 1 + sign * 0.9 * magnitude / LARGEST)
        changed: Image.Image = getattr(ImageEnhance, name)(picture).enhance(factor)
        return changed

    return enhance


def _shear_x(picture: Image.Image, magnitude: float, sign: int, fill: int) -> Image.Image:
    return _affine(picture, (1, sign * 0.3 * magnitude / LARGEST, 0, 0, 1, 0), fill)


def _shear_y(picture: Image.Image, magnitude: float, sign: int, fill: int) -> Image.Image:
    return _affine(picture, (1, 0, 0, sign * 0.3 * magnitude / LARGEST, 1, 0), fill)


def _translate_x(picture: Image.Image, magnitude: float, sign: int, fill: int) -> Image.Image:
    pixels = sign * 0.45 * magnitude / LARGEST * picture.width
    return _affine(picture, (1, 0, pixels, 0, 1, 0), fill)


def _translate_y(picture: Image.Image, magnitude: float, sign: int, fill: int) -> Image.Image:
    pixels = sign * 0.45 * magnitude / LARGEST * picture.height
    return _affine(picture, (1, 0, 0, 0, 1, pixels), fill)


def _affine(picture: Image.Image, matrix: tuple[float, ...], fill: int) -> Image.Image:
    """The picture at (a x + b y + c, d x + e y + f) for each (x, y)."""
    from PIL import Image

    return picture.transform(
        picture.size,
        Image.Transform.AFFINE,
        matrix,
        resample=Image.Resampling.BICUBIC,
        fillcolor=_colour(picture, fill),
    )


def _colour(picture: Image.Image, fill: int) -> Any:
    bands = len(picture.getbands())
    return fill if bands == 1 else (fill,) * bands


OPERATIONS: dict[str, Operation] = {
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": _invert,
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "color": _enhance("Color"),
    "contrast": _enhance("Contrast"),
    "brightness": _enhance("Brightness"),
    "sharpness": _enhance("Sharpness"),
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
}
NAMES = tuple(OPERATIONS)
