"""Sequences with questions: every answer follows from what came before it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data import AssociativeRecall, Copying, Induction, Parity

seeds = st.integers(0, 99)


@st.composite
def recall_tasks(draw):
    pairs = draw(st.integers(1, 6))
    length = 4 * pairs + draw(st.integers(0, 9))
    symbols = 2 * pairs + draw(st.integers(0, 9))
    return AssociativeRecall(pairs, length, symbols, draw(st.sampled_from([0.01, 0.5, 1.0])))


tasks = (
    recall_tasks()
    | st.builds(Copying, st.integers(1, 9), st.integers(2, 9))
    | st.builds(Induction, st.integers(3, 12), st.integers(2, 9))
    | st.builds(Parity, st.integers(1, 12))
)


def answers(task, tokens):
    """Position -> answer, read from one sequence with plain dictionaries and loops."""
    if isinstance(task, AssociativeRecall):
        begin = 2 * task.num_pairs
        pairs = dict(zip(tokens[0:begin:2], tokens[1:begin:2], strict=True))
        return {at: pairs[token] for at, token in enumerate(tokens) if at >= begin and token}
    if isinstance(task, Copying):
        at = tokens.index(task.num_symbols)
        return {at + i: symbol for i, symbol in enumerate(tokens[:at])}
    if isinstance(task, Induction):
        return {len(tokens) - 1: tokens[tokens.index(task.num_symbols) + 1]}
    return {at: sum(tokens[: at + 1]) % 2 for at in range(len(tokens))}


@given(tasks, st.integers(0, 4), seeds)
def test_answers_follow_from_the_tokens(task, rows, seed):
    batch = task.sample(np.random.default_rng(seed), rows)
    assert sorted(batch) == ["is_query", "targets", "tokens"]
    for name, array in batch.items():
        assert array.shape == (rows, task.length)
        assert array.dtype == (bool if name == "is_query" else np.int32)
        assert array.flags.writeable
    parts = (batch[name].tolist() for name in ("tokens", "targets", "is_query"))
    for tokens, targets, asked in zip(*parts, strict=True):
        assert all(0 <= token < task.num_tokens for token in tokens)
        expected = answers(task, tokens)
        assert [at for at, is_asked in enumerate(asked) if is_asked] == sorted(expected)
        assert targets == [expected.get(at, 0) for at in range(task.length)]


@given(tasks, seeds)
def test_samples_are_those_of_the_generator(task, seed):
    one, same = (task.sample(np.random.default_rng(seed), 50) for _ in range(2))
    assert all(np.array_equal(one[name], same[name]) for name in one)


@given(recall_tasks(), seeds)
def test_each_key_is_asked_once_in_a_slot_of_its_own(task, seed):
    begin, num_keys = 2 * task.num_pairs, task.num_symbols // 2
    batch = task.sample(np.random.default_rng(seed), 3)
    for tokens, asked in zip(batch["tokens"], batch["is_query"], strict=True):
        keys, values = tokens[0:begin:2], tokens[1:begin:2]
        assert len({*keys}) == len({*values}) == task.num_pairs
        assert keys.min() >= 1 and keys.max() <= num_keys < values.min()
        assert sorted(tokens[asked]) == sorted(keys)
        assert ((np.flatnonzero(asked) - begin) % 2 == 0).all()
        assert not tokens[begin:][~asked[begin:]].any()


def test_slots_are_drawn_by_the_power_law_without_replacement():
    task = AssociativeRecall(num_pairs=2, length=14, num_symbols=4)
    batch = task.sample(np.random.default_rng(0), 40_000)
    tokens, later = batch["tokens"], batch["tokens"][:, 4::2]
    slots = np.stack([np.argmax(later == tokens[:, [2 * pair]], axis=1) for pair in range(2)])
    law = np.arange(1, 6) ** (0.01 - 1)
    law /= law.sum()
    first, second = (np.bincount(slot, minlength=5) / 40_000 for slot in slots)
    np.testing.assert_allclose(first, law, atol=0.01)  # 4 standard deviations
    after = [sum(law[i] * law[j] / (1 - law[i]) for i in range(5) if i != j) for j in range(5)]
    np.testing.assert_allclose(second, after, atol=0.01)


@pytest.mark.parametrize(
    ("task", "num_symbols"),
    [
        (AssociativeRecall(2, 8, num_symbols=8), 4),
        (AssociativeRecall(2, 8, num_symbols=9), 5),
        (Copying(5, num_symbols=7), 7),
        (Induction(8, num_symbols=6), 6),
        (Parity(9), 2),
    ],
)
def test_chance_is_the_share_of_each_answer(task, num_symbols):
    assert task.chance == 1 / num_symbols
    batch = task.sample(np.random.default_rng(1), 8000)
    found, counts = np.unique(batch["targets"][batch["is_query"]], return_counts=True)
    assert len(found) == num_symbols
    np.testing.assert_allclose(counts / counts.sum(), task.chance, atol=0.02)


def test_the_trigger_of_induction_stands_anywhere():
    tokens = Induction(6, 3).sample(np.random.default_rng(0), 4000)["tokens"]
    assert ((tokens == 3).sum(axis=1) == 2).all()
    shares = np.mean(tokens == 3, axis=0)
    np.testing.assert_allclose(shares, [0.25, 0.25, 0.25, 0.25, 0, 1], atol=0.03)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AssociativeRecall(4, 15, 64), "length must be at least 16, .* got 15"),
        (lambda: AssociativeRecall(4, 16, 7), "num_symbols must be at least 8, .* got 7"),
        (lambda: AssociativeRecall(0, 16, 8), "num_pairs must be at least 1, got 0"),
        (lambda: AssociativeRecall(1, 4, 2, power_a=0.0), r"power_a must be in \(0, 1\], got 0.0"),
        (lambda: AssociativeRecall(1, 4, 2, power_a=float("nan")), "power_a must be in"),
        (lambda: Copying(0, 8), "num_copied must be at least 1, got 0"),
        (lambda: Copying(3, 1), "num_symbols must be at least 2, got 1"),
        (lambda: Copying(3, 2**31), "num_symbols must be at most"),
        (lambda: Induction(2, 8), "length must be at least 3, got 2"),
        (lambda: Parity(0), "length must be at least 1, got 0"),
    ],
)
def test_bad_sizes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
