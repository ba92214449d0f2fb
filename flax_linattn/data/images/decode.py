"""Image files to pixels, many at a time."""

from __future__ import annotations

import itertools
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import at_least, import_extra, shown
from flax_linattn.data.file_tree import FileTree
from flax_linattn.data.files import DataFormatError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff")
"""Of image files, in small letters."""

MOST_PIXELS = 2**33
"""Bytes of all pixels of a data set."""

LARGEST_SIDE = 2**14
"""Of an image as it is to be."""

_FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP")
"""What Pillow is to take files for: it knows many more, of which few are ever tested."""

_KINDS = {
    "1": "black and white",
    "L": "grey",
    "LA": "grey with transparency",
    "La": "grey with transparency",
    "P": "of a palette",
    "PA": "of a palette",
    "RGBA": "with transparency",
    "RGBa": "with transparency",
    "RGBX": "padded",
    "CMYK": "CMYK",
    "YCbCr": "YCbCr",
}
"""Pillow's names of eight bits a channel, as notes say them."""

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
"""Pillow's names of what turns an image of each orientation upright; 1 is upright."""

_LONGEST = 256
"""How many times its shorter side the longer one may be where it is resized: files may say any."""

_CHUNK = 256
"""Files that are read before they are decoded."""


class Decoded(NamedTuple):
    """Images of one shape.

    Attributes:
        pixels: uint8 ``[N, H, W, C]``.
        notes: What was done to them.
    """

    pixels: NDArray[np.uint8]
    notes: tuple[str, ...]


def is_image(name: str) -> bool:
    """Whether a file of this name is one of an image.

    Example:
        >>> is_image("train/cat/1.JPEG"), is_image("train/cat/boxes.txt")
        (True, False)
    """
    return name.lower().endswith(SUFFIXES)


def import_pillow() -> Any:
    """The module ``PIL.Image`` of Pillow, which is no part of a plain installation.

    Raises:
        ValueError: It is not installed; says how to.
    """
    return import_extra(
        "PIL.Image",
        'reading image files takes Pillow: pip install "flax-linattn[images]". The binary and '
        "Python versions of CIFAR-10, and MNIST's files, are read without it.",
    )


def check_room(tree: FileTree, num_images: int, height: int, width: int, channels: int) -> None:
    """Refuses images that take more than 8 GiB.

    Raises:
        DataFormatError: They do; says which size would fit.
    """
    needed = num_images * height * width * channels
    if needed > MOST_PIXELS:
        fits = int((MOST_PIXELS / (num_images * channels)) ** 0.5)
        raise DataFormatError(
            f"{tree.path}: expected pixels of at most {MOST_PIXELS:,} bytes, got {needed:,} of "
            f"{num_images:,} images of {height} x {width}; give a size of at most {fits}, or take "
            "fewer images",
            "size",
        )


def decode_images(
    tree: FileTree, names: Sequence[str], size: int | None, mode: Literal["RGB", "L"] = "RGB"
) -> Decoded:
    """Reads image files, several at once.

    Photos are turned upright where EXIF metadata say how the camera was held, as every viewer does
    (torchvision does not). With ``size`` the shorter side is resized to it (bicubic) and the middle
    is cut out, as by torchvision's ``Resize`` and ``CenterCrop``.

    Args:
        tree: Where they are.
        names: Which, at least one.
        size: The height and width of all, or None, where all have one shape.
        mode: "RGB" for C = 3, "L" for C = 1; files of another kind are converted, and noted.

    Raises:
        OptionError: The size is out of range.
        ValueError: Pillow is not installed.
        DataFormatError: A file is damaged or of another shape, or all are too large for memory.
    """
    at_least(1, LARGEST_SIDE, size=size)
    image_module = import_pillow()
    kinds: Counter[str] = Counter()
    num_turned = 0
    pixels: NDArray[np.uint8] | None = None
    first, rows = "", {name: row for row, name in enumerate(names)}
    channels = len(mode)
    if size is not None:
        check_room(tree, len(names), size, size, channels)

    def decode(item: tuple[str, bytes]) -> tuple[str, str, bool, NDArray[np.uint8]]:
        name, content = item
        return name, *_decode(image_module, tree.place(name), content, size, mode)

    with _strict(image_module), ThreadPoolExecutor(_threads()) as pool:
        for name, kind, turned, image in _mapped(pool, decode, tree.read(names)):
            if pixels is None:
                first = name
                height, width = image.shape[:2]
                check_room(tree, len(names), height, width, channels)
                pixels = np.empty((len(names), height, width, channels), np.uint8)
            if image.shape[:2] != pixels.shape[1:3]:
                raise DataFormatError(
                    f"{tree.place(name)}: expected an image of {_shape(pixels[0])}, as "
                    f"{tree.place(first)}, got one of {_shape(image)}; give a size, which all are "
                    "brought to",
                    "size",
                )
            kinds[kind] += 1
            num_turned += turned
            pixels[rows[name]] = image.reshape(*image.shape[:2], channels)
    if pixels is None:
        raise ValueError("expected the names of images to decode, got none; check the data set")
    notes = [*_suffix_notes(names), *_kind_notes(kinds, mode)]
    if num_turned:
        notes.append(f"images turned upright, as their EXIF metadata say: {num_turned:,}")
    return Decoded(pixels, tuple(notes))


