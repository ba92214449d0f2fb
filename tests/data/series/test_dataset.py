"""TimeSeriesDataset: its checks, subsets, and labels over another set's classes."""

import dataclasses

import numpy as np
import pytest

from flax_linattn.data import TimeSeriesDataset


def toy(**changes):
    parts = {
        "name": "toy",
        "series": tuple(np.full((length, 2), float(length)) for length in (1, 2, 3)),
        "labels": np.array([2, 0, 2], np.int32),
        "classes": ("a", "b", "c"),
        "channels": ("x", "y"),
    }
    return TimeSeriesDataset(**(parts | changes))


def test_properties():
    dataset = toy()
    assert (dataset.num_examples, dataset.num_channels) == (3, 2)
    assert dataset.lengths.tolist() == [1, 2, 3]
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset.name = "other"


@pytest.mark.parametrize("indices", [[2, 0], np.array([-1, 0])], ids=["list", "array"])
def test_subset_by_index(indices):
    part = toy().subset(indices)
    assert part.lengths.tolist() == [3, 1]
    assert part.labels.tolist() == [2, 2]
    assert part.classes == ("a", "b", "c")


def test_subset_by_mask_and_out_of_range():
    assert toy().subset(np.array([False, True, False])).labels.tolist() == [0]
    with pytest.raises(IndexError, match="out of bounds"):
        toy().subset([3])


def test_with_classes_indexes_the_other_list():
    moved = toy().with_classes(("0", "a", "c"))  # no example has label "b"
    assert moved.labels.tolist() == [2, 1, 2]
    assert moved.labels.dtype == np.int32
    assert moved.classes == ("0", "a", "c")


def test_classes_may_stand_in_the_order_of_text_or_of_numbers():
    """Runs of before have the former."""
    for classes in (("1", "10", "2"), ("1", "2", "10")):
        moved = toy(classes=("1", "2", "10")).with_classes(classes)
        assert [moved.classes[label] for label in moved.labels] == ["10", "1", "10"]


def test_with_classes_names_unknown_labels_and_both_class_lists():
    with pytest.raises(ValueError, match="toy: expected labels among the classes") as caught:
        toy().with_classes(("a", "b"))
    for part in ["('a', 'b'), got 'c' (", "('a', 'b', 'c')", "same problem"]:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.array([0, 1, 2])}, r"labels int32 \[3\].*int64 \[3\]"),
        ({"labels": np.zeros(2, np.int32)}, r"one for each example, got int32 \[2\]"),
        ({"labels": np.array([0, 1, 3], np.int32)}, r"labels in 0\.\.2.*0\.\.3"),
        ({"labels": np.array([0, -1, 2], np.int32)}, r"labels in 0\.\.2.*-1\.\.2"),
        ({"classes": ("b", "a", "c")}, "classes in sorted order"),
        ({"classes": ("a", "a", "c")}, "distinct classes"),
        ({"channels": ("x",)}, r"series 0 as float64 \[length, 1\], got float64 \[1, 2\]"),
        ({"series": (np.zeros((0, 2)),) * 3}, r"got float64 \[0, 2\]"),
        ({"series": (np.zeros((1, 2), np.float32),) * 3}, r"got float32 \[1, 2\]"),
        ({"series": (np.zeros(2),) * 3}, r"got float64 \[2\]; time comes first"),
    ],
)
def test_refuses_parts_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        toy(**changes)
