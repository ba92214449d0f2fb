"""Real files of images: their numbers, their classes, and images as Pillow alone reads them."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from flax_linattn.data.images import load_images
from tests.data.images.samples import CIFAR10

pytestmark = pytest.mark.slow


def some_of(path, wanted):
    """Files of an archive, by ``tarfile`` alone."""
    with tarfile.open(path) as archive:
        return {
            m.name: archive.extractfile(m).read() for m in archive if m.isfile() and wanted(m.name)
        }


def test_cifar10_of_jpeg_files(data_dir):
    path = data_dir / "cifar10" / "cifar10_jpeg.tar.xz"
    train, test = load_images(path)
    assert train.pixels.shape == (50_000, 32, 32, 3) and test.pixels.shape == (10_000, 32, 32, 3)
    assert train.classes == test.classes == CIFAR10
    assert np.bincount(train.labels).tolist() == [5000] * 10
    assert np.bincount(test.labels).tolist() == [1000] * 10
    assert train.notes == test.notes == ("images are JPEG files",)
    files = some_of(path, lambda name: name.startswith("test/") and name.endswith("7.jpg"))
    assert len(files) == 1000
    names = [f"test/{name}/{index:04}.jpg" for name in CIFAR10 for index in range(1000)]
    for row, name in enumerate(names):
        if name in files:
            image = np.asarray(Image.open(io.BytesIO(files[name])).convert("RGB"))
            assert np.array_equal(test.pixels[row], image), name
    # Means of the official binaries, 125.3, 123.0 and 113.9: what is lossy is near.
    assert np.abs(train.pixels.mean((0, 1, 2)) - [125.3, 123.0, 113.9]).max() < 0.5
    assert abs(train.gray().pixels.mean() - 122.6) < 0.5


def test_tiny_imagenet(data_dir):
    path = data_dir / "tiny_imagenet_subset" / "tiny_imagenet_25classes.tar.xz"
    train, test = load_images(path)
    assert train.pixels.shape == (12_500, 64, 64, 3) and test.pixels.shape == (1_250, 64, 64, 3)
    assert np.bincount(train.labels).tolist() == [500] * 25
    assert np.bincount(test.labels).tolist() == [50] * 25
    assert train.classes[0] == "n01641577" and train.classes == tuple(sorted(train.classes))
    assert "tested on the images of val, because the images of test have no labels" in train.notes
    files = some_of(path, lambda name: "/val/" in name)
    rows = files.pop("tiny-imagenet-200/val/val_annotations.txt").decode().splitlines()
    label_of = {row.split("\t")[0]: row.split("\t")[1] for row in rows}
    order = sorted(label_of, key=lambda name: (label_of[name], name))
    assert [test.classes[label] for label in test.labels] == [label_of[name] for name in order]
    for row in range(0, 1250, 50):
        content = files[f"tiny-imagenet-200/val/images/{order[row]}"]
        image = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        assert np.array_equal(test.pixels[row], image)
