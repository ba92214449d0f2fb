"""Stratified splits."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flax_linattn.data import japanese_vowels, stratified_split


def test_japanese_vowels_split_is_balanced():
    train, _ = japanese_vowels()
    kept, held_out = stratified_split(train.labels, 0.2, seed=0)
    assert np.bincount(train.labels[kept]).tolist() == [24] * 9
    assert np.bincount(train.labels[held_out]).tolist() == [6] * 9


@given(st.lists(st.integers(-2, 3), min_size=2, max_size=60), st.floats(0.01, 0.99), st.integers(0))
def test_split_is_a_stratified_partition(labels, fraction, seed):
    labels = np.array(labels)
    total = round(fraction * len(labels))
    counts = {label: int((labels == label).sum()) for label in set(labels.tolist())}
    assume(0 < total <= len(labels) - len(counts))
    train, validation = stratified_split(labels, fraction, seed)
    assert len(validation) == total
    assert sorted([*train, *validation]) == list(range(len(labels)))
    assert train.tolist() == sorted(train)
    assert validation.tolist() == sorted(validation)
    for label, count in counts.items():
        share = int((labels[validation] == label).sum())
        assert share < count  # one example at least stays for training
        assert share >= count * total // len(labels)
    again = stratified_split(labels, fraction, seed)
    assert [part.tolist() for part in again] == [train.tolist(), validation.tolist()]


def test_seeds_give_different_splits():
    labels = np.zeros(50, np.int32)
    one, other = (stratified_split(labels, 0.5, seed)[1].tolist() for seed in (0, 1))
    assert one != other


@pytest.mark.parametrize(
    ("labels", "fraction", "message"),
    [
        ([[0, 1]], 0.5, r"labels int \[N\], got int64 \[1, 2\]"),
        ([0.0, 1.0], 0.5, r"labels int \[N\], got float64 \[2\]"),
        ([0, 0], 0.0, "between 0 and 1, both excluded, got 0.0"),
        ([0, 0], 1.0, "both excluded, got 1.0"),
        ([0, 0], float("nan"), "both excluded, got nan"),
        ([0, 0, 0], 0.1, "1 to 2 validation examples.*got 0 "),
        ([0, 1, 2], 0.5, "more examples than classes, so that some can be held out, got 3 of 3"),
    ],
)
def test_refusals(labels, fraction, message):
    with pytest.raises(ValueError, match=message):
        stratified_split(labels, fraction, seed=0)


def test_many_classes_are_split_in_time(bounded):
    labels = np.repeat(np.arange(30_000), 40)
    with bounded():
        kept, held_out = stratified_split(labels, 0.2, 0)
    assert len(held_out) == 240_000 and len(np.unique(labels[kept])) == 30_000
