"""Labeled images and their batches: gray against Pillow, normalized, shifted and flipped."""

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from flax_linattn.data.images import ImageBatches, LabeledImages, shift_and_flip

PLAIN = {"mean": 0.0, "std": 1 / 255}
"""Pixels as they are."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_images(count=10, channels=3, labels=None):
    rng = np.random.default_rng(0)
    pixels = rng.integers(256, size=(count, 9, 9, channels), dtype=np.uint8)
    labels = np.arange(count, dtype=np.int32) if labels is None else labels
    return LabeledImages("toy", tuple(map(str, range(count))), labels, pixels)


@pytest.mark.parametrize(
    ("mean", "std", "channels"),
    [(IMAGENET_MEAN, IMAGENET_STD, 3), (0.5, (0.2, 0.3, 0.4), 3), (0.1, 0.7, 1), ((0.1,), 1, 1)],
)
def test_normalized(mean, std, channels):
    images = make_images(channels=channels)
    batch = ImageBatches(images, 4, seed=None, mean=mean, std=std).batch(1)
    expected = (images.pixels[4:8].astype(np.float64) / 255 - mean) / np.asarray(std)
    assert batch["image"].dtype == np.float32
    assert batch["labels"].dtype == np.int32
    np.testing.assert_allclose(batch["image"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(batch["labels"], images.labels[4:8])


def test_an_image_changes_by_seed_epoch_and_example_alone():
    """Not by who else is in the batch."""
    images = make_images(6)

    def seen(batch_size, epoch, seed=0):
        batches = ImageBatches(images, batch_size, augmentation=shift_and_flip, seed=seed, **PLAIN)
        found = {}
        for position in range(len(batches)):
            batch = batches.batch(epoch * len(batches) + position)
            for label, image in zip(batch["labels"].tolist(), batch["image"], strict=True):
                found.setdefault(label, image.tobytes())
                assert found[label] == image.tobytes()  # filler is a copy
        return found

    assert seen(1, 2) == seen(4, 2) == seen(6, 2)
    for other in (seen(4, 3), seen(4, 2, seed=1)):
        assert all(other[i] != image for i, image in seen(4, 2).items())
    assert len(set(seen(4, 2).values())) == 6


def test_shifts_are_windows_and_every_other_one_is_flipped():
    rng = np.random.default_rng(0)
    image = rng.integers(256, size=(12, 16, 3), dtype=np.uint8)
    before = image.copy()
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
    windows = {}
    for y in range(9):
        for x in range(9):
            window = padded[y : y + 12, x : x + 16]
            windows[window.tobytes()] = y, x, 0
            windows[window[:, ::-1].tobytes()] = y, x, 1
    changed = [shift_and_flip(image, np.random.default_rng(i)) for i in range(400)]
    top, left, flipped = zip(*[windows[one.tobytes()] for one in changed], strict=True)
    for place in (top, left):
        assert stats.chisquare(np.bincount(place, minlength=9)).pvalue > 0.01
    assert stats.binomtest(sum(flipped), 400, 0.5).pvalue > 0.01
    np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": None}, "needs a seed, got None"),
        ({"std": 0.0}, "std must be positive"),
        ({"mean": (0.1, 0.2)}, "mean must be one number, or one for each of 3 channels"),
        ({"mean": float("nan")}, "mean must be one number"),
    ],
)
def test_refusals(options, message):
    good = {"batch_size": 4, "augmentation": shift_and_flip, "seed": 0, **PLAIN}
    with pytest.raises(ValueError, match=message):
        ImageBatches(make_images(), **(good | options))


def toy(pixels, labels=None, classes=("a", "b")):
    labels = np.zeros(len(pixels), np.int32) if labels is None else labels
    return LabeledImages("toy", classes, labels, pixels)


def test_gray_is_that_of_pillow():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (3, 200, 301, 3)).astype(np.uint8)
    gray = toy(pixels).gray()
    for image, found in zip(pixels, gray.pixels, strict=True):
        assert np.array_equal(np.asarray(Image.fromarray(image).convert("L")), found[..., 0])
    assert gray.gray() is gray and gray.image_shape == (200, 301, 1)


def test_pixels_as_tokens_go_row_by_row():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4, 1)
    tokens = toy(pixels).pixels_as_tokens()
    assert tokens.tolist() == [list(range(12)), list(range(12, 24))]
    with pytest.raises(ValueError, match=r"expected gray images.* got 3 channels; call gray"):
        toy(np.zeros((2, 3, 4, 3), np.uint8)).pixels_as_tokens()


@pytest.mark.parametrize(
    ("pixels", "labels", "classes", "message"),
    [
        (np.zeros((1, 2, 2, 1), np.float32), [0], "ab", "got float32"),
        ((1, 2, 2, 1), np.zeros(1, np.int64), "ab", "got int64"),
        ((2, 3, 4), [0, 1], "ab", r"expected pixels uint8 \[N, H, W, C\] .* got uint8 \[2, 3, 4\]"),
        ((2, 3, 4, 2), [0, 1], "ab", "C = 1 or 3"),
        ((2, 0, 4, 1), [0, 1], "ab", "images of at least one pixel"),
        ((2, 3, 4, 1), [0], "ab", r"expected labels int32 \[2\], one per example, got"),
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
