"""The embedded sets are the official ones, and real sets elsewhere load with their counts."""

import numpy as np
import pytest

from flax_linattn.data import japanese_vowels, load_dataset


def test_japanese_vowels():
    train, test = japanese_vowels()
    assert (train.name, test.name) == ("JapaneseVowels", "JapaneseVowels")
    assert (train.num_examples, test.num_examples) == (270, 370)
    assert train.num_channels == test.num_channels == 12
    assert train.classes == test.classes == tuple("123456789")
    lengths = np.concatenate([train.lengths, test.lengths])
    assert (lengths.min(), lengths.max()) == (7, 29)
    assert np.bincount(train.labels).tolist() == [30] * 9
    # Per speaker, as the UCI repository's description has it.
    assert np.bincount(test.labels).tolist() == [31, 35, 88, 44, 29, 24, 40, 50, 29]
    assert train.series[0][0, :2].tolist() == [1.860936, -0.207383]
    assert not any(np.isnan(values).any() for values in train.series + test.series)


@pytest.mark.parametrize(
    ("name", "counts", "channels", "length", "classes"),
    [
        ("BasicMotions", (40, 40), 6, 100, 4),
        ("UWaveGestureLibrary", (120, 320), 3, 315, 8),
    ],
)
def test_real_sets_have_their_published_counts(data_dir, name, counts, channels, length, classes):
    train, test = (
        load_dataset(data_dir / "uea" / name / f"{name}_{part}.ts.gz") for part in ("TRAIN", "TEST")
    )
    assert (train.num_examples, test.num_examples) == counts
    for dataset in (train, test.with_classes(train.classes)):
        assert dataset.num_channels == channels
        assert set(dataset.lengths.tolist()) == {length}
        assert len(dataset.classes) == classes == len(set(dataset.labels.tolist()))
