"""Batches of sequences of different lengths: each once an epoch, as ``BucketBatches`` has them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data import BucketBatches, RaggedBatches
from flax_linattn.data.batches.batches import count_buckets

LONGEST = 9
some_sizes = st.lists(st.integers(0, LONGEST), min_size=1, max_size=20)
batch_sizes = st.integers(1, 30)
seeds = st.none() | st.integers(0, 2**32)


def sequences(sizes):
    """The n-th sequence holds n, and [n, n / 4] at every token."""
    return {
        "id": [np.full(size, n, np.int32) for n, size in enumerate(sizes)],
        "x": [np.full((size, 2), (n, n / 4)) for n, size in enumerate(sizes)],
        "number": [np.full(size, n + 1, np.int8) for n, size in enumerate(sizes)],
    }


def make(sizes, batch_size=4, seed=0, lengths=(3, LONGEST)):
    return RaggedBatches(sequences(sizes), batch_size, lengths=lengths, seed=seed)


@given(some_sizes, batch_sizes, seeds, st.integers(0, 2), st.sampled_from([(3,), (1, 4), (9,)]))
def test_as_bucket_batches_of_the_same_data(sizes, batch_size, seed, epoch, lengths):
    """Bit for bit, where these are padded to the longest before."""
    ragged = make(sizes, batch_size, seed, (*lengths, LONGEST))
    arrays = {"mask": np.arange(LONGEST) < np.array(sizes)[:, None]}
    for name, parts in sequences(sizes).items():
        arrays[name] = np.zeros((len(parts), LONGEST, *parts[0].shape[1:]), parts[0].dtype)
        for row, values in zip(arrays[name], parts, strict=True):
            row[: len(values)] = values
    whole = BucketBatches(arrays, batch_size, lengths=(*lengths, LONGEST), seed=seed,
                          time_arrays=("id", "x", "number"))  # fmt: skip
    assert len(ragged) == len(whole)
    steps = range(epoch * len(whole), (epoch + 1) * len(whole))
    got, want = ([batches.batch(step) for step in steps] for batches in (ragged, whole))
    if seed is not None:  # the same batches, which follow each other in orders of their own
        got, want = (sorted(batches, key=contents) for batches in (got, want))
    for one, other in zip(got, want, strict=True):
        assert one.keys() == other.keys()
        for name, array in other.items():
            np.testing.assert_array_equal(one[name], array, err_msg=name, strict=True)


def contents(batch):
    return [batch[name].tolist() for name in ("number", "weight")]


@given(some_sizes, batch_sizes, st.integers(0, 3))
def test_the_lengths_of_a_step_are_those_of_all_seeds(sizes, batch_size, epoch):
    """And so are the rows that count: runs of several seeds are trained at once."""
    several = [make(sizes, batch_size, seed) for seed in (0, 1, 2**32)]
    for step in range(epoch * len(several[0]), (epoch + 1) * len(several[0])):
        first, *others = (batches.batch(step) for batches in several)
        for other in others:
            assert other["mask"].shape == first["mask"].shape
            np.testing.assert_array_equal(other["weight"], first["weight"])


def test_the_order_of_lengths_changes_from_epoch_to_epoch():
    batches = make([1, 9] * 10, 2)
    orders = [
        tuple(batches.batch(epoch * len(batches) + i)["mask"].shape[1] for i in range(10))
        for epoch in range(4)
    ]
    assert len(set(orders)) == 4


def former_plan(bucket, num_buckets, batch_size, seed, epoch):
    """Word by word what ``BucketBatches`` did before others shared it: runs are resumed by it."""

    def in_rows(order):
        padding = (0, -len(order) % batch_size)
        return np.pad(order, padding, constant_values=-1).reshape(-1, batch_size)

    order = np.arange(len(bucket))
    rng = None if seed is None else np.random.default_rng([seed, epoch])
    if rng is not None:
        order = rng.permutation(len(bucket))
    members = [order[bucket[order] == i] for i in range(num_buckets)]
    plan = np.concatenate([in_rows(part) for part in members if part.size])
    if rng is None or num_buckets == 1:
        return plan
    return rng.permutation(plan, axis=0)


@given(some_sizes, batch_sizes, seeds, st.integers(0, 3), st.sampled_from([(9,), (3, 9), (1, 4)]))
def test_bucket_batches_are_those_of_earlier_runs(sizes, batch_size, seed, epoch, lengths):
    lengths = np.unique((*lengths, LONGEST))
    bucket = np.searchsorted(lengths, np.maximum(sizes, 1))
    want = former_plan(bucket, len(lengths), batch_size, seed, epoch)
    assert count_buckets(bucket, batch_size) == len(want)
    mask = np.arange(LONGEST) < np.array(sizes)[:, None]
    arrays = {"mask": mask, "id": np.arange(len(sizes))}
    batches = BucketBatches(arrays, batch_size, lengths=lengths, time_arrays=(), seed=seed)
    assert len(batches) == len(want)
    for position, row in enumerate(want):
        batch = batches.batch(epoch * len(want) + position)
        np.testing.assert_array_equal(batch["id"], np.where(row >= 0, row, row[0]))
        np.testing.assert_array_equal(batch["weight"], row >= 0)


def test_one_epoch_stays_what_it_is():
    """Of NumPy's generator too: drawn once, and written down."""
    mask = np.arange(2) < np.array([1, 2, 1, 2, 2, 1, 1])[:, None]
    arrays = {"mask": mask, "id": np.arange(7)}
    batches = BucketBatches(arrays, 2, lengths=(1, 2), time_arrays=(), seed=3)
    ids = [batches.batch(4 + step)["id"].tolist() for step in range(4)]
    assert ids == [[3, 3], [2, 0], [5, 6], [1, 4]]


