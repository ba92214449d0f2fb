"""Packed texts: every text stands in one row, with its label."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data.texts import LabelledTexts, PackedTextBatches

TEXTS = st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=20)


def toy(texts):
    labels = np.array([sum(text) % 3 for text in texts], np.int32)
    return LabelledTexts("toy", ("a", "b", "c"), labels, tuple(texts))


@given(TEXTS, st.integers(1, 40))
def test_every_text_stands_once_with_its_label(texts, length):
    whole = toy(texts)
    batches = PackedTextBatches(whole, 2, length, seed=0)
    found = collections.Counter()
    for step in range(len(batches)):
        batch = batches.batch(step)
        assert batch["tokens"].shape == (2, length) and not batch["tokens"][~batch["mask"]].any()
        for row, end in zip(*np.nonzero(batch["weight"]), strict=True):
            own = batch["segment_ids"][row] == batch["segment_ids"][row, end]
            own &= batch["mask"][row]
            assert np.flatnonzero(own)[-1] == end
            (label,) = {*batch["labels"][row][own].tolist()}
            found[bytes(batch["tokens"][row][own].tolist()), label] += 1
    assert found == collections.Counter(
        (text[:length], label) for text, label in zip(texts, whole.labels.tolist(), strict=True)
    )


def test_what_cannot_be_packed():
    with pytest.raises(ValueError, match="length must be at least 1"):
        PackedTextBatches(toy([b"a"]), 1, 0, seed=0)
    with pytest.raises(ValueError, match="at least one"):
        PackedTextBatches(toy([b"a"]).subset([]), 1, 4, seed=0)
