"""What stands at padded positions changes nothing, and seeing nothing is never NaN."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.tolerances import assert_close, assert_same_bits

LENGTH = 11


def poison(x: Any, mask: np.ndarray, seed: int) -> Any:
    """NaN and infinities wherever ``mask`` [B, T] is False."""
    bad = np.random.default_rng(seed).choice([np.nan, np.inf, -np.inf], size=x.shape)
    padded = ~mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
    return jnp.asarray(np.where(padded, bad, x), x.dtype)


def poisoned(mechanism: ops.Mechanism, tokens: Tokens, mask: np.ndarray) -> Tokens:
    q = tokens.q if mechanism.capabilities.learned_query else poison(tokens.q, mask, 1)
    return tokens._replace(q=q, k=poison(tokens.k, mask, 2), v=poison(tokens.v, mask, 3))


CASES = cases.slow_unless(cases.central, cases.DIRECTIONS_FORMS)


@functools.cache
def outputs_and_gradients(mechanism: ops.Mechanism, is_causal: bool, form: str) -> Any:
    """(tokens, mask, ids) -> outputs and state, and their gradients; ids count if causal."""
    packed = is_causal and mechanism.capabilities.packed

    @jax.jit
    def run(tokens: Tokens, mask: Any, ids: Any) -> Any:
        how = {"mask": mask, "segment_ids": ids if packed else None, "form": form}

        def attend(tokens: Tokens) -> Any:
            y, state = cases.attend(mechanism, tokens, is_causal=is_causal, **how)
            return y, cases.meaning(state)

        return cases.with_gradients(attend)(tokens)

    return run


@pytest.mark.parametrize(("mechanism", "is_causal", "form"), CASES)
def test_poisoned_padding_changes_nothing(
    mechanism: ops.Mechanism, is_causal: bool, form: str
) -> None:
    mask, ids = cases.make_mask(LENGTH), cases.make_ids(LENGTH)
    tokens = cases.make_tokens(mechanism, LENGTH, np.float32)
    evaluate = outputs_and_gradients(mechanism, is_causal, form)
    clean = evaluate(tokens, mask, ids)
    # Ids of padded tokens mean nothing either.
    dirty = evaluate(poisoned(mechanism, tokens, mask), mask, np.where(mask, ids, 99))
    assert_same_bits(dirty, clean)

    (y, _), (gradient,) = dirty
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(dirty))
    assert not np.asarray(y)[~mask].any()
    assert not np.asarray(gradient.k)[~mask].any() and not np.asarray(gradient.v)[~mask].any()
    assert np.asarray(gradient.v)[mask].any()
    if not mechanism.capabilities.learned_query:
        assert not np.asarray(gradient.q)[~mask].any()


@pytest.mark.parametrize("mechanism", cases.offering(lambda can: can.recurrent))
def test_a_masked_step_changes_nothing(mechanism: ops.Mechanism) -> None:
    tokens = cases.make_tokens(mechanism, 2, np.float32)
    first, second = (cases.take(mechanism, tokens, t) for t in (0, 1))
    mask = np.array([True, False, False, True, False, True])

    def step(tokens: Tokens, state: Any, mask: Any) -> Any:
        return mechanism.step(tokens.q, tokens.k, tokens.v, state, mask, **tokens.parameters)

    def two_steps(second: Tokens) -> Any:
        _, state = step(first, cases.make_state(mechanism, 4, np.float32), None)
        y, after = step(second, state, mask)
        return y, cases.meaning(after), cases.meaning(state)

    evaluate = jax.jit(cases.with_gradients(two_steps))
    dirty = evaluate(poisoned(mechanism, second, mask))
    assert_same_bits(dirty, evaluate(second))
    (y, after, before), (gradient,) = dirty
    assert not np.asarray(y)[~mask].any() and np.asarray(y)[mask].any()
    for a, b in zip(after, before, strict=True):
        np.testing.assert_array_equal(np.asarray(a)[~mask], np.asarray(b)[~mask])
    assert not np.asarray(gradient.k)[~mask].any() and not np.asarray(gradient.v)[~mask].any()


@pytest.mark.parametrize("source", [0, 4])
@pytest.mark.parametrize(("mechanism", "is_causal"), cases.DIRECTIONS)
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
    tokens = cases.make_tokens(mechanism, LENGTH, np.float32)
    shape = (cases.BATCH, LENGTH)
    evaluate = outputs_and_gradients(mechanism, is_causal, form)

    _, nothing = evaluate(tokens, np.zeros(shape, bool), np.zeros(shape, np.int32))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(nothing))
    begin = np.array([7, LENGTH, 1, 2, 3, 4])[:, None]
    _, (suffix,) = evaluate(tokens, np.arange(LENGTH) >= begin, np.zeros(shape, np.int32))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(suffix))
    assert np.asarray(suffix.v)[0, 7:].all() and not np.asarray(suffix.v)[1].any()


CROSS = cases.offering(lambda can: can.cross and can.noncausal, cases.FORMS)


@pytest.mark.parametrize("source", [13, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("mechanism", "form"), cases.slow_unless(cases.central, CROSS))
def test_cross_attention_is_the_reference(mechanism: ops.Mechanism, form: str, source: int) -> None:
    """T != S, padded queries and padded keys, poisoned."""
    length = 9
    tokens = cases.make_tokens(mechanism, length, np.float32, source=source)
    mask, query_mask = cases.make_mask(source), cases.make_mask(length, seed=2)
    dirty = tokens._replace(
        q=poison(tokens.q, query_mask, 1),
        k=poison(tokens.k, mask, 2),
        v=poison(tokens.v, mask, 3),
    )

    def run(attend: Any, tokens: Tokens, **how: Any) -> Any:
        return cases.with_gradients(
            lambda t: attend(t.q, t.k, t.v, mask=mask, query_mask=query_mask, **how, **t.parameters)
        )(tokens)

    got = jax.jit(lambda t: run(mechanism.attend, t, form=form))(dirty)
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda a: a.astype(np.float64), tokens)
        want = jax.tree.map(np.asarray, jax.jit(lambda t: run(mechanism.reference, t))(exact))
    assert_close(got, want, np.float32)
    assert not np.asarray(got[0])[~query_mask].any()
