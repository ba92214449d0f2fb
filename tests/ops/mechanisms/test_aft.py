"""AFT: its equation, its positions, and AFT-simple."""

from functools import partial

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


def test_aft_is_its_equation() -> None:
    """Equation 19 of the element-wise attention paper, written in numpy."""
    q, k, v = qkv(9)
    bias = np.random.default_rng(1).normal(size=(9, 9)).astype(np.float32)
    weight = np.exp(np.asarray(k)[:, None] + bias[None, :, :, None, None])
    want = (weight * np.asarray(v)[:, None]).sum(axis=2) / weight.sum(axis=2)
    got = jitted("aft:gate=False")(q, k, v, position_bias=bias)
    np.testing.assert_allclose(got, want, atol=1e-5)


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


@pytest.mark.parametrize("is_causal", [True, False])
def test_aft_counts_real_tokens(is_causal: bool) -> None:
    q, k, v = qkv(9)
    bias = np.random.default_rng(1).normal(size=(9, 9)).astype(np.float32)
    mask = np.arange(9) >= np.array([[0], [3]])
    for which in ("attend", "reference"):
        attend = partial(jitted("aft", which, is_causal=is_causal), position_bias=bias)
        want = attend(q[:, 3:], k[:, 3:], v[:, 3:])[1]
        np.testing.assert_allclose(attend(q, k, v, mask=mask)[1, 3:], want, atol=1e-6)


def test_aft_where_an_output_is_not_wanted() -> None:
    q, k, v = qkv(5)
    bias = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)
    wanted = np.array([[True, False, True, True, True]] * 2)
    got, want = (
        jitted("aft", which, is_causal=True)(q, k, v, query_mask=wanted, position_bias=bias)
        for which in ("attend", "reference")
    )
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("name", ["aft_simple", "elementwise_series"])
def test_states_have_the_gradients_of_causal_ones(name: str) -> None:
    """Not causal, all tokens are added up at once; the state is the same function of them."""
    _, k, v = qkv(9)
    mask = np.arange(9) < np.array([[9], [5]])

    def gradients(is_causal: bool) -> list[np.ndarray]:
        def leaves(k, v):
            attend = jitted(name, is_causal=is_causal, return_state=True)
            return attend(jnp.ones_like(k), k, v, mask=mask)[1]

        state, pull = jax.vjp(leaves, k, v)
        ones_at = [[jnp.full_like(x, i == j) for j, x in enumerate(state)] for i in range(3)]
        return jax.tree.leaves([pull(type(state)(*leaves)) for leaves in ones_at])

    for got, want in zip(gradients(False), gradients(True), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
