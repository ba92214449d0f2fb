"""Images: what is read and drawn, scales, augmentation, what is refused."""

import numpy as np
import pytest

from flax_linattn import tasks
from flax_linattn.checks import OptionError
from flax_linattn.data.images import load_images
from flax_linattn.tasks.classify import ImageConfig, ImageSpec
from flax_linattn.tasks.classify.images import image_names
from tests.data.images.samples import write_image_folder
from tests.tasks.commands import SIZES

TASK = tasks.get_task("image")
DRAWN = {"epoch_size": 16, "validation_size": 8, "test_size": 8}

pytestmark = pytest.mark.usefixtures("no_figures")


def small(**options):
    drawn = {} if "folder" in options else DRAWN
    return ImageConfig.of(**(SIZES | drawn | {"warmup": 0.0, "epochs": 1} | options))


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    write_image_folder(folder, ("across", "down"), 10, 8)
    return folder


def test_images_are_scaled_by_the_training_part_alone(pictures):
    config = small(folder=pictures, validation_fraction=0.2)
    images = TASK.load(config)
    data_spec = TASK.describe(images, config)
    splits = images.splits(config, data_spec)
    rows = [splits.train.batch(step) for step in range(len(splits.train))]
    x = np.concatenate([row["image"][row["weight"] > 0] for row in rows])
    assert x.shape == (16, 8, 8, 3)
    assert np.allclose(x.mean(axis=(0, 1, 2)), 0, atol=1e-5)
    assert np.allclose(x.std(axis=(0, 1, 2)), 1, atol=1e-5)
    # The pixels of the file, by the numbers that the run keeps.
    _, test = load_images(pictures)
    expected = (test.pixels[:3] / 255 - np.array(data_spec.mean)) / np.array(data_spec.std)
    assert np.allclose(splits.test.batch(0)["image"][:3], expected, atol=1e-5)


def test_augmentation_is_of_training_alone(pictures):
    config = small(folder=pictures, augmentation="light")
    images = TASK.load(config)
    train, validation, test = images.splits(config, TASK.describe(images, config))
    for part, changes in ((train, True), (validation, False), (test, False)):
        epochs = [part.batch(i * len(part)) for i in (0, 1)]
        first, again = (np.sort(x["image"][x["weight"] > 0], axis=0) for x in epochs)
        assert np.array_equal(first, again) != changes


def test_drawn_images_are_those_of_the_options(pictures):
    config = small()
    images = TASK.load(config)
    data_spec = TASK.describe(images, config)
    assert data_spec.classes == ("apart", "joined") and data_spec.image_shape == (32, 32, 1)
    batch = images.splits(config, data_spec).test.batch(0)
    assert batch["image"].dtype == np.float32
    assert abs(batch["image"].mean()) < 0.2 and 0.7 < batch["image"].std() < 1.3


def test_runs_do_not_stream():
    with pytest.raises(OptionError, match="does not stream, because the model needs whole images"):
        TASK.stream(None, TASK.StreamOptions())


def test_problems_that_no_data_say():
    good = ImageSpec("a", ("x",), (8, 8, 3), (0.0,) * 3, (1.0,) * 3, "")
    good.check()
    for bad, message in [
        ({"image_shape": (8, 8)}, "image_shape must be height, width and channels"),
        ({"std": (1.0, 0.0, 1.0)}, "std must be positive"),
        ({"mean": (0.0,)}, "expected sequences of the same length"),
    ]:
        data_spec = ImageSpec.from_json({**good.to_json(), **bad})
        with pytest.raises(ValueError, match=message):
            data_spec.check()


def test_files_that_are_no_images_are_counted(tmp_path, capsys):
    for name in ("b.png", "deep/a.JPG", "c.txt", "deep/d.csv", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert image_names(tmp_path) == ["b.png", "deep/a.JPG"]
    assert capsys.readouterr().err == "note: files that are no images, left out: 2\n"
