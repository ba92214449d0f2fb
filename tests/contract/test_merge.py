"""States merge: that of two spans, associative, with ``init_state`` neutral."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import ops
from tests.contract import cases, programs
from tests.contract.programs import LENGTH
from tests.contract.tolerances import assert_close, assert_same_bits

MERGEABLE = cases.offering(lambda can: can.mergeable)
WITH_MERGE_FIELD = [case for case in MERGEABLE if case.values[0].merge_field is not None]
FORMS = [case for case in cases.DIRECTIONS_FORMS if case.values[0].merge_field is not None]
CUT = st.integers(0, LENGTH)


@functools.cache
def merging(mechanism: ops.Mechanism) -> Any:
    @jax.jit
    def laws(a: Any, b: Any, c: Any, empty: Any) -> dict[str, Any]:
        merge = mechanism.merge
        return {
            "left": merge(merge(a, b), c),
            "right": merge(a, merge(b, c)),
            "empty first": merge(empty, b),
            "empty last": merge(b, empty),
        }

    return laws


@pytest.mark.parametrize("mechanism", cases.slow_unless(cases.representative, MERGEABLE))
@given(data=st.data(), size=st.sampled_from([1.0, 300.0]))
def test_merge_is_a_monoid(mechanism: ops.Mechanism, data: Any, size: float) -> None:
    """In each row other padding and other cuts."""
    flags = st.lists(st.booleans(), min_size=cases.BATCH * LENGTH, max_size=cases.BATCH * LENGTH)
    mask = np.array(data.draw(flags)).reshape(cases.BATCH, LENGTH)
    cuts = data.draw(st.lists(st.tuples(CUT, CUT), min_size=cases.BATCH, max_size=cases.BATCH))
    first, second = np.sort(cuts, axis=1).T[..., None]
    tokens = cases.make_numbers(mechanism, LENGTH)
    tokens = tokens._replace(k=size * tokens.k)
    run, position = programs.central(mechanism), np.arange(LENGTH)

    def state_of(inside: Any) -> Any:
        return cases.unpacked(run(tokens, mask & inside, np.zeros_like(mask)).state)

    b = state_of((first <= position) & (position < second))
    spans = state_of(position < first), b, state_of(second <= position)
    with jax.enable_x64(True):
        states = merging(mechanism)(*spans, cases.unpacked(run.begin()))
        states = jax.tree.map(np.asarray, states)
    whole = state_of(position >= 0)
    assert_close(states["left"], whole, np.float64)
    assert_close(states["right"], whole, np.float64)
    assert_same_bits(states["empty first"], b)
    assert_same_bits(states["empty last"], b)


@pytest.mark.parametrize("mechanism, is_causal, form", cases.slow_unless(cases.central, FORMS))
def test_states_of_layers(mechanism: ops.Mechanism, is_causal: bool, form: str) -> None:
    """They lack only what merging reads: outputs, gradients and other fields are the same."""
    run, tokens = programs.attend(mechanism, is_causal, form), cases.make_numbers(mechanism, LENGTH)
    begin, full = (programs.begin(mechanism, packed=True, mergeable=m) for m in (False, True))
    field, y = str(mechanism.merge_field), programs.central(mechanism).weights().y
    weights, of_full = (programs.weigh(y, state) for state in (begin, full))
    both = cases.make_mask(LENGTH), np.asarray(cases.make_ids(LENGTH), np.int32)
    got = run(tokens, begin, *both, weights)
    want = run(tokens, full, *both, of_full.silent._replace(y=weights.y))
    got_state, want_state = cases.unpacked(got.state), cases.unpacked(want.state)
    assert_same_bits(got_state, want_state._replace(**{field: None}))
    assert_same_bits(got.y, want.y)
    silent = run(tokens, begin, *both, weights.silent._replace(y=weights.y))
    programs.assert_gradients_close(silent.tokens, want.tokens, np.float64)
    with jax.enable_x64(True):
        merged = mechanism.merge(got_state, want_state)
        whole = mechanism.merge(want_state, want_state)
        with pytest.raises(
            ValueError, match=f"state_b cannot be merged, because it has no {field}"
        ):
            mechanism.merge(want_state, got_state)
    assert_close(list(merged), list(whole._replace(**{field: None})), np.float64)
