"""What stands at padded positions changes nothing, and seeing nothing is never NaN."""

from typing import Any

import jax
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases, programs
from tests.contract.cases import Tokens
from tests.contract.programs import LENGTH, Central
from tests.contract.tolerances import assert_close, assert_same_bits


def poison(x: Any, mask: np.ndarray, seed: int) -> np.ndarray:
    """NaN and infinities wherever ``mask`` [B, T] is False."""
    x = np.asarray(x)
    bad = np.random.default_rng(seed).choice([np.nan, np.inf, -np.inf], size=x.shape)
    padded = ~mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
    return np.where(padded, bad, x).astype(x.dtype)


def poisoned(mechanism: ops.Mechanism, tokens: Tokens, mask: np.ndarray) -> Tokens:
    q = tokens.q if mechanism.capabilities.learned_query else poison(tokens.q, mask, 1)
    gates = {name: poison(gate, mask, 4) for name, gate in tokens.gates.items()}
    return Tokens(q, poison(tokens.k, mask, 2), poison(tokens.v, mask, 3), tokens.parameters, gates)


CASES = cases.slow_unless(cases.representative, cases.DIRECTIONS_FORMS)


@pytest.mark.parametrize(("mechanism", "is_causal", "form"), CASES)
def test_poisoned_padding_changes_nothing(
    mechanism: ops.Mechanism, is_causal: bool, form: str
) -> None:
    mask, ids = cases.make_mask(LENGTH), cases.make_ids(LENGTH)
    tokens = cases.make_numbers(mechanism, LENGTH)
    run = Central(mechanism, is_causal, form)
    clean = run(tokens, mask, ids)
    # Ids of padded tokens mean nothing either.
    dirty = run(poisoned(mechanism, tokens, mask), mask, np.where(mask, ids, 99))
    assert_same_bits(dirty, clean)
    check_padding(mechanism, dirty, mask)


def check_padding(mechanism: ops.Mechanism, result: programs.Result, mask: np.ndarray) -> None:
    gradient = result.tokens
    finite = [result.y, *cases.meaning(result.state), *jax.tree.leaves((gradient, result.before))]
    assert all(np.isfinite(leaf).all() for leaf in finite)
    assert not result.y[~mask].any()
    assert not gradient.k[~mask].any() and not gradient.v[~mask].any()
    assert gradient.v[mask].any()
    if not mechanism.capabilities.learned_query:
        assert not gradient.q[~mask].any()


@pytest.mark.parametrize(
    "mechanism",
    cases.slow_unless(
        cases.representative, cases.offering(lambda can: can.recurrent and can.causal)
    ),
)
def test_masked_steps_change_nothing(mechanism: ops.Mechanism) -> None:
    """Whatever comes with them; the state, its unused slots too, stays as it is to the bit."""
    mask, starts = cases.make_mask(LENGTH), np.zeros((cases.BATCH, LENGTH), bool)
    tokens = cases.make_numbers(mechanism, LENGTH)
    begin = programs.begin(mechanism, packed=False)
    y = np.empty((cases.BATCH, LENGTH, cases.HEADS, cases.value_dim(mechanism)))
    weights, run = programs.weigh(y, begin), programs.loop(mechanism)
    clean = run(tokens, begin, mask, starts, weights)
    dirty = run(poisoned(mechanism, tokens, mask), begin, mask, starts, weights)
    assert_same_bits(dirty, clean)
    check_padding(mechanism, dirty, mask)
    nothing = run(tokens, clean.state, np.zeros_like(mask), starts, weights)
    assert_same_bits(nothing.state, clean.state)
    assert not nothing.y.any()


def fast_directions(mechanism: ops.Mechanism, is_causal: bool) -> bool:
    return cases.representative(mechanism)


@pytest.mark.parametrize("source", [0, 4])
@pytest.mark.parametrize(
    ("mechanism", "is_causal"), cases.slow_unless(fast_directions, cases.DIRECTIONS)
)
def test_no_tokens(mechanism: ops.Mechanism, is_causal: bool, source: int) -> None:
    """T = 0; and S = 0 or T = 0 alone where queries and keys may differ in number."""
    cross = mechanism.capabilities.cross and not is_causal
    if source and not cross:
        length, source = 0, 0
    else:
        length = 3 if cross and not source else 0
    tokens = cases.make_tokens(mechanism, length, np.float32, source=source)
    state = cases.make_state(mechanism, 8, np.float32)
    y, after = cases.attend(mechanism, tokens, state, is_causal=is_causal)
    assert y.shape == (cases.BATCH, length, cases.HEADS, cases.value_dim(mechanism))
    assert not np.asarray(y).any()
    if not source:
        assert_same_bits(after, state)


@pytest.mark.parametrize(("mechanism", "is_causal", "form"), CASES)
def test_seeing_nothing_has_no_gradient(
    mechanism: ops.Mechanism, is_causal: bool, form: str
) -> None:
    """Every row fully masked, then a real suffix: zero gradients, then finite ones."""
    tokens = cases.make_numbers(mechanism, LENGTH)
    shape = (cases.BATCH, LENGTH)
    run = Central(mechanism, is_causal, form)

    nothing = run(tokens, np.zeros(shape, bool), np.zeros(shape))
    assert not any(leaf.any() for leaf in jax.tree.leaves(nothing.tokens))
    begin = np.array([7, LENGTH, 1, 2, 3, 4, 5, 6])[:, None]
    suffix = run(tokens, np.arange(LENGTH) >= begin, np.zeros(shape)).tokens
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(suffix))
    assert suffix.v[0, 7:].all() and not suffix.v[1].any()


ROWS = 6
CROSS = cases.offering(lambda can: can.cross and can.noncausal, cases.FORMS)


@pytest.mark.parametrize("source", [13, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("mechanism", "form"), cases.slow_unless(cases.representative, CROSS))
def test_cross_attention_is_the_reference(mechanism: ops.Mechanism, form: str, source: int) -> None:
    """T != S, padded queries and padded keys, poisoned."""
    length = 9
    tokens = cases.make_tokens(mechanism, length, np.float32, source=source, batch=ROWS)
    mask, query_mask = cases.make_mask(source)[:ROWS], cases.make_mask(length, seed=2)[:ROWS]
    dirty = tokens._replace(
        q=poison(tokens.q, query_mask, 1),
        k=poison(tokens.k, mask, 2),
        v=poison(tokens.v, mask, 3),
    )

    def run(attend: Any, tokens: Tokens, **how: Any) -> Any:
        return cases.with_gradients(
            lambda t: attend(t.q, t.k, t.v, mask=mask, query_mask=query_mask, **how, **t.own)
        )(tokens)

    got = jax.jit(lambda t: run(mechanism.attend, t, form=form))(dirty)
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda a: a.astype(np.float64), tokens)
        want = jax.tree.map(np.asarray, jax.jit(lambda t: run(mechanism.reference, t))(exact))
    assert_close(got[0], want[0], np.float32, "y")
    gradients = [jax.tree.map(np.asarray, pair[1][0]) for pair in (got, want)]
    if source == 1:  # a single key has weight 1: gradients into scores are sums that cancel
        of_scores = [(g.q, g.k) for g in gradients]
        assert_close(*of_scores, np.float32, "gradient", least=1.0)
        gradients = [g._replace(q=0 * g.q, k=0 * g.k) for g in gradients]
    programs.assert_gradients_close(*gradients, np.float32)
    assert not np.asarray(got[0])[~query_mask].any()
