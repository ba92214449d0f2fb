"""Packed texts: every text stands in one row, with its label."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data.batching import Batches
from flax_linattn.data.texts import LabelledTexts, pack_texts

TEXTS = st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=20)


def toy(texts):
    labels = np.array([sum(text) % 3 for text in texts], np.int32)
    return LabelledTexts("toy", ("a", "b", "c"), labels, tuple(texts))


@given(TEXTS, st.integers(1, 40))
def test_every_text_stands_once_with_its_label(texts, length):
    whole = toy(texts)
    packed = pack_texts(whole, length)
    found = collections.Counter()
    for row in range(len(packed["tokens"])):
        mask, ids = packed["mask"][row], packed["segment_ids"][row]
        labels = packed["segment_labels"][row]
        count = 1 + int(ids[mask].max())
        assert (labels[:count] >= 0).all() and (labels[count:] == -1).all()
        for segment in range(count):
            tokens = packed["tokens"][row][mask & (ids == segment)]
            found[bytes(tokens.tolist()), int(labels[segment])] += 1
    assert found == collections.Counter(
        (text[:length], label) for text, label in zip(texts, whole.labels.tolist(), strict=True)
    )
    assert not packed["tokens"][~packed["mask"]].any()
    assert Batches(packed, 2, seed=0).batch(0)["tokens"].shape == (2, length)


def test_what_cannot_be_packed():
    with pytest.raises(ValueError, match="length must be at least 1"):
        pack_texts(toy([b"a"]), 0)
    with pytest.raises(ValueError, match="at least one"):
        pack_texts(toy([b"a"]).subset([]), 4)
