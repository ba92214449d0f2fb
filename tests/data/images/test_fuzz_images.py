"""Damaged files of images: each is refused with a message that names it, or is valid.

``python -m tests.data.images.test_fuzz_images 10000 SEED`` counts what came of so many.
"""

import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from flax_linattn.data.files import DataFormatError
from flax_linattn.data.images import LabelledImages, load_images
from tests.data.images import samples
from tests.data.images.test_load_images import packed
from tests.data.test_fuzz_files import mutated

SECONDS = 4.0
"""Of a core, for one data set; most take a hundredth."""


def whole(folder: Path) -> list[Path]:
    """A data set of every kind; those of image files in archives too."""
    made = [
        samples.write_cifar10(folder / "binary", 1),
        samples.write_cifar10(folder / "python", 1, "python"),
        samples.write_idx(folder / "idx", 10, 8),
        samples.write_idx(folder / "idx_gz", 10, 8, zipped=True),
        samples.write_image_folder(folder / "png", per_class=1, size=8),
        samples.write_image_folder(folder / "jpg", per_class=1, size=8, suffix="jpg"),
        samples.write_tiny_imagenet(folder / "tiny", per_class=1),
    ]
    archives = [packed(made[4], kind) for kind in ("tar", "tar.gz", "tar.xz", "zip")]
    return [*made, *archives, packed(made[1], "tar.gz")]


def damage(content: bytes, draw: random.Random) -> bytes:
    """Some bytes of another value, or pieces put in, taken out or doubled."""
    for _ in range(draw.randint(1, 3)):
        if draw.random() < 0.4:
            content = mutated(content, draw)
        elif content:
            some = bytearray(content)
            # Headers and ends are short: there damage says more.
            at = draw.choice((draw.randrange(len(some)), draw.randrange(min(200, len(some)))))
            some[at] = draw.choice((0, 1, 255, some[at] ^ 1 << draw.randrange(8)))
            content = bytes(some)
    return content


def check_valid(pair: tuple[LabelledImages, LabelledImages]) -> None:
    train, test = pair
    assert train.classes == test.classes and train.image_shape == test.image_shape
    assert train.num_examples and test.num_examples
    assert train.pixels.dtype == np.uint8 and len(train.labels) == train.num_examples


def outcome(path: Path) -> str:
    """What became of a data set; anything but a valid one or an error that names it fails."""
    begin = time.process_time()
    try:
        check_valid(load_images(path))
        found = "valid"
    except DataFormatError as error:
        assert str(error).startswith(str(path)), error
        assert " expected " in str(error) and not re.search("object at 0x", str(error)), error
        assert len(str(error)) < 6 * len(str(path)) + 1500, error
        found = "refused"
    assert time.process_time() - begin < SECONDS
    return found


def fuzz(count: int, seed: int, folder: Path) -> Counter[tuple[str, str]]:
    """What became of so many data sets, by kind and outcome."""
    draw, counts = random.Random(seed), Counter[tuple[str, str]]()
    kept = whole(folder)
    for index in range(count):
        path = draw.choice(kept)
        files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
        victim = draw.choice(files)
        content = victim.read_bytes()
        victim.write_bytes(damage(content, draw))
        try:
            counts[path.name, outcome(path)] += 1
        except BaseException as error:
            shutil.copy(victim, folder / "victim")
            error.add_note(f"file {index} of seed {seed}: {victim}, kept as {folder / 'victim'}")
            raise
        victim.write_bytes(content)
    return counts


@pytest.mark.parametrize(
    ("count", "seed"), [(60, 0), pytest.param(8_000, 1, marks=pytest.mark.slow)]
)
def test_damaged_files_are_refused_or_valid(count, seed, tmp_path):
    counts = fuzz(count, seed, tmp_path)
    assert {found for _, found in counts} == {"refused", "valid"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(int(sys.argv[1]), int(sys.argv[2]), Path(folder))
    for (name, what), number in sorted(found.items()):
        print(f"{name:<20}{what:<12}{number:>6}")
