"""Aaren against the equations of Feng et al. (2024), written out in numpy, float64."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops

B, T, H, K, V = 2, 13, 2, 3, 4
AAREN = ops.get_mechanism("aaren", chunk_size=4)
FORMS = AAREN.capabilities.forms


def make_inputs(offset: float = 0.0, seed: int = 0) -> tuple[Any, Any, Any]:
    """Normal numbers; scores (scale 1) shifted by ``offset``."""
    rng = np.random.default_rng(seed)
    q, k = np.ones((H, K)), rng.normal(size=(B, T, H, K))
    k[..., 0] += offset
    return q, k, rng.normal(size=(B, T, H, V))


@cache
def compiled(**how: Any) -> Any:
    return jax.jit(partial(AAREN.attend, scale=1.0, return_state=True, **how))


def attend(q: Any, k: Any, v: Any, **how: Any) -> Any:
    """In float64."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, compiled(**how)(q, k, v))


@cache
def outputs_and_gradient(form: str) -> Any:
    """(q, k, v) -> outputs and the gradient of their sum into v."""

    def run(q: Any, k: Any, v: Any) -> Any:
        y, pull = jax.vjp(lambda v: AAREN.attend(q, k, v, scale=1.0, is_causal=True, form=form), v)
        return y, *pull(jnp.ones_like(y))

    return jax.jit(run)


@pytest.mark.parametrize("form", FORMS)
def test_the_recurrence_of_section_3_1(form: str) -> None:
    """a_i, c_i, m_i from a_{i-1}, c_{i-1}, m_{i-1}, token by token; o_i = a_i / c_i."""
    q, k, v = make_inputs()
    y, state = attend(q, k, v, is_causal=True, form=form)
    for b in range(B):
        for h in range(H):
            a, c, m = np.zeros(V), 0.0, -np.inf
            for i in range(T):
                s = q[h] @ k[b, i, h]
                m_i = max(m, s)
                a = a * np.exp(m - m_i) + v[b, i, h] * np.exp(s - m_i)
                c = c * np.exp(m - m_i) + np.exp(s - m_i)
                m = m_i
                np.testing.assert_allclose(y[b, i, h], a / c, rtol=1e-13, atol=1e-13)
            np.testing.assert_allclose(state.w[b, h], a, rtol=1e-13)
            np.testing.assert_allclose(state.u[b, h], c, rtol=1e-13)
            assert state.m[b, h] == m


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("offset", [-1e3, -1e4, 1e4])
def test_scores_far_from_zero(form: str, offset: float) -> None:
    """A shift of all scores changes nothing; an initial maximum of 0 would underflow to 0 / 0."""
    q, k, v = make_inputs(offset, seed=3)
    k = np.round(k * 64) / 64  # float32 holds the shifted keys and scores exactly
    plain = k.copy()
    plain[..., 0] -= offset
    q, k, v, plain = (a.astype(np.float32) for a in (q, k, v, plain))
    shifted, shifted_gradient = outputs_and_gradient(form)(q, k, v)
    want, want_gradient = outputs_and_gradient(form)(q, plain, v)
    np.testing.assert_allclose(shifted, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(shifted_gradient, want_gradient, rtol=1e-5, atol=1e-6)


def test_the_scale() -> None:
    """K**-0.5 by default; the hyperparameter replaces it and the argument replaces both."""
    tokens = [a.astype(np.float32) for a in make_inputs()]

    @partial(jax.jit, static_argnums=(0, 1))
    def attend(mechanism: ops.Mechanism, scale: float | None) -> Any:
        options = {} if scale is None else {"scale": scale}
        return mechanism.attend(*tokens, **options)

    fixed = ops.get_mechanism("aaren", scale=2.0)
    default, twice = attend(AAREN, None), attend(fixed, None)
    np.testing.assert_array_equal(attend(AAREN, K**-0.5), default)
    np.testing.assert_array_equal(twice, attend(AAREN, 2.0))
    np.testing.assert_array_equal(attend(fixed, K**-0.5), default)
    assert np.abs(twice - default).max() > 1e-3


def test_a_learned_query_is_not_padded() -> None:
    """Also where its shape [H, K] is that of the mask [B, T]."""
    aaren = ops.get_mechanism("aaren")
    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.normal(size=(2, 4)), np.float32)
    k, v = (jnp.asarray(rng.normal(size=(2, 4, 2, 4)), np.float32) for _ in range(2))
    mask = jnp.array([[True, True, True, False], [False, True, True, True]])
    for attend in (jax.jit(aaren.attend), jax.jit(aaren.reference)):
        batched = attend(q, k, v, mask=mask)
        for row in (0, 1):
            one = slice(row, row + 1)
            np.testing.assert_allclose(
                attend(q, k[one], v[one], mask=mask[one]), batched[one], atol=1e-6
            )
