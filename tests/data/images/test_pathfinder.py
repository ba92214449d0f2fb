"""Pathfinder's tree as Long Range Arena released it."""

import numpy as np
import pytest
from PIL import Image

from flax_linattn.data.files import DataFormatError
from flax_linattn.data.images import load_pathfinder
from tests.data.images.test_load_images import packed


def write(folder, counts=(3, 2), size=32):
    """Files of metadata 0.npy, ... with so many images each, and the images' pixels."""
    rng, images, labels = np.random.default_rng(0), [], []
    (folder / "metadata").mkdir(parents=True)
    for number, count in enumerate(counts):
        (folder / "imgs" / f"{number}").mkdir(parents=True)
        rows = []
        for index in range(count):
            images.append(rng.integers(0, 256, (size, size, 1)).astype(np.uint8))
            labels.append(int(rng.integers(2)))
            name = f"sample_{index}.png"
            Image.fromarray(images[-1][..., 0]).save(folder / "imgs" / f"{number}" / name)
            rows.append(f"imgs/{number} {name} {index} {labels[-1]} 1.8 6 14 2.0\n")
        (folder / "metadata" / f"{number}.npy").write_text("".join(rows))
    return np.array(images), labels


def test_images_come_in_the_order_of_the_metadata(tmp_path):
    root = tmp_path / "pathfinder32"
    pixels, labels = write(root / "curv_contour_length_14", (1, 2, *[1] * 9, 1))  # 10.npy last
    write(root / "curv_baseline", (1,))
    write(root / "curv_contour_length_9", (2,))
    found = load_pathfinder(root)
    assert np.array_equal(found.pixels, pixels) and found.labels.tolist() == labels
    assert found.classes == ("apart", "joined") and found.image_shape == (32, 32, 1)
    assert found.pixels_as_tokens().shape == (13, 1024)
    assert found.name == "pathfinder32 hard" and found.notes == ()
    assert load_pathfinder(root, difficulty="easy").num_examples == 1
    assert load_pathfinder(root, difficulty="intermediate").num_examples == 2
    for path in (tmp_path, root / "curv_contour_length_14", packed(root, "tar.gz")):
        again = load_pathfinder(path)
        assert np.array_equal(again.pixels, pixels) and again.labels.tolist() == labels
    assert load_pathfinder(root, size=8).image_shape == (8, 8, 1)
    with pytest.raises(ValueError, match="difficulty must be one of easy, intermediate, hard"):
        load_pathfinder(root, difficulty="curv")


def test_empty_files_are_left_out_and_noted(tmp_path):
    pixels, labels = write(tmp_path / "curv_contour_length_14")
    (tmp_path / "curv_contour_length_14" / "imgs" / "0" / "sample_1.png").write_bytes(b"")
    found = load_pathfinder(tmp_path)
    assert np.array_equal(found.pixels, np.delete(pixels, 1, 0))
    assert found.labels.tolist() == [label for index, label in enumerate(labels) if index != 1]
    assert found.notes == ("1 empty image files are left out",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("imgs/0 sample_0.png 0\n", ":1: expected a folder, a file, a number and a label 0 or 1"),
        ("imgs/0 sample_0.png 0 2\n", ":1: expected a folder"),
        ("imgs/0 sample_0.png 0 1\n\n", ":2: expected a folder"),
        ("imgs/0 sample_9.png 0 1\n", ":1: expected the image 'imgs/0/sample_9.png'.* no such"),
        ("imgs/0 sample_0.png 0 1\n" * 2, ":2: .* got its name again"),
        ("../../etc passwd 0 1\n", ":1: .* got no such file"),
        ("", ":1: expected a line for each image, got none"),
        ("\x93NUMPY\x01\x00v\x00{'descr': '<U9'}\n", ":1: expected a folder, a file, a number"),
    ],
)
def test_damaged_metadata_is_named(text, message, tmp_path):
    write(tmp_path / "curv_contour_length_14", (1,))
    path = tmp_path / "curv_contour_length_14" / "metadata" / "0.npy"
    path.write_text(text)
    with pytest.raises(DataFormatError, match=f"0.npy{message}"):
        load_pathfinder(tmp_path)


def test_other_trees_are_refused(tmp_path):
    with pytest.raises(DataFormatError, match=r"curv_contour_length_14/metadata/0\.npy.* got none"):
        load_pathfinder(tmp_path)
    for name in "ab":
        write(tmp_path / name / "curv_contour_length_14", (1,))
    with pytest.raises(DataFormatError, match="got several: a/curv_contour_length_14/, b/"):
        load_pathfinder(tmp_path)
    assert load_pathfinder(tmp_path / "b").num_examples == 1
