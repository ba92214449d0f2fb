"""Windows of tokens: against a plain reference, pure in the step, and in little memory."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data.texts import TokenWindows


def rows(windows, epoch=0):
    """The real rows of an epoch: tokens and targets without padding, and segments."""
    for step in range(epoch * len(windows), (epoch + 1) * len(windows)):
        batch = windows.batch(step)
        for row in np.flatnonzero(batch["weight"]):
            mask = batch["mask"][row]
            size = int(mask.sum())
            assert size and mask[:size].all() and not batch["targets"][row, size:].any()
            segments = batch["segment_ids"][row, :size] if "segment_ids" in batch else None
            yield batch["tokens"][row, :size], batch["targets"][row, :size], segments


def text(size):
    """Tokens that say their place."""
    return np.arange(1, size + 1, dtype=np.uint16)


@given(st.integers(2, 60), st.integers(1, 5), st.integers(1, 20), st.none() | st.integers(2, 70))
def test_every_target_comes_once_without_a_seed(size, batch_size, length, max_tokens):
    tokens = text(size)
    windows = TokenWindows(
        tokens, batch_size, length=length, begin=None, seed=None, max_tokens=max_tokens
    )
    used = tokens.tolist()[:max_tokens]
    expected = [
        (used[start : start + length][: len(used) - 1 - start], used[start + 1 :][:length])
        for start in range(0, len(used) - 1, length)
    ]
    for epoch in (0, 1):
        found = [(x.tolist(), y.tolist()) for x, y, _ in rows(windows, epoch)]
        assert found == expected
    batch = windows.batch(0)
    assert {name: (array.dtype, array.shape) for name, array in batch.items()} == {
        "tokens": (np.int32, (batch_size, length)), "targets": (np.int32, (batch_size, length)),
        "mask": (np.bool_, (batch_size, length)), "weight": (np.float32, (batch_size,)),
    }  # fmt: skip


@given(st.integers(2, 90), st.integers(1, 5), st.integers(1, 20), st.integers(0, 9))
def test_windows_of_an_epoch_do_not_overlap(size, batch_size, length, seed):
    def make():
        return TokenWindows(text(size), batch_size, length=length, begin=None, seed=seed)

    windows = make()
    for epoch in range(3):
        targets = [y for x, y, _ in rows(windows, epoch) if (x + 1 == y).all()]
        together = np.sort(np.concatenate(targets))
        assert (np.diff(together) == 1).all()  # one stretch of the text, each target once
        if size - 1 >= 2 * length:
            assert {len(y) for y in targets} == {length}
            assert size - 1 - len(together) < 2 * length
        else:
            assert len(together) == size - 1
    # A step is the same whenever it is asked for.
    for step in (2 * len(windows), 0, len(windows)):
        for name, array in make().batch(step).items():
            np.testing.assert_array_equal(windows.batch(step)[name], array)


@pytest.mark.parametrize("size", [25, 28, 29, 32])
def test_every_target_is_trained_on(size):
    """The windows of an epoch begin anywhere, so that the end of the text comes as often."""
    windows = TokenWindows(text(size), 4, length=8, begin=None, seed=3)
    count = np.zeros(size + 1, int)
    starts = set()
    for epoch in range(300):
        targets = [y for _, y, _ in rows(windows, epoch)]
        starts.add(min(map(min, targets)))
        np.add.at(count, np.concatenate(targets), 1)
    assert (count[2:] > 0).all() and (count[:2] == 0).all()
    np.testing.assert_allclose(count[2], count[size], atol=40)
    assert len(starts) == size - 8 * len({tuple(y) for y in targets})


def test_the_order_of_windows_changes():
    windows = TokenWindows(text(200), 4, length=8, begin=None, seed=0)
    first, second = ([x[0] % 8 for x, _, _ in rows(windows, epoch)] for epoch in (0, 1))
    assert len(set(first)) == 1 and len(set(second)) == 1 and first[0] != second[0]
    orders = [[int(x[0]) for x, _, _ in rows(windows, epoch)] for epoch in (0, 1)]
    assert all(order != sorted(order) for order in orders)
    other = TokenWindows(text(200), 4, length=8, begin=None, seed=1)
    assert [int(x[0]) for x, _, _ in rows(other)] != orders[0]


@given(st.lists(st.sampled_from([0, 5, 9]), min_size=2, max_size=50), st.sampled_from([0, 9]))
def test_segments_begin_at_documents(tokens, begin):
    """The begin token may be 0, which also fills windows up."""
    windows = TokenWindows(np.array(tokens), 2, length=7, begin=begin, seed=None)
    for x, _, segments in rows(windows):
        expected, number = [], 0
        for token in x.tolist():
            number += token == begin
            expected.append(number)
        assert segments.tolist() == expected and segments.dtype == np.int32


def test_one_token_is_no_text():
    for tokens in (text(0), text(1)):
        with pytest.raises(ValueError, match="at least one example"):
            TokenWindows(tokens, 2, length=3, begin=None, seed=None)
    for name, value in (("length", 0), ("max_tokens", 1), ("batch_size", 0), ("seed", -1)):
        options = {"length": 3, "batch_size": 2, "seed": None, "begin": None, name: value}
        with pytest.raises(ValueError, match=name):
            TokenWindows(text(9), **options)


TRAIN = """
import resource, sys
from flax_linattn import cli

assert cli.main(sys.argv[1:]) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_two_gigabytes_within_one(tmp_path):
    """A whole process, from loading to evaluation, with a text larger than the limit."""
    path, run = tmp_path / "big.txt", tmp_path / "run"
    with open(path, "wb") as file:
        for place in range(0, 2**31, 2**27):
            file.seek(place)
            file.write(b"some text")
        file.truncate(2**31)
    options = "--features 32 --num-layers 1 --steps 20 --validation-tokens 9999 --test-tokens 9999"
    command = [sys.executable, "-c", TRAIN, "train", "text", "--file", str(path)]
    out = subprocess.run(
        [*command, "--run", str(run), *options.split()],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path / "cache")},
        check=True,
    ).stdout
    assert int(out.splitlines()[-1]) * 1024 < 10**9
    assert (run / "test.json").exists() and not list(tmp_path.rglob("*.uint*"))
