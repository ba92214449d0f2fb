"""Batches of pictures: a function of the step, normalised, mixed in right proportion."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flax_linattn.checks import OptionError
from flax_linattn.data.augment import (
    DEIT,
    IMAGENET_MEAN,
    IMAGENET_STD,
    LIGHT,
    ImageBatches,
    Mix,
)

PLAIN = {"mean": 0.0, "std": 1 / 255}
"""Pixels as they are."""


def pictures(count=10, size=9, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(256, size=(count, size, size, channels), dtype=np.uint8)
    return SimpleNamespace(pixels=pixels, labels=rng.integers(4, size=count, dtype=np.int32))


def one_colour_a_class(count=11, classes=5):
    labels = np.arange(count, dtype=np.int32) % classes
    pixels = np.broadcast_to(
        (50 * labels).astype(np.uint8)[:, None, None, None], (count, 13, 17, 3)
    ).copy()
    return SimpleNamespace(pixels=pixels, labels=labels)


@pytest.mark.parametrize(
    ("mean", "std", "channels"),
    [(IMAGENET_MEAN, IMAGENET_STD, 3), (0.5, (0.2, 0.3, 0.4), 3), (0.1, 0.7, 1), ((0.1,), 1, 1)],
)
def test_normalised(mean, std, channels):
    images = pictures(channels=channels)
    batch = ImageBatches(images, 4, seed=None, mean=mean, std=std).batch(1)
    expected = (images.pixels[4:8].astype(np.float64) / 255 - mean) / np.asarray(std)
    assert batch["image"].dtype == np.float32
    assert batch["labels"].dtype == np.int32
    np.testing.assert_allclose(batch["image"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(batch["labels"], images.labels[4:8])


def test_every_example_once_an_epoch():
    images = pictures(10)
    images.labels = np.arange(10, dtype=np.int32)
    batches = ImageBatches(images, 4, augmentation=LIGHT, seed=3, **PLAIN)
    orders = []
    for epoch in range(2):
        steps = [batches.batch(3 * epoch + i) for i in range(3)]
        kept = [b["labels"][b["weight"] > 0] for b in steps]
        orders.append(np.concatenate(kept).tolist())
        assert [b["weight"].sum() for b in steps] == [4, 4, 2]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(10))
    assert orders[0] != orders[1]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(0, 2**40))
def test_batch_depends_on_the_step_alone(asked, seed):
    images = pictures()

    def make():
        return ImageBatches(
            images, 4, augmentation=DEIT, mix=Mix(), num_classes=4, seed=seed, **PLAIN
        )

    used, fresh = make(), make()
    used.batch(2)["image"][:] = 0
    for step in asked:
        one, other = used.batch(step), fresh.batch(step)
        assert list(one) == ["image", "labels", "weight", "targets"]
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_picture_changes_by_seed_epoch_and_example_alone():
    """Not by who else is in the batch."""
    images = pictures(6)
    images.labels = np.arange(6, dtype=np.int32)

    def seen(batch_size, epoch, seed=0):
        batches = ImageBatches(images, batch_size, augmentation=DEIT, seed=seed, **PLAIN)
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


@pytest.mark.parametrize("mix", [None, Mix()])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_rows_of_a_batch_are_those_of_the_whole(mix, parts):
    images = pictures(10)
    batches = ImageBatches(
        images, 2 * parts, augmentation=LIGHT, mix=mix, num_classes=4, seed=0, **PLAIN
    )
    for step in range(len(batches)):
        shares = [batches.batch(step, slice(2 * i, 2 * i + 2)) for i in range(parts)]
        for name, array in batches.batch(step).items():
            np.testing.assert_array_equal(np.concatenate([share[name] for share in shares]), array)


@pytest.mark.parametrize("mix", [Mix(mixup=0.0), Mix(cutmix=0.0), Mix(), Mix(probability=0.5)])
@pytest.mark.parametrize("batch_size", [4, 5, 12])
def test_targets_are_the_shares_of_what_is_seen(mix, batch_size):
    """Pictures of one colour a class: the mean colour is that of the target."""
    batches = ImageBatches(
        one_colour_a_class(), batch_size, mix=mix, num_classes=5, seed=0, **PLAIN
    )
    colours = 50.0 * np.arange(5)
    for step in range(12):
        batch = batches.batch(step)
        targets = batch["targets"].astype(np.float64)
        assert batch["targets"].dtype == np.float32
        np.testing.assert_allclose(targets.sum(1), 1, rtol=1e-6)
        seen = batch["image"].astype(np.float64).mean((1, 2))
        np.testing.assert_allclose(seen, np.repeat((targets @ colours)[:, None], 3, 1), atol=1e-3)
        # Only the two classes that are mixed, of rows that lie opposite.
        allowed = np.eye(5)[batch["labels"]] + np.eye(5)[batch["labels"][::-1]] > 0
        assert not np.any(targets[~allowed])


def drawn(mix, count=1500, height=20, width=30):
    rng = np.random.default_rng(0)
    return [mix.draw(rng, height, width) for _ in range(count)]


def test_mixup_shares_are_beta():
    shares, boxes = zip(*drawn(Mix(mixup=0.8, cutmix=0.0)), strict=True)
    assert {*boxes} == {None}
    assert stats.kstest(shares, stats.beta(0.8, 0.8).cdf).pvalue > 0.01


def test_cutmix_boxes():
    """About a uniform middle, of an area that is uniform before it is cut off at the border."""
    shares, boxes = zip(*drawn(Mix(mixup=0.0), height=2000, width=1000), strict=True)
    for share, (rows, columns) in zip(shares, boxes, strict=True):
        lost = (rows.stop - rows.start) * (columns.stop - columns.start)
        assert share == pytest.approx(1 - lost / 2e6)
        assert 0 <= rows.start <= rows.stop <= 2000
        assert 0 <= columns.start <= columns.stop <= 1000
    # Boxes that touch no border are as they were drawn: twice as high as wide.
    whole = [
        (r.stop - r.start, c.stop - c.start)
        for r, c in boxes
        if r.start > 0 and c.start > 0 and r.stop < 2000 and c.stop < 1000
    ]
    assert len(whole) > 100
    assert max(abs(h - 2 * w) for h, w in whole) <= 4


def test_how_often_each_way_is_taken():
    boxes = [box for _, box in drawn(Mix(switch=0.3))]
    assert stats.binomtest(sum(box is not None for box in boxes), 1500, 0.3).pvalue > 0.01
    shares = [share for share, _ in drawn(Mix(probability=0.4, cutmix=0.0))]
    assert stats.binomtest(sum(share < 1 for share in shares), 1500, 0.4).pvalue > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixup": -1.0}, "mixup must be at least 0"),
        ({"cutmix": float("inf")}, "cutmix must be at least 0"),
        ({"switch": 2.0}, "switch must be from 0 to 1"),
        ({"probability": -0.1}, "probability must be from 0 to 1"),
        ({"mixup": 0.0, "cutmix": 0.0}, "mixes nothing; give mix=None"),
    ],
)
def test_mix_refuses(options, message):
    with pytest.raises(OptionError, match=message):
        Mix(**options)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        ({"pixels": np.zeros((2, 3, 3), np.uint8)}, {}, r"uint8 \[N, H, W, C\].*got uint8 \[2, 3"),
        ({"pixels": np.zeros((10, 3, 3, 1))}, {}, "got float64"),
        ({"pixels": np.zeros((10, 3, 3, 2), np.uint8)}, {}, "1 or 3 channels"),
        ({"labels": np.zeros(3, np.int32)}, {}, "a label for each of 10 pictures"),
        ({}, {"batch_size": 0}, "batch_size of at least 1"),
        ({}, {"seed": -1}, "seed must be at least 0"),
        ({}, {"seed": None}, "take a seed, got None"),
        ({}, {"mix": Mix()}, "mix needs num_classes"),
        ({}, {"num_classes": 2}, "labels must be from 0 to 1"),
        ({}, {"std": 0.0}, "std must be positive"),
        ({}, {"mean": (0.1, 0.2)}, "mean must be one number, or one for each of 3 channels"),
        ({}, {"mean": float("nan")}, "mean must be one number"),
    ],
)
def test_refusals(images, options, message):
    given_images = SimpleNamespace(**(vars(pictures()) | images))
    good = {"batch_size": 4, "augmentation": LIGHT, "seed": 0, **PLAIN}
    with pytest.raises(ValueError, match=message):
        ImageBatches(given_images, **(good | options))


def test_a_negative_step_is_refused():
    batches = ImageBatches(pictures(), 4, seed=None, **PLAIN)
    with pytest.raises(ValueError, match="expected a step of at least 0, got -1"):
        batches.batch(-1)
