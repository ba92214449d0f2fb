"""Users' own sources give each example once an epoch, also across a resumed run."""

import collections

import numpy as np
import optax
import pytest
from flax import nnx

from flax_linattn import data
from flax_linattn.training import FitConfig, Interrupted, fit
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


def from_arrays():
    return data.Batches({"id": np.arange(SIZE * COUNT, dtype=np.int32)}, SIZE, seed=1)


class Recorded:
    """Which examples were trained on in which step."""

    def __init__(self, batches, seen):
        self.batches, self.seen = batches, seen

    def __len__(self):
        return len(self.batches)

    def batch(self, step):
        batch = self.batches.batch(step)
        self.seen[step] = np.asarray(batch["id"]).tolist()
        return batch


def loss_fn(model, batch, dropout_key):
    return (model(batch["id"][:, None].astype(np.float32)) ** 2).mean(), {}


SOURCES = {"grain": from_grain, "generator": from_generator, "arrays": from_arrays}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_every_example_comes_once_an_epoch(make, tmp_path):
    """In a run that is interrupted twice, at a step each time, by sources made anew."""
    epochs, seen = 3, {}

    def train(interrupt_at=None, resume=True):
        source = make()
        source = source if interrupt_at is None else signal_at(source, interrupt_at)
        model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
        config = FitConfig(epochs=epochs)
        fit(model, loss_fn, optax.sgd(1e-5), Recorded(source, seen), make(), config=config,
            run_dir=tmp_path, resume=resume, progress=False)  # fmt: skip

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
    with pytest.raises(ValueError, match="drop repeat"):
        data.GrainBatches(rows.repeat(), 2)
    with pytest.raises(ValueError, match="dicts of arrays, got elements of type int"):
        data.GrainBatches(grain.MapDataset.range(4), 2)
    with pytest.raises(ValueError, match="at least one batch"):
        data.IteratorBatches(lambda epoch: [], 0)
    with pytest.raises(ValueError, match="epoch 0 has 2 batches, expected 3"):
        data.IteratorBatches(lambda epoch: [{"x": np.ones(1)}] * 2, 3).batch(2)