def test_epochs_and_seeds_have_their_own_order_and_none_takes_the_shortest_first():
    sizes = [3] * 50

    def order(seed, epoch):
        return tuple(make(sizes, 50, seed).batch(epoch)["id"][:, 0].tolist())

    assert len({order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert order(None, 0) == order(None, 7) == tuple(range(50))
    lengths = [batch["mask"].shape[1] for batch in make([9, 1, 8, 2, 4], 2, None, (2, 5, 9))]
    assert lengths == [2, 5, 9]


def test_sequences_may_be_views_and_are_not_written_into():
    values = np.arange(10.0)
    pieces = [values[start : start + 5] for start in range(6)]
    batches = RaggedBatches({"x": pieces}, 6, lengths=(8,), seed=None)
    batch = batches.batch(0)
    np.testing.assert_array_equal(batch["x"][:, :5], pieces)
    batch["x"][:] = -1
    np.testing.assert_array_equal(values, np.arange(10.0))
    np.testing.assert_array_equal(batches.batch(0)["x"][:, :5], pieces)


TWO = [np.zeros(2), np.zeros(3)]


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({}, {}, r"expected arrays, none of them named \"mask\".*got \[\]"),
        ({"mask": TWO}, {}, r"none of them named \"mask\" .*, got \['mask'\]"),
        ({"weight": TWO}, {}, 'name "weight" is reserved .*rename that array'),
        ({"x": []}, {}, "at least one example, got none"),
        ({"x": TWO, "y": TWO[:1]}, {}, "same length, got 2 of x, 1 of y"),
        ({"x": TWO, "y": TWO[::-1]}, {}, r"expected 2 values in y of sequence 0, .* got 3; make"),
        ({"x": [np.zeros(2), np.zeros((2, 1))]}, {},
         r"x of sequence 1 as that of the first, float64 \(\) a token, got float64 \(1,\); cast"),
        ({"x": [np.zeros(2, int), np.ones(2) / 2]}, {}, r"int64 \(\) a token, got float64 \(\)"),
        ({"x": TWO}, {"lengths": ()}, r"holds the longest sequence of 3 tokens, got \[\]"),
        ({"x": TWO}, {"lengths": (2,)}, r"sequence of 3 tokens, got \[2\]; add 3"),
        ({"x": TWO}, {"lengths": (0, 3)}, r"lengths of at least 1, .* got \[0, 3\]"),
        ({"x": TWO}, {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"x": TWO}, {"seed": -1}, "seed must be at least 0, got -1"),
    ],
)  # fmt: skip
def test_refusals(arrays, options, message):
    options = {"batch_size": 2, "lengths": (3,), "seed": 0} | options
    with pytest.raises(ValueError, match=message):
        RaggedBatches(arrays, **options)
