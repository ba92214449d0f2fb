"""Crops, flips and noise, against NumPy; presets."""

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flax_linattn.checks import OptionError
from flax_linattn.data.augment import DEIT, LIGHT, NONE, Augmentation, ImageBatches

pytest.importorskip("PIL")


def picture(height=12, width=16, channels=3, seed=0):
    shape = (height, width, channels)
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def cubic(t):
    """Keys's kernel with a = -1/2."""
    t = np.abs(t)
    near = 1.5 * t**3 - 2.5 * t**2 + 1
    far = -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
    return np.where(t < 1, near, np.where(t < 2, far, 0.0))


def resampling(length, target):
    """Weights [target, length] of bicubic interpolation, widened where it makes smaller."""
    scale = length / target
    middles = (np.arange(target) + 0.5) * scale
    weights = cubic((np.arange(length) + 0.5 - middles[:, None]) / max(scale, 1))
    return weights / weights.sum(1, keepdims=True)


def resized(pixels, size):
    height, width, _ = pixels.shape
    rows, columns = resampling(height, size), resampling(width, size)
    across = np.clip(np.einsum("sw,hwc->hsc", columns, pixels.astype(np.float64)), 0, 255)
    return np.clip(np.einsum("sh,hwc->swc", rows, across), 0, 255)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [5, 12, 20])
def test_a_resized_crop_is_a_rectangle_by_bicubic_interpolation(channels, size):
    """Smaller, and larger: which rectangle it is, is found by looking at all of them."""
    pixels = picture(12, 12, channels)
    crop = Augmentation(crop="resized", size=size, scale=(0.25, 0.25), ratio=(1, 1))
    for seed in range(5):
        told = crop(pixels, np.random.default_rng(seed))
        assert told.shape == (size, size, channels)
        errors = [
            np.max(np.abs(told - resized(pixels[y : y + 6, x : x + 6], size)))
            for y in range(7)
            for x in range(7)
        ]
        # Half a level across, which the weights down make 1.25 times as much, and half again.
        assert sum(error <= 1.125 for error in errors) == 1


def rectangles(augmentation, width, height, count=2000):
    rng = np.random.default_rng(0)
    drawn = [augmentation._rectangle(width, height, rng) for _ in range(count)]
    return np.array(drawn).T


def test_rectangles_are_those_of_inception():
    """Area uniform, logarithm of the ratio uniform, place uniform."""
    crop = Augmentation(crop="resized", scale=(0.08, 0.5))
    left, top, w, h = rectangles(crop, 4000, 4000)
    areas = w * h / 4000**2
    assert stats.kstest(areas, stats.uniform(0.08, 0.42).cdf).pvalue > 0.01
    ratios = np.log(w / h) / np.log(4 / 3)
    assert stats.kstest(ratios, stats.uniform(-1, 2).cdf).pvalue > 0.01
    for place in (left / (4000 - w), top / (4000 - h)):
        assert stats.kstest(place, stats.uniform.cdf).pvalue > 0.01


@pytest.mark.parametrize(("width", "height"), [(40, 2), (2, 40), (1, 1)])
def test_rectangles_of_narrow_pictures_fit(width, height):
    left, top, w, h = rectangles(DEIT, width, height, 100)
    assert np.all((left >= 0) & (w > 0) & (left + w <= width))
    assert np.all((top >= 0) & (h > 0) & (top + h <= height))


def test_a_picture_that_no_rectangle_fits_gives_its_middle():
    crop = Augmentation(crop="resized", scale=(1.0, 1.0), ratio=(0.5, 2.0))
    left, top, w, h = rectangles(crop, 100, 10, 20)
    assert {*left} == {40}
    assert {*top} == {0}
    assert {*w} == {20}
    assert {*h} == {10}


def test_a_padded_crop_is_a_window():
    pixels = picture()
    padded = np.pad(pixels, ((4, 4), (4, 4), (0, 0)))
    windows = {padded[y : y + 12, x : x + 16].tobytes(): (y, x) for y in range(9) for x in range(9)}
    crop = Augmentation(crop="padded")
    seen = [windows[crop(pixels, np.random.default_rng(i)).tobytes()] for i in range(400)]
    for place in zip(*seen, strict=True):
        assert stats.chisquare(np.bincount(place, minlength=9)).pvalue > 0.01


@pytest.mark.parametrize("other", [{}, {"operations": 1, "magnitude": 0.0}])
def test_flips(other, monkeypatch):
    """By NumPy, and by Pillow where it has the picture in hand."""
    if other:
        monkeypatch.setattr(
            "flax_linattn.data.augment.augmentation.rand_augment", lambda picture, *_, **__: picture
        )
    pixels = picture()
    flip = Augmentation(flip=0.3, **other)
    rng = np.random.default_rng(0)
    told = [flip(pixels, rng) for _ in range(300)]
    flipped = [np.array_equal(one, pixels[:, ::-1]) for one in told]
    kept = [np.array_equal(one, pixels) for one in told]
    assert sum(flipped) + sum(kept) == 300
    assert stats.binomtest(sum(flipped), 300, 0.3).pvalue > 0.01


