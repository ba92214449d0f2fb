"""Future tokens cannot change the past: not a bit of it, in no form."""

import jax
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.tolerances import assert_same_bits

LENGTH = 19


@pytest.mark.parametrize(("mechanism", "form"), cases.offering(lambda can: can.causal, cases.FORMS))
def test_the_future_cannot_change_the_past(mechanism: ops.Mechanism, form: str) -> None:
    mask, ids = cases.make_mask(LENGTH), cases.make_ids(LENGTH)
    other_mask, other_ids = cases.make_mask(LENGTH, seed=8), cases.make_ids(LENGTH, seed=8)
    tokens = cases.make_tokens(mechanism, LENGTH, np.float32)
    other = cases.make_tokens(mechanism, LENGTH, np.float32, seed=8)
    packed = mechanism.capabilities.packed

    @jax.jit
    def attend(tokens: Tokens, mask: np.ndarray, ids: np.ndarray) -> jax.Array:
        ids = ids if packed else None
        how = {"mask": mask, "segment_ids": ids, "form": form}
        return cases.attend(mechanism, tokens, is_causal=True, **how)[0]

    want = attend(tokens, mask, ids)
    for cut in range(1, LENGTH):
        future = np.arange(LENGTH) >= cut

        def mixed(now: jax.Array, then: jax.Array, future: np.ndarray = future) -> jax.Array:
            return jax.numpy.where(future[None, :, None, None], then, now)

        got = attend(
            Tokens(
                tokens.q if mechanism.capabilities.learned_query else mixed(tokens.q, other.q),
                mixed(tokens.k, 100 * other.k),
                mixed(tokens.v, 100 * other.v),
                tokens.parameters,
            ),
            np.where(future, other_mask, mask),
            np.where(future, other_ids, ids),
        )
        assert_same_bits(got[:, :cut], want[:, :cut], f"before {cut}")


@pytest.mark.parametrize(("mechanism", "form"), cases.offering(lambda can: can.causal, cases.FORMS))
def test_the_past_has_no_gradient_into_the_future(mechanism: ops.Mechanism, form: str) -> None:
    tokens = cases.make_tokens(mechanism, LENGTH, np.float32, batch=2)

    @jax.jit
    def gradient(tokens: Tokens, past: np.ndarray) -> Tokens:
        def loss(tokens: Tokens) -> jax.Array:
            y, _ = cases.attend(mechanism, tokens, is_causal=True, form=form)
            return jax.numpy.sum(jax.numpy.where(past[None, :, None, None], y, 0) ** 2)

        return jax.grad(loss)(tokens)

    for cut in (1, 7, 8, 9, LENGTH - 1):
        got = gradient(tokens, np.arange(LENGTH) < cut)
        assert not np.asarray(got.k[:, cut:]).any() and not np.asarray(got.v[:, cut:]).any()
        assert np.asarray(got.v[:, :cut]).any()