def _suffix_notes(names: Sequence[str]) -> tuple[str, ...]:
    """What is to be known of files by their names: JPEG has lost what pixels were at first."""
    count = sum(name.lower().endswith((".jpg", ".jpeg")) for name in names)
    if not count:
        return ()
    whole = count == len(names)
    return ("images are JPEG files" if whole else f"{count:,} of {len(names):,} are JPEG files",)


def _shape(image: NDArray) -> str:
    return f"{image.shape[0]} x {image.shape[1]}"


def _threads() -> int:
    """As many as there are cores, of which files on disk leave few in use beyond eight."""
    return min(8, os.cpu_count() or 1)


def _mapped(pool: ThreadPoolExecutor, decode: Any, items: Iterator[Any]) -> Iterator[Any]:
    """In order; one chunk is read while the one before is decoded, and no more is in memory."""
    decoding: list[Future[Any]] = []
    while chunk := list(itertools.islice(items, _CHUNK)):
        following = [pool.submit(decode, item) for item in chunk]
        yield from (image.result() for image in decoding)
        decoding = following
    yield from (image.result() for image in decoding)


@contextmanager
def _strict(image_module: Any) -> Iterator[None]:
    """An image of very many pixels is an error; what else Pillow warns of is about metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", image_module.DecompressionBombWarning)
        yield


def _decode(
    image_module: Any, place: str, content: bytes, size: int | None, mode: str
) -> tuple[str, bool, NDArray[np.uint8]]:
    """The kind of an image, whether it was turned, and its pixels."""
    try:
        with image_module.open(BytesIO(content), formats=_FORMATS) as image:
            kind = image.mode
            if kind not in _KINDS and kind != mode and kind != "RGB":
                raise DataFormatError(
                    f"{place}: expected an image in grey or colour, eight bits a channel, got one "
                    f"of Pillow's mode {kind!r}; save it so"
                )
            image.load()
            turn = _TURNS.get(_orientation(image))
            whole = image if kind == mode else image.convert(mode)
            if turn is not None:
                whole = whole.transpose(getattr(image_module.Transpose, turn))
            if size is not None:
                whole = _cropped(image_module, whole, size)
            return kind, turn is not None, np.asarray(whole, np.uint8)
    except DataFormatError:
        raise
    except Exception as error:  # Pillow's readers of damaged files raise whatever Python has
        unknown = type(error).__name__ == "UnidentifiedImageError"  # which tells of no file
        told = f"none of {', '.join(_FORMATS)}" if unknown else shown(error, 100)
        raise DataFormatError(
            f"{place}: expected a whole image file, got a damaged one, or another kind of file "
            f"({told}); fetch it again, or take it away"
        ) from error


def _orientation(image: Any) -> int:
    try:
        found: int = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged metadata say nothing, and the image is whole
        return 1
    return found


def _cropped(image_module: Any, image: Any, size: int) -> Any:
    """The shorter side brought to ``size``, and the middle, in torchvision's roundings."""
    width, height = image.size
    short = min(width, height)
    if max(width, height) > _LONGEST * short:
        raise ValueError(f"{height:,} x {width:,} pixels, of which no square is cut out")
    if short != size:
        width, height = (
            (size, int(size * height / width))
            if width <= height
            else (int(size * width / height), size)
        )
        image = image.resize((width, height), image_module.Resampling.BICUBIC)
    left, top = round((width - size) / 2), round((height - size) / 2)
    if (width, height) == (size, size):
        return image
    return image.crop((left, top, left + size, top + size))


def _kind_notes(kinds: Mapping[str, int], mode: str) -> tuple[str, ...]:
    became = "red, green and blue" if mode == "RGB" else "grey"
    return tuple(
        f"{number:,} {'image was' if number == 1 else 'images were'} "
        f"{_KINDS.get(kind, 'in colour')} in the files, and became {became}"
        for kind, number in sorted(kinds.items())
        if kind != mode
    )
