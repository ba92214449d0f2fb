"""Future tokens cannot change the past: not a bit of it, in no form, whatever they hold."""

from typing import Any

import jax
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases, programs
from tests.contract.cases import Tokens
from tests.contract.programs import LENGTH, Central
from tests.contract.tolerances import assert_close, assert_same_bits


def fast(mechanism: ops.Mechanism, form: str) -> bool:
    """Further powers are chunked as the first are, and take longest."""
    further = cases.spec_of(mechanism) == "taylorshift:order=4"
    return cases.representative(mechanism, form) and not further


CAUSAL = cases.slow_unless(fast, cases.offering(lambda can: can.causal, cases.FORMS))


@pytest.mark.parametrize(("mechanism", "form"), CAUSAL)
def test_the_future_cannot_change_the_past(mechanism: ops.Mechanism, form: str) -> None:
    mask, ids = cases.make_mask(LENGTH), cases.make_ids(LENGTH)
    other_mask, other_ids = cases.make_mask(LENGTH, seed=8), cases.make_ids(LENGTH, seed=8)
    tokens = cases.make_numbers(mechanism, LENGTH)
    other = cases.make_numbers(mechanism, LENGTH, seed=8)
    run = Central(mechanism, True, form)

    want = run(tokens, mask, ids).y
    for cut in range(1, LENGTH):
        future = np.arange(LENGTH) >= cut
        late = future[None, :, None, None]
        changed = Tokens(
            tokens.q if mechanism.capabilities.learned_query else np.where(late, other.q, tokens.q),
            np.where(late, 100 * other.k, tokens.k),
            np.where(late, 100 * other.v, tokens.v),
            tokens.parameters,
            {
                name: np.where(future.reshape(1, -1, *(1,) * (gate.ndim - 2)), gate, own)
                for (name, own), gate in zip(
                    tokens.gates.items(), other.gates.values(), strict=True
                )
            },
        )
        got = run(changed, np.where(future, other_mask, mask), np.where(future, other_ids, ids)).y
        assert_same_bits(got[:, :cut], want[:, :cut], f"before {cut}")
        assert np.abs(got[0, cut:] - want[0, cut:]).max() > 1e-3  # which they do see


@pytest.mark.parametrize(("mechanism", "form"), CAUSAL)
def test_the_past_has_no_gradient_into_the_future(mechanism: ops.Mechanism, form: str) -> None:
    tokens = cases.make_numbers(mechanism, LENGTH)
    mask, ids = np.ones((2, cases.BATCH, LENGTH), np.int32)
    run = Central(mechanism, True, form)
    weights = run.weights()
    for cut in (1, 3, 4, 5, LENGTH - 1):
        past = np.arange(LENGTH)[None, :, None, None] < cut
        only = weights.silent._replace(y=np.where(past, weights.y, 0))
        got = run(tokens, mask.astype(bool), ids, only).tokens
        assert not got.k[:, cut:].any() and not got.v[:, cut:].any()
        assert not any(gate[:, cut:].any() for gate in got.gates.values())
        assert got.v[:, :cut].any()


# -- NaN, infinity and numbers near overflow ----------------------------------------------

LARGEST = np.finfo(np.float64).max
POISON = np.array([np.nan, np.inf, -np.inf, LARGEST, -LARGEST, 1e200, np.nan, 1.4e154])
"""What the token of each row holds; 1e200 is to float64 what 1e20 is to float32: its square
overflows. The last one is the root of the largest number."""


def poison(tokens: Tokens, name: str, at: int, rows: Any = range(cases.BATCH)) -> Tokens:
    """One token of the first head: a single channel in even rows, all of them in odd ones."""
    own = {"q": tokens.q, "k": tokens.k, "v": tokens.v, **tokens.gates}
    x = own[name].copy()
    for row in rows:
        x[row, at, 0, ...] = np.where(
            np.arange(x[row, at, 0].size) < 1 + row % 2 * 99, POISON[row], x[row, at, 0]
        )
    if name in tokens.gates:
        return tokens._replace(gates={**tokens.gates, name: x})
    return tokens._replace(**{name: x})


