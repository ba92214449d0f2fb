"""Packing: every sequence once, in one piece, in as few rows as best fit finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import data


@given(st.lists(st.integers(1, 12), min_size=1, max_size=40), st.integers(12, 20))
def test_every_sequence_is_there_once(lengths, length):
    sequences = [np.full((n, 2), i, np.float32) for i, n in enumerate(lengths)]
    packed = data.pack({"values": sequences, "tokens": [x[:, 0] for x in sequences]}, length)
    values, mask = packed.arrays["values"], packed.arrays["mask"]
    ids = packed.arrays["segment_ids"]
    assert mask.sum() == sum(lengths) and (packed.sequence >= 0).sum() == sum(lengths)
    np.testing.assert_array_equal(values[mask][:, 1], packed.sequence[mask])
    np.testing.assert_array_equal(packed.arrays["tokens"][mask], packed.sequence[mask])
    assert not values[~mask].any()
    for index, size in enumerate(lengths):
        rows, places = np.nonzero(packed.sequence == index)
        assert len(rows) == size and len(set(rows)) == 1
        assert places.tolist() == list(range(places[0], places[0] + size))
        assert len(set(ids[rows, places])) == 1
    for row, sequence in zip(ids, packed.sequence, strict=True):
        assert len(set(row[sequence >= 0])) == len(set(sequence[sequence >= 0]))
    # No two rows could have been one, and a lower bound of bins.
    filled = np.sort(mask.sum(axis=1))
    assert len(filled) < 2 or filled[0] + filled[1] > length
    assert packed.efficiency == pytest.approx(sum(lengths) / mask.size)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": []}, "at least one"),
        ({"x": [np.ones(2)], "y": []}, "same length, got 1 of x, 0 of y"),
        ({"x": [np.ones(2)], "y": [np.ones(3)]}, "2 values in y of sequence 0, .* got 3"),
        ({"x": [np.ones(2), np.ones(5)]}, "sequence 1 has 5 tokens"),
        ({"x": [np.ones(0)]}, "sequence 0 has no tokens"),
        ({"x": [np.ones(2), np.ones(2, int)]}, "x of sequence 1 as that of the first"),
        ({"x": [np.ones((2, 1)), np.ones((2, 2))]}, "x of sequence 1 as that of the first"),
        ({"mask": [np.ones(2)]}, "the name 'mask' is reserved"),
    ],
)
def test_what_cannot_be_packed_is_refused(arrays, message):
    with pytest.raises(ValueError, match=message):
        data.pack(arrays, 4)
