"""States merge: that of two spans, associative, with ``init_state`` neutral."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import ops
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.tolerances import assert_close, assert_same_bits

LENGTH = 9
MERGEABLE = cases.offering(lambda can: can.mergeable)


@functools.cache
def laws(mechanism: ops.Mechanism) -> Any:
    @jax.jit
    def evaluate(tokens: Tokens, mask: Any, first: Any, second: Any) -> dict[str, Any]:
        position = jnp.arange(LENGTH)

        def state_of(inside: Any) -> Any:
            how = {"is_causal": mechanism.capabilities.causal, "form": "recurrent"}
            return cases.attend(mechanism, tokens, mask=mask & inside, **how)[1]

        a = state_of(position < first)
        b = state_of((first <= position) & (position < second))
        c = state_of(second <= position)
        empty = cases.make_state(mechanism, None, np.float64, batch=1)
        merge = mechanism.merge
        return {
            "whole": state_of(position >= 0),
            "left": merge(merge(a, b), c),
            "right": merge(a, merge(b, c)),
            "state": b,
            "empty first": merge(empty, b),
            "empty last": merge(b, empty),
        }

    return evaluate


@pytest.mark.parametrize("mechanism", MERGEABLE)
@given(
    mask=st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH),
    cuts=st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)),
    size=st.sampled_from([1.0, 300.0]),
)
def test_merge_is_a_monoid(
    mechanism: ops.Mechanism, mask: list[bool], cuts: tuple[int, int], size: float
) -> None:
    with jax.enable_x64(True):
        tokens = cases.make_tokens(mechanism, LENGTH, np.float64, batch=1)
        tokens = tokens._replace(k=size * tokens.k)
        states = laws(mechanism)(tokens, np.array([mask]), *sorted(cuts))
    assert_close(states["left"], states["whole"], np.float64)
    assert_close(states["right"], states["whole"], np.float64)
    assert_same_bits(states["empty first"], states["state"])
    assert_same_bits(states["empty last"], states["state"])
