"""Decoding of image files to pixels, several at a time."""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import check_integers, import_extra, quote
from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files.file_tree import FileTree
from flax_linattn.data.files.unpacking import check_unpacked_bytes

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff")
"""Suffixes of image files, in lower case."""

MAX_PIXELS = 2**33
"""Maximum size in bytes of all pixels of a data set."""

MAX_SIDE = 2**14
"""Maximum height and width that images may be resized to."""

_FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP")
"""Formats that Pillow may use; its many other decoders are rarely tested."""

_KINDS = {
    "1": "black and white",
    "L": "gray",
    "LA": "gray with transparency",
    "La": "gray with transparency",
    "P": "of a palette",
    "PA": "of a palette",
    "RGBA": "with transparency",
    "RGBa": "with transparency",
    "RGBX": "padded",
    "CMYK": "CMYK",
    "YCbCr": "YCbCr",
}
"""Names of Pillow's 8-bit modes in notes."""

_ORIENTATION = 0x0112
"""The EXIF tag of the camera's orientation."""

_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""Pillow's transposition that turns an image of each EXIF orientation upright; 1 is upright."""

_MAX_ASPECT_RATIO = 256
"""Maximum aspect ratio of an image that is resized."""

_MAX_PENDING = 256
"""Maximum number of images that are read ahead or decoded at once."""

_MAX_PENDING_BYTES = 2**30
"""Maximum bytes of these images, unless a single one takes more."""

_BYTES_PER_PIXEL = 8
"""Bytes per pixel: Pillow takes four for an image, and four for its conversion."""


class Decoded(NamedTuple):
    """Decoded images of equal shape.

    Attributes:
        pixels: Pixels, uint8 ``[N, H, W, C]``.
        notes: Notes on how the images were converted.
    """

    pixels: NDArray[np.uint8]
    notes: tuple[str, ...]


def is_image(name: str) -> bool:
    """Whether a file name is that of an image.

    Example:
        >>> is_image("train/cat/1.JPEG"), is_image("train/cat/boxes.txt")
        (True, False)
    """
    return name.lower().endswith(SUFFIXES)


def _check_size(tree: FileTree, num_images: int, height: int, width: int, channels: int) -> None:
    """Raises an error for images that take more than 8 GiB."""
    needed = num_images * height * width * channels
    if needed > MAX_PIXELS:
        fits = int((MAX_PIXELS / (num_images * channels)) ** 0.5)
        raise DataFormatError(
            f"{tree.path}: expected pixels of at most {MAX_PIXELS:,} bytes, got "
            f"{needed:,} for {num_images:,} images of {height} x {width}; pass a size "
            f"of at most {fits}, or use fewer images",
            "size",
        )


def decode_images(
    tree: FileTree, names: Sequence[str], size: int | None, mode: Literal["RGB", "L"] = "RGB"
) -> Decoded:
    """Reads image files, several at once.

    Photos are turned upright according to their EXIF orientation, as image viewers do (torchvision
    does not). With ``size``, the shorter side is resized to it (bicubic) and the center is cropped,
    as by torchvision's ``Resize`` and ``CenterCrop``; without it, all images must have the same
    shape. Files of another mode than ``mode`` are converted, with a note.
    """
    check_integers(1, MAX_SIDE, size=size)
    image_module = import_extra(
        "PIL.Image",
        'reading image files takes Pillow: pip install "flax-linattn[images]". The binary and '
        "Python versions of CIFAR-10, and MNIST's files, are read without it.",
    )
    kinds: Counter[str] = Counter()
    num_turned = 0
    pixels: NDArray[np.uint8] | None = None
    first, rows = "", {name: row for row, name in enumerate(names)}
    channels = len(mode)
    if size is not None:
        _check_size(tree, len(names), size, size, channels)

    def opened() -> Iterator[tuple[int, tuple[str, Any]]]:
        for name, content in tree.read(names):
            with _damage_as_error(tree.place(name)):
                image = image_module.open(BytesIO(content), formats=_FORMATS)
            yield len(content) + _BYTES_PER_PIXEL * math.prod(image.size), (name, image)

    def decode(item: tuple[str, Any]) -> tuple[str, str, bool, NDArray[np.uint8]]:
        name, image = item
        with _damage_as_error(tree.place(name)), image:
            return name, *_decode(image_module, tree.place(name), image, size, mode)

    # Beyond eight cores, reading from disk is what takes the time.
    threads = min(8, os.cpu_count() or 1)
    with _bombs_as_errors(image_module), ThreadPoolExecutor(threads) as pool:
        for name, kind, turned, image in _mapped(pool, decode, opened()):
            height, width = image.shape[:2]
            if pixels is None:
                first = name
                _check_size(tree, len(names), height, width, channels)
                if size is None:
                    check_unpacked_bytes(
                        tree.path,
                        len(names) * height * width * channels,
                        tree.stored_bytes(*names),
                        "give a size, which all are brought to",
                    )
                pixels = np.empty((len(names), height, width, channels), np.uint8)
            if (height, width) != pixels.shape[1:3]:
                raise DataFormatError(
                    f"{tree.place(name)}: expected an image of {pixels.shape[1]} x "
                    f"{pixels.shape[2]}, as {tree.place(first)}, got one of {height} x "
                    f"{width}; pass a size to resize all images to",
                    "size",
                )
            kinds[kind] += 1
            num_turned += turned
            pixels[rows[name]] = image.reshape(height, width, channels)
    if pixels is None:
        raise ValueError("expected the names of images to decode, got none; check the data set")
    return Decoded(pixels, tuple(_notes(names, kinds, num_turned, mode)))


