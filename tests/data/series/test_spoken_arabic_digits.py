"""Spoken Arabic Digits' original text."""

import lzma

import numpy as np
import pytest

from flax_linattn import data
from flax_linattn.data import DataFormatError
from flax_linattn.data.series import spoken_arabic_digits


def text(count, frames=2):
    line = " ".join(["0.5"] * 13)
    return "".join("            \n" + f"{line}\n" * frames for _ in range(count))


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(spoken_arabic_digits, "FRAMES", {30: 60, 20: 40})


def test_labels_are_told_by_the_order(few, tmp_path):
    path = tmp_path / "Test_Arabic_Digit.txt.xz"
    with lzma.open(path, "wt") as file:
        file.write(text(20))
    dataset = data.load_dataset(path)
    assert dataset.labels.tolist() == np.repeat(np.arange(10), 2).tolist()
    assert dataset.lengths.tolist() == [2] * 20 and dataset.num_channels == 13


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            text(19),
            r"expected 30 blocks of 60 lines \(training\) or 20 of 40 \(test\).*got 19 of 38",
        ),
        (text(20)[: -len(text(1, 1)) + 13], "got 20 of 39; the file is cut short"),
        (text(20)[:-2], "got 20 of 40 and none; the file is cut short"),
        (text(20)[:-5], r"\.txt:60: expected 13 finite numbers"),
        (text(20).replace("0.5", "x", 1), r"\.txt:2: expected 13 finite numbers"),
        ("", "got 0"),
    ],
)
def test_damage_is_named(few, tmp_path, content, message):
    path = tmp_path / "Train_Arabic_Digit.txt"
    path.write_text(content)
    with pytest.raises(DataFormatError, match=message):
        data.load_dataset(path)


@pytest.mark.slow
def test_the_original_has_its_published_counts(data_dir):
    folder = data_dir / "uea" / "SpokenArabicDigits"
    train = data.load_dataset(folder / "Train_Arabic_Digit.txt.xz")
    test = data.load_dataset(folder / "Test_Arabic_Digit.txt.xz")
    assert (train.num_examples, test.num_examples) == (6600, 2200)
    assert train.lengths.max() == 93 and train.lengths.min() == 4
