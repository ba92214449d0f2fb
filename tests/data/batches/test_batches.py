"""Batches: every example once an epoch, as a pure function of the step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data import Batches, BucketBatches

sizes = st.integers(1, 30)
seeds = st.none() | st.integers(0, 2**32)


def make(num_examples, batch_size, seed):
    ids = np.arange(num_examples, dtype=np.int32)
    return Batches({"id": ids, "x": np.stack([ids * 2.0, ids * 3.0], 1)}, batch_size, seed=seed)


@given(sizes, sizes, seeds, st.integers(0, 3))
def test_every_example_comes_once_an_epoch(num_examples, batch_size, seed, epoch):
    batches = make(num_examples, batch_size, seed)
    seen = []
    for step in range(epoch * len(batches), (epoch + 1) * len(batches)):
        batch = batches.batch(step)
        assert batch["id"].shape == (batch_size,)
        assert batch["x"].shape == (batch_size, 2)
        assert (batch["id"].dtype, batch["weight"].dtype) == (np.int32, np.float32)
        np.testing.assert_array_equal(batch["x"][:, 1], batch["id"] * 3.0)  # rows stay aligned
        real = batch["weight"] == 1
        assert set(batch["weight"].tolist()) <= {0.0, 1.0}
        assert real[0]
        assert (batch["id"][~real] == batch["id"][0]).all()
        seen.extend(batch["id"][real].tolist())
    assert sorted(seen) == list(range(num_examples))


def test_epochs_and_seeds_have_their_own_order_and_none_keeps_it():
    orders = [make(50, 50, seed).batch(epoch)["id"].tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert [make(5, 5, None).batch(epoch)["id"].tolist() for epoch in (0, 7)] == [
        [0, 1, 2, 3, 4]
    ] * 2


def test_one_example_and_a_batch_larger_than_the_set():
    batch = make(1, 3, seed=0).batch(5)
    assert batch["id"].tolist() == [0, 0, 0]
    assert batch["weight"].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("arrays", "batch_size", "seed", "message"),
    [
        ({}, 1, None, r"got sizes \{\}"),
        ({"x": np.zeros(2), "y": np.zeros(3)}, 1, None, r"got sizes \{'x': 2, 'y': 3\}"),
        ({"x": np.zeros((0, 3))}, 1, None, "at least one example"),
        ({"x": np.array(1.0)}, 1, None, "pass one row per example"),
        ({"weight": np.zeros(2)}, 1, None, 'name "weight" is reserved .*rename that array'),
        ({"x": np.zeros(2)}, 0, None, "batch_size must be at least 1, got 0"),
        ({"x": np.zeros(2)}, 1, -1, "seed must be at least 0, got -1"),
    ],
)
def test_refusals(arrays, batch_size, seed, message):
    with pytest.raises(ValueError, match=message):
        Batches(arrays, batch_size, seed=seed)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), sizes, seeds, st.integers(0, 2))
def test_buckets_hold_every_example_once_an_epoch(lengths, batch_size, seed, epoch):
    mask = np.arange(9) < np.array(lengths)[:, None]
    arrays = {"mask": mask, "values": mask * 1.0, "id": np.arange(len(lengths))}
    batches = BucketBatches(arrays, batch_size, lengths=(3, 9), seed=seed)
    seen = []
    for step in range(epoch * len(batches), (epoch + 1) * len(batches)):
        batch = batches.batch(step)
        ids = batch["id"][batch["weight"] > 0]
        length = batch["mask"].shape[1]
        assert length == (3 if np.all(np.array(lengths)[ids] <= 3) else 9)
        np.testing.assert_array_equal(batch["values"], mask[batch["id"], :length])
        np.testing.assert_array_equal(batch["mask"].sum(1), np.array(lengths)[batch["id"]])
        seen += ids.tolist()
    assert sorted(seen) == list(range(len(lengths)))
    assert 0 <= batches.efficiency <= 1


def test_buckets_that_do_not_fit_are_refused():
    arrays = {"mask": np.ones((2, 5), bool), "values": np.ones((2, 5))}
    for lengths in ((), (3,), (0, 5)):
        with pytest.raises(ValueError, match="holds the longest sequence of 5 tokens"):
            BucketBatches(arrays, 2, lengths=lengths, seed=0)
    with pytest.raises(ValueError, match=r"expected arrays \['mask'\]"):
        BucketBatches({"values": np.ones((2, 5))}, 2, lengths=(5,), seed=0)
