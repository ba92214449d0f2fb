"""Runs of packed segments against a Python loop; the visibility matrix."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.ops.contract import masks

LENGTH = 8
find_segments = jax.jit(masks.find_segments)
previous_real_index = jax.jit(masks.previous_real_index)
visibility = jax.jit(masks.visibility, static_argnums=(0, 1), static_argnames="is_causal")
FLAGS = st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH)
IDS = st.lists(st.integers(-1, 2), min_size=LENGTH, max_size=LENGTH)


def runs_by_hand(ids: list[int], mask: list[bool], carried: int | None) -> tuple[list[bool], int]:
    """Walks through the real tokens; padding is not there."""
    last, starts = carried, []
    for identity, real in zip(ids, mask, strict=True):
        starts.append(real and last is not None and identity != last)
        last = identity if real else last
    return starts, last


@given(ids=IDS, mask=FLAGS, carried=st.none() | st.integers(-1, 2))
def test_segment_runs(ids: list[int], mask: list[bool], carried: int | None) -> None:
    last = None if carried is None else np.array([carried], np.int32)
    segments = find_segments(np.array([ids], np.int32), np.array([mask]), last)
    starts, last = runs_by_hand(ids, mask, carried)
    assert segments.starts[0].tolist() == starts
    assert segments.index[0].tolist() == np.cumsum(starts).tolist()
    if last is not None:  # without a real token and a carried id there is no id to end in
        assert segments.last[0] == last


def test_padding_in_the_middle_splits_no_run() -> None:
    ids = np.array([[1, 1, 0, 0, 1, 2]], np.int32)
    mask = np.array([[True, True, False, False, True, True]])
    assert find_segments(ids, mask).starts[0].tolist() == [False] * 5 + [True]


def test_an_id_that_comes_back_is_another_run() -> None:
    segments = find_segments(np.array([[1, 2, 1]], np.int32))
    assert segments.index[0].tolist() == [0, 1, 2]
    seen = visibility(3, 3, segments=segments)
    assert seen[0].tolist() == np.eye(3, dtype=bool).tolist()


@pytest.mark.parametrize(("carried", "starts"), [(5, False), (6, True)])
def test_the_carried_id_starts_or_continues(carried: int, starts: bool) -> None:
    ids, mask = np.array([[0, 5]], np.int32), np.array([[False, True]])
    segments = find_segments(ids, mask, np.array([carried], np.int32))
    assert segments.starts[0].tolist() == [False, starts]


@given(mask=FLAGS)
def test_previous_real(mask: list[bool]) -> None:
    want = [max((s for s in range(t) if mask[s]), default=-1) for t in range(LENGTH)]
    assert previous_real_index(np.array([mask]))[0].tolist() == want


@given(mask=FLAGS, ids=IDS)
def test_visibility(mask: list[bool], ids: list[int]) -> None:
    segments = find_segments(np.array([ids], np.int32), np.array([mask]))
    got = np.asarray(
        visibility(LENGTH, LENGTH, is_causal=True, mask=np.array([mask]), segments=segments)
    )
    index = np.asarray(segments.index[0])
    for t in range(LENGTH):
        for s in range(LENGTH):
            assert got[0, t, s] == (s <= t and mask[s] and index[s] == index[t])
