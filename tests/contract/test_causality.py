"""Future tokens cannot change the past: not a bit of it, in no form."""

import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.programs import LENGTH, Central
from tests.contract.tolerances import assert_same_bits


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