def _notes(names: Sequence[str], kinds: Counter[str], num_turned: int, mode: str) -> Iterator[str]:
    """Notes on JPEG files (lossy compression), on conversions, and on rotated images."""
    num_jpeg = sum(name.lower().endswith((".jpg", ".jpeg")) for name in names)
    if num_jpeg == len(names):
        yield "images are JPEG files"
    elif num_jpeg:
        yield f"{num_jpeg:,} of {len(names):,} are JPEG files"
    became = "red, green and blue" if mode == "RGB" else "gray"
    for kind, number in sorted(kinds.items()):
        if kind != mode:
            subject = "image was" if number == 1 else "images were"
            was = _KINDS.get(kind, "in color")
            yield f"{number:,} {subject} {was} in the files, and became {became}"
    if num_turned:
        yield f"images turned upright, as their EXIF metadata say: {num_turned:,}"


def _mapped(
    pool: ThreadPoolExecutor, decode: Any, items: Iterator[tuple[int, Any]]
) -> Iterator[Any]:
    """Decodes items in order, as many at once as the memory limit allows."""
    pending: deque[tuple[int, Future[Any]]] = deque()
    pending_bytes = 0
    for num_bytes, item in items:
        while pending and (
            len(pending) == _MAX_PENDING or pending_bytes + num_bytes > _MAX_PENDING_BYTES
        ):
            pending_bytes -= pending[0][0]
            yield pending.popleft()[1].result()
        pending.append((num_bytes, pool.submit(decode, item)))
        pending_bytes += num_bytes
    while pending:
        yield pending.popleft()[1].result()


@contextmanager
def _bombs_as_errors(image_module: Any) -> Iterator[None]:
    """Turns Pillow's warning about very large images into an error; ignores other warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", image_module.DecompressionBombWarning)
        yield


def _decode(
    image_module: Any, place: str, image: Any, size: int | None, mode: str
) -> tuple[str, bool, NDArray[np.uint8]]:
    """Decodes an image; returns its mode, whether it was rotated, and its pixels."""
    kind = image.mode
    if kind not in _KINDS and kind != mode and kind != "RGB":
        raise DataFormatError(
            f"{place}: expected a gray or color image with eight bits per channel, got one of "
            f"Pillow's mode {kind!r}; convert it"
        )
    image.load()
    turn = _TURNS.get(_orientation(image))
    whole = image if kind == mode else image.convert(mode)
    if turn is not None:
        whole = whole.transpose(getattr(image_module.Transpose, turn))
    if size is not None:
        whole = _cropped(image_module, whole, size)
    return kind, turn is not None, np.asarray(whole, np.uint8)


@contextmanager
def _damage_as_error(place: str) -> Iterator[None]:
    """Converts any error of Pillow to one that names the file."""
    try:
        yield
    except DataFormatError:
        raise
    except Exception as error:  # Pillow's readers of damaged files raise whatever Python has
        unknown = type(error).__name__ == "UnidentifiedImageError"  # its text names no file
        got = f"none of {', '.join(_FORMATS)}" if unknown else quote(error, 100)
        raise DataFormatError(
            f"{place}: expected a valid image file, got a damaged one, or another kind "
            f"of file ({got}); fetch it again, or remove it"
        ) from error


def _orientation(image: Any) -> int:
    try:
        orientation: int = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged metadata say nothing, and the image is whole
        return 1
    return orientation


def _cropped(image_module: Any, image: Any, size: int) -> Any:
    """Resizes the shorter side to ``size`` and crops the center, rounding like torchvision."""
    width, height = image.size
    short = min(width, height)
    if max(width, height) > _MAX_ASPECT_RATIO * short:
        raise ValueError(f"{height:,} x {width:,} pixels, of which no square is cut out")
    if short != size:
        # The integer division of the shorter side is exact.
        width, height = size * width // short, size * height // short
        image = image.resize((width, height), image_module.Resampling.BICUBIC)
    if width == height:
        return image
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))