def attends(
    mechanism: ops.Mechanism, name: str, at: int, ids: np.ndarray, earlier: Any = None
) -> np.ndarray:
    """Bool [B, T, H]: the outputs that may depend on an input of the token ``at``.

    The ids of an earlier call say which token of its segment it is: the first few are sinks, which
    a window does not hide.
    """
    before = 0 if earlier is None else earlier.shape[1]
    ids = ids if earlier is None else np.concatenate([earlier, ids], axis=1)
    index, at = np.arange(ids.shape[1]), at + before
    segment = np.cumsum(np.diff(ids, axis=1, prepend=0) != 0, axis=1)
    mine = segment == segment[:, at : at + 1]
    is_sink = mine[:, :at].sum(axis=1) < getattr(mechanism, "sinks", 0)
    window = getattr(mechanism, "window", None) or len(index)
    near = (index < at + window) | is_sink[:, None]
    later = (index == at) if name == "q" else (index >= at) & near
    return (later & mine)[:, before:, None] & (np.arange(cases.HEADS) == 0)


def inputs_of_tokens(mechanism: ops.Mechanism, tokens: Tokens) -> list[str]:
    return [*([] if mechanism.capabilities.learned_query else ["q"]), "k", "v", *tokens.gates]


@pytest.mark.parametrize(("mechanism", "form"), CAUSAL)
def test_nothing_that_later_tokens_hold_reaches_the_past(
    mechanism: ops.Mechanism, form: str
) -> None:
    """Nor other segments and heads: outputs, states and gradients, after an earlier call."""
    run, mask = Central(mechanism, True, form), np.ones((cases.BATCH, LENGTH), bool)
    ids = cases.make_ids(2 * LENGTH)
    earlier, tokens = (cases.make_numbers(mechanism, LENGTH, seed=seed) for seed in (1, 0))
    weights, state = run.weights(), run(earlier, mask, ids[:, :LENGTH]).state
    before, ids = np.split(ids if run.packed else np.zeros_like(ids), 2, axis=1)
    for name in inputs_of_tokens(mechanism, tokens):
        for at in (1, 6):
            affected = attends(mechanism, name, at, ids, before)
            only = weights.silent._replace(y=np.where(affected[..., None], 0, weights.y))
            got = run(poison(tokens, name, at), mask, ids, only, state)
            want = run(tokens, mask, ids, only, state)
            where = f"{name} of token {at}"
            assert_same_bits(got.y[~affected], want.y[~affected], where)
            programs.assert_gradients_close(got.tokens, want.tokens, np.float64, where)
            assert_same_bits(got.before, want.before, where)
            if name in ("q", "k", "v"):
                assert np.isnan(got.y[0][affected[0]]).all(), where
            if mechanism.capabilities.recurrent:
                check_state(got.state, want.state, affected[:, -1].any(axis=1), name)
    if state is not None and run.packed:
        check_initial_state(run, tokens, state, ids)


