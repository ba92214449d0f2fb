"""Drawn batches: a pure function of the step, of streams that share nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data import DrawnBatches, NextSymbol, Parity, rules_of

steps = st.integers(0, 2**32 - 1)


class Bits:
    """64 random bits a row: no two draws are alike by chance."""

    def draw(self, rng, rows):
        return {"x": rng.integers(2**64, size=rows, dtype=np.uint64)}


def first(step=0, *, seed=0, stream=0, fixed=False, num_batches=3):
    batches = DrawnBatches(Bits(), 2, num_batches, seed=seed, stream=stream, fixed=fixed)
    return int(batches.batch(step)["x"][0])


@given(st.lists(steps, min_size=1, max_size=6), st.booleans(), st.integers(0, 2**128 - 1))
def test_batch_depends_on_the_step_alone(asked, fixed, seed):
    task = NextSymbol(rules_of("nt+nt-s", 16, 2), 5)
    used, fresh = (DrawnBatches(task, 4, 7, seed=seed, stream=1, fixed=fixed) for _ in range(2))
    for step in range(3):
        used.batch(step)["tokens"][:] = 0  # nor on what became of earlier ones
    for step in asked:
        one, other = used.batch(step), fresh.batch(step)
        assert one["tokens"].shape == (4, 5)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@given(steps, st.integers(1, 4), st.integers(1, 4))
def test_rows_of_a_batch_are_those_of_the_whole(step, size, parts):
    """However many processes share it."""
    batches = DrawnBatches(Parity(3), size * parts, 5, seed=0, stream=0)
    shares = [batches.batch(step, slice(i * size, (i + 1) * size)) for i in range(parts)]
    for name, array in batches.batch(step).items():
        np.testing.assert_array_equal(np.concatenate([share[name] for share in shares]), array)


def test_an_epoch_is_new_or_the_same():
    assert len(DrawnBatches(Parity(3), 2, 3, seed=0, stream=0)) == 3
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
        DrawnBatches(Parity(3), **(good | options))


def test_refuses_a_negative_step():
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        DrawnBatches(Parity(3), 2, 3, seed=0, stream=0).batch(-1)
