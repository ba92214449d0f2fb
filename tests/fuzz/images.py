"""Data sets of images: some files in a folder, or an archive."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.images import LabeledImages, load_images
from tests.data.images import samples
from tests.data.images.test_load_images import packed
from tests.fuzz.damage import corrupted
from tests.fuzz.subject import Case, Subject


class Images(Subject):
    """What ``load_images`` reads."""

    counts = (60, 8_000)
    errors = (DataFormatError,)
    seconds = 4.0
    longest = 1500

    def __init__(self, folder: Path) -> None:
        """A data set of every kind; those of image files in archives, too."""
        super().__init__(folder)
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
        self.paths = [*made, *archives, packed(made[1], "tar.gz")]
        self.damaged: tuple[Path, bytes] | None = None

    def samples(self) -> Iterator[Case]:
        return map(self.case, self.paths)

    def damage(self, draw: random.Random) -> Case:
        if self.damaged is not None:
            path, content = self.damaged
            path.write_bytes(content)
        path = draw.choice(self.paths)
        files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
        victim = draw.choice(files)
        self.damaged = victim, victim.read_bytes()
        victim.write_bytes(corrupted(victim.read_bytes(), draw))
        return self.case(path)._replace(note=str(victim))

    def case(self, path: Path) -> Case:
        return Case(path.name, path, lambda: check_valid(load_images(path)))

    def refusal(self, error: Exception, case: Case) -> str:
        assert str(error).startswith(str(case.path)) and " expected " in str(error), error
        assert not re.search("object at 0x", str(error)), error
        return super().refusal(error, case)


def check_valid(pair: tuple[LabeledImages, LabeledImages]) -> None:
    train, test = pair
    assert train.classes == test.classes and train.image_shape == test.image_shape
    assert train.num_examples and test.num_examples
    assert train.pixels.dtype == np.uint8 and len(train.labels) == train.num_examples