def check_initial_state(run: Central, tokens: Tokens, state: Any, ids: np.ndarray) -> None:
    """The first head of the state is poisoned, which later segments do not continue."""

    def poisoned(leaf: np.ndarray) -> np.ndarray:
        head = np.arange(leaf.shape[leaf.shape.index(cases.HEADS, 1)]) == 0
        head = head.reshape(-1, *(1,) * (leaf.ndim - 1 - leaf.shape.index(cases.HEADS, 1)))
        return np.where(head, POISON.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf)

    bad = cases.with_floats(state, [poisoned(leaf) for leaf in cases.float_leaves(state)])
    mask, index = np.ones((cases.BATCH, LENGTH), bool), np.arange(LENGTH)
    segment = np.cumsum(np.diff(ids, axis=1, prepend=state.segment_id[:, None]) != 0, axis=1)
    window = getattr(run.mechanism, "window", None) or LENGTH + 1
    reached = (index < window - 1) | (getattr(run.mechanism, "sinks", 0) > 0)
    affected = ((segment == 0) & reached)[..., None] & (np.arange(cases.HEADS) == 0)
    weights = run.weights()
    only = weights.silent._replace(y=np.where(affected[..., None], 0, weights.y))
    got, want = run(tokens, mask, ids, only, bad), run(tokens, mask, ids, only, state)
    assert_same_bits(got.y[~affected], want.y[~affected], "state")
    programs.assert_gradients_close(got.tokens, want.tokens, np.float64, "state")
    assert_close(got.before, want.before, np.float64, "gradient into the state")
    assert np.isnan(got.y[0][affected[0]]).all()
    check_state(got.state, want.state, affected[:, -1].any(axis=1), "state")


def check_state(got: Any, want: Any, affected: np.ndarray, name: str) -> None:
    """The same bits in rows whose state does not follow from the token; elsewhere NaN of NaN."""
    for g, w in zip(cases.float_leaves(got), cases.float_leaves(want), strict=True):
        assert_same_bits(g[~affected], w[~affected], name)
    held = affected & np.isnan(POISON) & (name not in ("q", "log_decay"))
    leaves = [np.isnan(leaf).reshape(len(leaf), -1).any(axis=1) for leaf in cases.float_leaves(got)]
    assert np.any(leaves, axis=0)[held].all(), name


@pytest.mark.parametrize(
    "mechanism",
    cases.slow_unless(
        cases.representative, cases.offering(lambda can: can.recurrent and can.causal)
    ),
)
def test_steps_do_not_change_earlier_outputs(mechanism: ops.Mechanism) -> None:
    """Nor any number of other heads and examples; a state that took in NaN holds NaN."""
    mask = np.ones((cases.BATCH, LENGTH), bool)
    tokens, begin = cases.make_numbers(mechanism, LENGTH), programs.begin(mechanism, packed=False)
    weights, run = programs.weigh(np.empty_like(tokens.v), begin), programs.loop(mechanism)
    ids, example = cases.make_ids(LENGTH), np.arange(cases.BATCH)
    starts = np.diff(ids, axis=1, prepend=ids[:, :1]) != 0
    want = run(tokens, begin, mask, starts, weights)
    for name in inputs_of_tokens(mechanism, tokens):
        for poisoned in (example % 2 == 0, example % 2 == 1):
            affected = attends(mechanism, name, 6, ids) & poisoned[:, None, None]
            tokens_now = poison(tokens, name, 6, np.flatnonzero(poisoned))
            got = run(tokens_now, begin, mask, starts, weights)
            assert_same_bits(got.y[~affected], want.y[~affected], name)
            check_state(got.state, want.state, affected[:, -1].any(axis=1), name)


LOOPS = cases.offering(lambda can: can.causal and can.constant_memory)


@pytest.mark.parametrize("mechanism", cases.slow_unless(cases.representative, LOOPS))
def test_outputs_without_gradients_are_causal(mechanism: ops.Mechanism) -> None:
    """What ``auto`` runs where nothing is differentiated, such as a loop over tokens."""
    tokens = cases.make_numbers(mechanism, LENGTH)
    run = jax.jit(lambda tokens: mechanism.attend(*tokens[:3], is_causal=True, **tokens.own))
    with jax.enable_x64(True):
        want = np.asarray(run(tokens))
        for name in inputs_of_tokens(mechanism, tokens):
            affected = attends(mechanism, name, 6, np.zeros((cases.BATCH, LENGTH), int))
            got = np.asarray(run(poison(tokens, name, 6)))
            assert_same_bits(got[~affected], want[~affected], name)
            if name in ("k", "v"):
                assert np.isnan(got[0][affected[0]]).any()
