"""Users' own sources give each example once an epoch, also across a resumed run."""

import collections

import numpy as np
import optax
import pytest
from flax import nnx

from flax_linattn import data
from flax_linattn.training import FitConfig, Interrupted, Objective, Session, Splits, fit
from tests.training.problem import signal_at

SIZE, COUNT = 4, 6


def from_grain(seed=3):
    grain = pytest.importorskip("grain")
    rows = grain.MapDataset.source([{"id": np.int32(i)} for i in range(SIZE * COUNT)])
    return data.GrainBatches(rows.shuffle(seed=seed), SIZE)


def from_generator():
    def make_epoch(epoch):
        order = np.random.default_rng(epoch).permutation(SIZE * COUNT).astype(np.int32)
        yield from ({"id": ids} for ids in order.reshape(COUNT, SIZE))

    return data.IteratorBatches(make_epoch, COUNT)


def from_one_array():
    """A generator that fills the same array again and again."""
    ids = np.empty(SIZE, np.int32)

    def make_epoch(epoch):
        order = np.random.default_rng(epoch).permutation(SIZE * COUNT).astype(np.int32)
        for part in order.reshape(COUNT, SIZE):
            ids[:] = part
            yield {"id": ids}

    return data.IteratorBatches(make_epoch, COUNT)


def from_buckets():
    ids = np.arange(SIZE * COUNT, dtype=np.int32)
    mask = np.arange(9) < (1 + ids % 9)[:, None]
    arrays = {"id": ids, "mask": mask}
    return data.BucketBatches(arrays, SIZE, lengths=(9,), time_arrays=(), seed=1)


def from_arrays():
    return data.Batches({"id": np.arange(SIZE * COUNT, dtype=np.int32)}, SIZE, seed=1)


class Recorded:
    """Which examples were trained on in which step."""

    def __init__(self, batches, seen):
        self.batches, self.seen = batches, seen

    def __len__(self):
        return len(self.batches)

    def batch(self, step, rows=slice(None)):
        batch = self.batches.batch(step, rows)
        self.seen[step] = np.asarray(batch["id"]).tolist()
        return batch


def loss_fn(model, batch, dropout_key):
    return (model(batch["id"][:, None].astype(np.float32)) ** 2).mean(), {}


SOURCES = {
    "grain": from_grain,
    "generator": from_generator,
    "one array": from_one_array,
    "arrays": from_arrays,
    "buckets": from_buckets,
}


def from_lengths():
    """Sequences, the last batches of which have filler rows."""
    rows = {"x": [np.full(size, i) for i, size in enumerate([1, 9, 2, 4, 3, 3, 0, 7, 5])]}
    return data.RaggedBatches(rows, SIZE, lengths=(3, 9), seed=1)


def from_filled():
    return data.Batches({"id": np.arange(SIZE * COUNT - 2)}, SIZE, seed=1)


def from_generated():
    return data.GeneratedBatches(data.Parity(5), SIZE, COUNT, seed=0, stream=1)


EVERY = SOURCES | {"lengths": from_lengths, "filled": from_filled, "generated": from_generated}


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY.keys())
def test_a_batch_depends_on_its_step_alone(make):
    """Not on what was asked for before, nor on what was written into a batch."""
    used, fresh = make(), make()
    for step in range(5):
        for array in used.batch(step).values():
            if array.flags.writeable:
                array[:] = 0
    for step in (0, 17, 3, 2, 100):
        one, other = used.batch(step), fresh.batch(step)
        assert one.keys() == other.keys()
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name])


@pytest.mark.parametrize("make", [from_arrays, from_buckets, from_lengths, from_filled])
def test_iteration_is_the_first_epoch(make):
    batches = make()
    listed = list(batches)
    assert len(listed) == len(batches)
    for step, batch in enumerate(listed):
        for name, array in batches.batch(step).items():
            np.testing.assert_array_equal(batch[name], array)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        batches.batch(-1)


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY.keys())
def test_rows_of_a_batch_are_those_of_the_whole(make):
    """However many processes share it, filler rows too; and what was given out stays as it is."""
    whole, parts = make(), make()
    for step in range(2 * COUNT):
        batch = whole.batch(step)
        shares = [parts.batch(step, slice(i, i + 2)) for i in range(0, SIZE, 2)]
        whole.batch(step + 1)
        for name, array in batch.items():
            np.testing.assert_array_equal(np.concatenate([s[name] for s in shares]), array)


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_every_example_comes_once_an_epoch(make, tmp_path):
    """In a run that is interrupted twice, at a step each time, by sources made anew."""
    epochs, seen = 3, {}

    def train(interrupt_at=None, resume=True):
        source = make()
        source = source if interrupt_at is None else signal_at(source, interrupt_at)
        model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
        config = FitConfig(epochs=epochs)
        fit(model, Objective(loss_fn, optax.sgd(1e-5)), Splits(Recorded(source, seen), make()),
            config=config, session=Session(tmp_path, resume, progress=False))  # fmt: skip

    with pytest.raises(Interrupted):
        train(interrupt_at=4, resume=False)
    with pytest.raises(Interrupted):
        train(interrupt_at=9)
    train()
    assert sorted(seen) == list(range(epochs * COUNT))
    for epoch in range(epochs):
        ids = [i for step in range(epoch * COUNT, (epoch + 1) * COUNT) for i in seen[step]]
        assert collections.Counter(ids) == collections.Counter(range(SIZE * COUNT))
    assert seen[0] != seen[COUNT]


def test_sources_that_cannot_serve_are_refused():
    grain = pytest.importorskip("grain")
    rows = grain.MapDataset.source([{"id": np.int32(i)} for i in range(4)])
    with pytest.raises(ValueError, match="remove repeat"):
        data.GrainBatches(rows.repeat(), 2)
    with pytest.raises(ValueError, match="dicts of arrays, got elements of type int"):
        data.GrainBatches(grain.MapDataset.range(4), 2)
    with pytest.raises(ValueError, match='the name "weight" is reserved'):
        data.GrainBatches(rows.map(lambda x: x | {"weight": 1.0}), 2)
    with pytest.raises(ValueError, match="filter the source of the data set"):
        data.GrainBatches(rows.filter(lambda x: x["id"] != 3), 2).batch(1)
    with pytest.raises(ValueError, match="num_batches must be at least 1"):
        data.IteratorBatches(lambda epoch: [], 0)
    with pytest.raises(ValueError, match="epoch 0 has 2 batches, expected 3"):
        data.IteratorBatches(lambda epoch: [{"x": np.ones(1)}] * 2, 3).batch(2)
