"""Packed sequences = the same sequences one by one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases, programs
from tests.contract.programs import LENGTH, Weights
from tests.contract.representatives import CONTRACT
from tests.contract.tolerances import assert_close

# Two rows of four sequences. The first and the third share an id: only a change of id separates.
LENGTHS, NAMES, PACKS = ((4, 1, 5, 1), (2, 6, 1, 2)), (4, 9, 4, 7), 4
PACKED = cases.offering(lambda can: can.packed, cases.DIRECTIONS_FORMS)
CAUSAL = cases.offering(lambda can: can.packed and can.causal)


@pytest.mark.parametrize(
    ("mechanism", "is_causal", "form"), cases.slow_unless(cases.representative, PACKED)
)
def test_packed_is_separate(mechanism: ops.Mechanism, is_causal: bool, form: str) -> None:
    """Values, gradients, and the state, which is that of the last sequence.

    The same program runs both: a sequence is separate in a row where all else is padding.
    """
    ids = np.stack([np.repeat(NAMES, lengths) for lengths in LENGTHS])
    index = np.stack([np.repeat(range(PACKS), lengths) for lengths in LENGTHS])
    alone = (index[:, None] == np.arange(PACKS)[:, None]).reshape(cases.BATCH, LENGTH)
    tokens = cases.make_numbers(mechanism, LENGTH, batch=2)

    def each(x: Any) -> Any:
        """[2, T, ...] -> [8, T, ...], a row for each sequence."""
        return np.repeat(x, PACKS, axis=0)

    learned = mechanism.capabilities.learned_query
    tokens = tokens._replace(
        q=tokens.q if learned else each(tokens.q),
        k=each(tokens.k),
        v=each(tokens.v),
        gates=jax.tree.map(each, tokens.gates),
    )
    run = programs.attend(mechanism, is_causal, form)
    begin = programs.begin(mechanism, packed=True)
    weights = programs.weigh(np.empty((2, *tokens.v.shape[1:])), begin)
    last = np.arange(cases.BATCH) % PACKS == PACKS - 1

    def weigh(chosen: Any, of_state: Any) -> Weights:
        y = np.where(chosen[:, :, None, None], each(weights.y), 0)
        leaves = [
            np.where(of_state.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, 0)
            for leaf in weights.state
        ]
        return Weights(y, leaves)

    # Packed are rows 3 and 7, of which all sequences count; the others have weight 0.
    packed = weigh(np.broadcast_to(last[:, None], alone.shape), last)
    everything = np.ones_like(alone)
    got = run(tokens, begin, everything, np.asarray(each(ids), np.int32), packed)
    want = run(tokens, begin, alone, np.zeros((cases.BATCH, LENGTH), np.int32), weigh(alone, last))

    def joined(x: Any) -> Any:
        return x.reshape(2, PACKS, *x.shape[1:]).sum(axis=1)

    assert_close(got.y[last], joined(want.y), np.float64, "y")
    for g, w in zip(cases.meaning(got.state), cases.meaning(want.state), strict=True):
        assert_close(g[last], w[last], np.float64, "state")
    for g, w in zip(jax.tree.leaves(got.tokens), jax.tree.leaves(want.tokens), strict=True):
        batched = g.ndim > 2  # the others are shared by all sequences
        assert_close(*((g[last], joined(w)) if batched else (g, w)), np.float64, "gradient")


@pytest.mark.parametrize("mechanism", cases.slow_unless(cases.representative, CAUSAL))
def test_packed_state_carries_its_id(mechanism: ops.Mechanism) -> None:
    """The next call goes on where the id is the same and starts afresh where it is not."""
    tokens = cases.make_numbers(mechanism, LENGTH)
    run = programs.attend(mechanism, True, cases.central_form(mechanism))
    begin, mask = programs.begin(mechanism, packed=True), np.ones((cases.BATCH, LENGTH), bool)
    ids = cases.make_ids(LENGTH)
    ids[1], ids[2] = [1, 1, 2, *[2] * 8], [1, 1, 2, *[3] * 8]
    weights = programs.weigh(np.empty(tokens.v.shape), begin)
    whole = run(tokens, begin, mask, ids, weights)
    early = np.arange(LENGTH) < 3
    # The ids of masked tokens do not count: they are changed.
    first = run(tokens, begin, mask & early, np.where(early, ids, -ids - 1), weights)
    second = run(tokens, first.state, mask & ~early, np.where(early, 99, ids), weights)
    assert_close(first.y + second.y, whole.y, np.float64)
    np.testing.assert_array_equal(first.state.segment_id, ids[:, 2])
    np.testing.assert_array_equal(second.state.segment_id, ids[:, -1])
    np.testing.assert_array_equal(whole.state.segment_id, ids[:, -1])
    nothing = run(tokens, first.state, mask & False, ids, weights)
    np.testing.assert_array_equal(nothing.state.segment_id, first.state.segment_id)


@pytest.mark.parametrize(
    "mechanism", cases.slow_unless(lambda m: cases.spec_of(m) in CONTRACT, CAUSAL)
)
def test_states_with_and_without_an_id(mechanism: ops.Mechanism) -> None:
    """A plain state goes on into the first run, behind mere padding too; an id is kept."""
    tokens = cases.make_tokens(mechanism, 8, np.float32, batch=1)
    mask = jnp.array([[False, False, True, True]])
    ids = jnp.array([[0, 0, 1, 1]])

    @jax.jit
    def run(tokens: cases.Tokens) -> Any:
        def attend(begin: int, end: int, state: Any = None, **how: Any) -> Any:
            part = cases.take(mechanism, tokens, slice(begin, end))
            return cases.attend(mechanism, part, state, is_causal=True, **how)

        _, before = attend(0, 4)
        whole, end = attend(4, 8, before, mask=mask, segment_ids=ids)
        _, between = attend(4, 6, before, mask=mask[:, :2], segment_ids=ids[:, :2])
        rest, _ = attend(6, 8, between, mask=mask[:, 2:], segment_ids=ids[:, 2:])
        _, none = attend(4, 4, before, segment_ids=ids[:, :0])
        _, kept = attend(0, 4, end)
        return whole[:, 2:], rest, none, kept.segment_id

    whole, rest, none, kept = run(tokens)
    assert_close(rest, whole, np.float32)
    assert isinstance(none, ops.PackedState)
    assert kept.tolist() == [1]
