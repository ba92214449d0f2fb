"""Batches of bytes: against the texts themselves, pure functions of the step."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flax_linattn.data.texts import (
    LabeledTexts,
    PackedTextBatches,
    TextBatches,
    taylorshift_bytes,
)

ALPHABET = bytes(range(1, 256))


def toy(lengths):
    """Texts in which each byte tells its place, of labels in turn."""
    texts = tuple((ALPHABET * 4)[:length] for length in lengths)
    return LabeledTexts("toy", ("a", "b"), (np.arange(len(texts)) % 2).astype(np.int32), texts)


def rows(batches, epoch=0):
    """The real rows of an epoch: text, mask and label."""
    for step in range(len(batches)):
        batch = batches.batch(epoch * len(batches) + step)
        for row in np.flatnonzero(batch["weight"]):
            yield {name: batch[name][row] for name in ("tokens", "mask", "labels")}


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(LENGTHS, st.integers(1, 5), st.integers(1, 45), st.sampled_from([None, 0, 7]))
def test_every_text_comes_once_in_an_epoch(lengths, batch_size, max_length, seed):
    texts = toy(lengths)
    batches = TextBatches(texts, batch_size, max_length=max_length, seed=seed)
    for epoch in range(2):
        found = collections.Counter()
        for row in rows(batches, epoch):
            assert row["tokens"].shape == row["mask"].shape == (max_length,)
            size = int(row["mask"].sum())
            assert row["mask"][:size].all() and not row["tokens"][size:].any()
            found[bytes(row["tokens"][:size].tolist()), int(row["labels"])] += 1
        expected = zip(texts.texts, texts.labels.tolist(), strict=True)
        assert found == collections.Counter((text[:max_length], label) for text, label in expected)
    batch = batches.batch(0)
    assert {name: array.dtype for name, array in batch.items()} == {
        "tokens": np.int32, "mask": np.bool_, "labels": np.int32, "weight": np.float32
    }  # fmt: skip


def test_a_random_crop_begins_anywhere_as_often():
    texts = toy([12, 8, 3])
    begins = collections.Counter()
    for seed in range(40):
        batches = TextBatches(texts, 3, max_length=8, seed=seed, crop="random")
        for epoch in range(25):
            for row in rows(batches, epoch):
                tokens = row["tokens"][row["mask"]]
                assert (np.diff(tokens) == 1).all()  # one piece
                if len(tokens) == 3:
                    assert tokens[0] == 1
                else:
                    begins[int(tokens[0])] += 1
    assert begins[1] > 1000  # all of the text of 8 bytes
    counts = [begins[1] - 1000, *(begins[begin] for begin in (2, 3, 4, 5))]
    assert sum(counts) == 1000 and stats.chisquare(counts).pvalue > 0.001


def test_the_crop_of_a_text_changes_from_epoch_to_epoch_and_not_with_its_batch():
    texts = toy([40, 40])
    small, large = (
        TextBatches(texts, size, max_length=5, seed=3, crop="random") for size in (1, 2)
    )
    of_epoch = [
        sorted(int(row["tokens"][0]) for row in rows(batches, epoch))
        for batches in (small, large)
        for epoch in range(6)
    ]
    assert of_epoch[:6] == of_epoch[6:] and len({*map(tuple, of_epoch)}) > 3


def test_padding_by_a_symbol_is_seen():
    texts = toy([2, 6])
    masked, symbol = (
        TextBatches(texts, 2, max_length=4, seed=None, padding=padding).batch(0)
        for padding in ("masked", "symbol")
    )
    assert np.array_equal(masked["tokens"], [[1, 2, 0, 0], [1, 2, 3, 4]])
    assert np.array_equal(masked["tokens"], symbol["tokens"])
    assert masked["mask"].tolist() == [[True, True, False, False], [True] * 4]
    assert symbol["mask"].all()


@given(LENGTHS, st.integers(1, 4), st.sampled_from([None, 5]))
def test_lengths_hold_the_same_texts_in_shorter_batches(lengths, batch_size, seed):
    texts = toy(lengths)
    batches = TextBatches(texts, batch_size, max_length=30, seed=seed, lengths=(3, 11, 30))
    found, real, computed = collections.Counter(), 0, 0
    for row in rows(batches):
        size, width = int(row["mask"].sum()), len(row["tokens"])
        assert width == next(length for length in (3, 11, 30) if length >= size)
        found[bytes(row["tokens"][:size].tolist())] += 1
        real, computed = real + size, computed + width
    assert found == collections.Counter(text[:30] for text in texts.texts)
    assert np.isclose(batches.efficiency, real / computed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "random", "seed": None}, "a random crop is drawn from the seed; give one"),
        ({"padding": "symbol", "lengths": (4, 8)}, "takes one length, not several; leave lengths"),
        ({"lengths": (4,)}, "expected lengths .* sequence of 8 tokens, got .* add 8"),
        ({"lengths": ()}, "expected lengths"),
        ({"lengths": (0, 8)}, "expected lengths"),
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"crop": "middle"}, "crop must be one of prefix, random"),
        ({"padding": "mask"}, "padding must be one of masked, symbol, got 'mask'; did you mean"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    whole = {"batch_size": 2, "max_length": 8, "seed": 0} | options
    with pytest.raises(ValueError, match=message):
        TextBatches(toy([12, 2]), whole.pop("batch_size"), **whole)


@given(st.binary(max_size=60))
def test_taylorshift_bytes_are_what_python_prints(text):
    found = taylorshift_bytes(text)
    assert found.decode() == str(text)
    assert found[:2] in (b"b'", b'b"') and found[-1:] == found[1:2]
    assert found.isascii() and eval(found) == text


def labeled(texts):
    labels = np.array([sum(text) % 3 for text in texts], np.int32)
    return LabeledTexts("toy", ("a", "b", "c"), labels, tuple(texts))


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=20), st.integers(1, 40))
def test_every_packed_text_stands_once_with_its_label(texts, length):
    whole = labeled(texts)
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
        PackedTextBatches(labeled([b"a"]), 1, 0, seed=0)
    with pytest.raises(ValueError, match="at least one"):
        PackedTextBatches(labeled([b"a"]).subset([]), 1, 4, seed=0)
