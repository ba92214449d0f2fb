"""Labelled images: grey against Pillow, their parts, what is refused."""

import numpy as np
import pytest
from PIL import Image

from flax_linattn.data.images import LabelledImages


def toy(pixels, labels=None, classes=("a", "b")):
    labels = np.zeros(len(pixels), np.int32) if labels is None else labels
    return LabelledImages("toy", classes, labels, pixels)


def test_grey_is_that_of_pillow():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (3, 200, 301, 3)).astype(np.uint8)
    grey = toy(pixels).grey()
    for image, found in zip(pixels, grey.pixels, strict=True):
        assert np.array_equal(np.asarray(Image.fromarray(image).convert("L")), found[..., 0])
    assert grey.grey() is grey and grey.image_shape == (200, 301, 1)


def test_pixels_as_tokens_go_row_by_row():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4, 1)
    tokens = toy(pixels).pixels_as_tokens()
    assert tokens.tolist() == [list(range(12)), list(range(12, 24))]
    with pytest.raises(ValueError, match=r"expected images in grey.* got 3 channels; call grey"):
        toy(np.zeros((2, 3, 4, 3), np.uint8)).pixels_as_tokens()


@pytest.mark.parametrize(
    ("pixels", "labels", "classes", "message"),
    [
        (np.zeros((1, 2, 2, 1), np.float32), [0], "ab", "got float32"),
        ((1, 2, 2, 1), np.zeros(1, np.int64), "ab", "got int64"),
        ((2, 3, 4), [0, 1], "ab", r"expected pixels uint8 \[N, H, W, C\] .* got uint8 \[2, 3, 4\]"),
        ((2, 3, 4, 2), [0, 1], "ab", "C = 1 or 3"),
        ((2, 0, 4, 1), [0, 1], "ab", "images of at least a pixel"),
        ((2, 3, 4, 1), [0], "ab", r"expected labels int32 \[2\], one for each example, got"),
        ((2, 3, 4, 1), [0, 2], "ab", r"expected labels in 0\.\.1, .* got 0\.\.2"),
        ((2, 3, 4, 1), [-1, 0], "ab", r"got -1\.\.0"),
        (
            (2, 3, 4, 1),
            [0, 1],
            "ba",
            r"expected distinct classes in sorted .* \('b', 'a'\)",
        ),
        ((2, 3, 4, 1), [0, 1], "aa", "expected distinct classes"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(pixels, labels, classes, message):
    with pytest.raises(ValueError, match=message):
        pixels = pixels if isinstance(pixels, np.ndarray) else np.zeros(pixels, np.uint8)
        labels = labels if isinstance(labels, np.ndarray) else np.array(labels, np.int32)
        toy(pixels, labels, tuple(classes))
