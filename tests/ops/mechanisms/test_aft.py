"""AFT: its equation, its positions, and AFT-simple."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.ops.mechanisms.tokens import jitted, qkv


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("gate", [True, False])
def test_aft_without_biases_is_aft_simple(is_causal: bool, gate: bool) -> None:
    q, k, v = qkv(20)
    full, simple = (
        jitted(f"{name}:gate={gate}", is_causal=is_causal) for name in ("aft", "aft_simple")
    )
    want = simple(q, k, v)
    np.testing.assert_allclose(full(q, k, v), want, atol=1e-6)
    got = full(q, k, v, position_bias=np.zeros((20, 20), np.float32))
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_aft_beyond_its_positions() -> None:
    """An error where lengths tell; NaN under jit, where only the state knows."""
    q, k, v = qkv(9)
    aft, bias = ops.get_mechanism("aft"), jnp.zeros((4, 4))
    with pytest.raises(ValueError, match="holds 4 positions, got sequences of 9"):
        aft.attend(q, k, v, position_bias=bias)
    with pytest.raises(ValueError, match=r"must have shape \[N, N\], got \(4, 3\)"):
        aft.attend(q, k, v, position_bias=bias[:, :3])
    mask = jnp.arange(9) < jnp.array([[4], [5]])
    with pytest.raises(ValueError, match="holds 4 positions, got sequences of 5"):
        aft.attend(q, k, v, is_causal=True, mask=mask, position_bias=bias)
    y = jax.jit(lambda mask: aft.attend(q, k, v, is_causal=True, mask=mask, position_bias=bias))(
        mask
    )
    assert np.isfinite(y[0]).all() and np.isnan(y[1, 4]).all()
    with pytest.raises(ValueError, match="has biases for 4 positions, and its cache cannot have 9"):
        ops.get_mechanism("aft", max_length=4).init_state(2, 2, 8, 8, max_length=9)
    state = aft.init_state(2, 2, 8, 8, max_length=9)
    first = slice(0, 4)
    attend = jitted("aft", return_state=True)
    tokens = (x[:, first] for x in (q, k, v))
    _, state = attend(*tokens, initial_state=state, position_bias=bias)
    with pytest.raises(ValueError, match="holds 4 positions, got token number 5"):
        aft.step(q[:, 4], k[:, 4], v[:, 4], state, position_bias=bias)
    with pytest.raises(ValueError, match=r"must have shape \[N, N\], got \(4,\)"):
        aft.step(q[:, 4], k[:, 4], v[:, 4], state, position_bias=bias[0])


def test_aft_where_an_output_is_not_wanted() -> None:
    q, k, v = qkv(5)
    bias = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)
    wanted = np.array([[True, False, True, True, True]] * 2)
    got, want = (
        jitted("aft", which, is_causal=True)(q, k, v, query_mask=wanted, position_bias=bias)
        for which in ("attend", "reference")
    )
    np.testing.assert_allclose(got, want, atol=1e-6)
