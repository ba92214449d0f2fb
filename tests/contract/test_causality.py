"""Future tokens cannot change the past: not a bit of it, in no form."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.tolerances import assert_same_bits

LENGTH = 11
CAUSAL = cases.slow_unless(cases.central, cases.offering(lambda can: can.causal, cases.FORMS))


@functools.cache
def outputs_and_gradient(mechanism: ops.Mechanism, form: str) -> Any:
    """(tokens, mask, ids, past bool [T]) -> y, and the gradient of a loss of the past's y."""
    packed = mechanism.capabilities.packed

    @jax.jit
    def run(tokens: Tokens, mask: Any, ids: Any, past: Any) -> Any:
        def loss(tokens: Tokens) -> Any:
            how = {"mask": mask, "segment_ids": ids if packed else None, "form": form}
            y, _ = cases.attend(mechanism, tokens, is_causal=True, **how)
            return jnp.sum(jnp.where(past[None, :, None, None], y, 0) ** 2), y

        (_, y), gradient = jax.value_and_grad(loss, has_aux=True)(tokens)
        return y, gradient

    return run


@pytest.mark.parametrize(("mechanism", "form"), CAUSAL)
def test_the_future_cannot_change_the_past(mechanism: ops.Mechanism, form: str) -> None:
    mask, ids = cases.make_mask(LENGTH), cases.make_ids(LENGTH)
    other_mask, other_ids = cases.make_mask(LENGTH, seed=8), cases.make_ids(LENGTH, seed=8)
    tokens = cases.make_tokens(mechanism, LENGTH, np.float32)
    other = cases.make_tokens(mechanism, LENGTH, np.float32, seed=8)
    everything = np.ones(LENGTH, bool)
    run = outputs_and_gradient(mechanism, form)

    want, _ = run(tokens, mask, ids, everything)
    for cut in range(1, LENGTH):
        future = np.arange(LENGTH) >= cut

        def mixed(now: jax.Array, then: jax.Array, future: np.ndarray = future) -> jax.Array:
            return jnp.where(future[None, :, None, None], then, now)

        changed = Tokens(
            tokens.q if mechanism.capabilities.learned_query else mixed(tokens.q, other.q),
            mixed(tokens.k, 100 * other.k),
            mixed(tokens.v, 100 * other.v),
            tokens.parameters,
        )
        changed_mask = np.where(future, other_mask, mask)
        got, _ = run(changed, changed_mask, np.where(future, other_ids, ids), everything)
        assert_same_bits(got[:, :cut], want[:, :cut], f"before {cut}")


@pytest.mark.parametrize(("mechanism", "form"), CAUSAL)
def test_the_past_has_no_gradient_into_the_future(mechanism: ops.Mechanism, form: str) -> None:
    tokens = cases.make_tokens(mechanism, LENGTH, np.float32)
    mask, ids = np.ones((2, cases.BATCH, LENGTH), np.int32)
    run = outputs_and_gradient(mechanism, form)
    for cut in (1, 3, 4, 5, LENGTH - 1):
        _, got = run(tokens, mask.astype(bool), ids, np.arange(LENGTH) < cut)
        assert not np.asarray(got.k[:, cut:]).any() and not np.asarray(got.v[:, cut:]).any()
        assert np.asarray(got.v[:, :cut]).any()
