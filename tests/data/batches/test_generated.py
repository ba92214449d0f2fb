"""Drawn batches: a pure function of the step, of streams that share nothing."""

import numpy as np
import pytest
from hypothesis import strategies as st

from flax_linattn.data import GeneratedBatches, Parity

steps = st.integers(0, 2**32 - 1)


class Bits:
    """64 random bits a row: no two draws are alike by chance."""

    def sample(self, rng, rows):
        return {"x": rng.integers(2**64, size=rows, dtype=np.uint64)}


def first(step=0, *, seed=0, stream=0, fixed=False, num_batches=3):
    batches = GeneratedBatches(Bits(), 2, num_batches, seed=seed, stream=stream, fixed=fixed)
    return int(batches.batch(step)["x"][0])


def test_an_epoch_is_new_or_the_same():
    assert len(GeneratedBatches(Parity(3), 2, 3, seed=0, stream=0)) == 3
    assert len({first(step) for step in range(9)}) == 9
    fixed = [first(step, fixed=True) for step in range(9)]
    assert fixed == fixed[:3] * 3
    assert len(set(fixed)) == 3


def test_seeds_and_streams_share_no_draw():
    """Nor do seeds of several words with streams and steps that would continue them."""
    numbers = (0, 1, 5, 2**32 - 1)
    drawn = [
        first(step, seed=seed, stream=stream)
        for seed in (*numbers, 2**32, 2**32 + 5, 5 + 2**64, 2**128 - 1)
        for stream in numbers
        for step in numbers
    ]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"num_batches": 0}, "num_batches must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": 2**128}, "seed must be at most"),
        ({"stream": -1}, "stream must be at least 0, got -1"),
    ],
)
def test_refusals(options, message):
    good = {"batch_size": 2, "num_batches": 3, "seed": 0, "stream": 0}
    with pytest.raises(ValueError, match=message):
        GeneratedBatches(Parity(3), **(good | options))


def test_refuses_a_negative_step():
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        GeneratedBatches(Parity(3), 2, 3, seed=0, stream=0).batch(-1)