def test_erased_rectangles():
    """Of 2 to 33 % of the picture, of noise; every fourth picture has one."""
    pixels = np.full((60, 60, 3), 7, np.uint8)
    erase = Augmentation(erase=0.25, fill=120)
    noise, erased, count = [], 0, 600
    for i in range(count):
        changed = erase(pixels, np.random.default_rng(i)) != 7
        if not changed.any():
            continue
        erased += 1
        y, x = np.flatnonzero(changed.any((1, 2))), np.flatnonzero(changed.any((0, 2)))
        height, width = np.ptp(y) + 1, np.ptp(x) + 1
        assert 0.015 < height * width / 3600 < 0.35
        assert 0.27 < height / width < 3.7
        part = erase(pixels, np.random.default_rng(i))[y[0] : y[-1] + 1, x[0] : x[-1] + 1]
        noise.append(part.ravel()[:200].astype(float))
    assert stats.binomtest(erased, count, 0.25).pvalue > 0.01
    values = np.concatenate(noise)
    assert abs(values.mean() - 120) < 2
    assert abs(values.std() - 58) < 3  # less what is cut off
    assert np.all(pixels == 7)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([1, 3]),
    st.sampled_from(["none", "resized", "padded"]),
    st.sampled_from([None, 1, 7]),
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
)
def test_any_picture_gives_one_of_the_size(height, width, channels, crop, size, count, seed):
    size = size if crop == "resized" else None
    augmentation = Augmentation(crop=crop, size=size, flip=0.5, operations=count, erase=0.5)
    pixels = picture(height, width, channels, seed)
    before = pixels.copy()
    told, again = (augmentation(pixels, np.random.default_rng(seed)) for _ in range(2))
    assert told.dtype == np.uint8
    assert told.shape == (*augmentation.shape(height, width), channels)
    np.testing.assert_array_equal(told, again)
    np.testing.assert_array_equal(pixels, before)


def test_presets():
    assert (DEIT.crop, DEIT.flip, DEIT.operations, DEIT.erase) == ("resized", 0.5, 2, 0.25)
    assert (DEIT.scale, DEIT.magnitude, DEIT.magnitude_std) == ((0.08, 1.0), 9.0, 0.5)
    assert (LIGHT.crop, LIGHT.padding, LIGHT.flip) == ("padded", 4, 0.5)
    assert not NONE.is_random
    for field in ("crop", "flip", "operations", "erase"):
        assert dataclasses.replace(NONE, **{field: getattr(DEIT, field)}).is_random


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "resize"}, "crop must be one of none, resized, padded, got 'resize'"),
        ({"size": 8}, 'size is that of crop="resized", got size=8'),
        ({"crop": "resized", "size": 0}, "size must be at least 1, got 0"),
        ({"scale": (0.0, 1.0)}, "scale must rise from above 0"),
        ({"scale": (0.5, 1.5)}, "scale must rise"),
        ({"ratio": (2.0, 1.0)}, "ratio must rise"),
        ({"padding": -1}, "padding must be at least 0"),
        ({"flip": 1.5}, "flip must be from 0 to 1, got"),
        ({"erase": -0.1}, "erase must be from 0 to 1"),
        ({"operations": -1}, "operations must be at least 0"),
        ({"magnitude": 11.0}, "magnitude must be from 0 to 10"),
        ({"magnitude_std": -1.0}, "magnitude_std must be at least 0"),
        ({"fill": 256}, "fill must be at most 255"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(OptionError, match=message):
        Augmentation(**options)


def test_without_pillow_it_says_so_before_the_first_batch(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    pixels, labels = np.zeros((2, 8, 8, 3), np.uint8), np.zeros(2, np.int32)
    images = SimpleNamespace(pixels=pixels, labels=labels)
    how = {"seed": 0, "mean": 0.5, "std": 0.25}
    plain = Augmentation(crop="padded", flip=0.5, erase=0.1)
    assert ImageBatches(images, 2, augmentation=plain, **how).batch(0)["image"].shape == (
        2,
        8,
        8,
        3,
    )
    with pytest.raises(ValueError, match=r"flax-linattn\[images\]"):
        ImageBatches(images, 2, augmentation=Augmentation(operations=1), **how)
    with pytest.raises(ValueError, match=r"flax-linattn\[images\]"):
        Augmentation(operations=1)(pixels[0], np.random.default_rng(0))
