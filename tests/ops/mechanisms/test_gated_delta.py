"""The gated delta rule: peers' recurrences, overwriting, and states that stay small."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.mechanisms.gated_delta import GatedDeltaState
from tests.compilation import compile_as_users
from tests.contract.tolerances import assert_close
from tests.ops.mechanisms import recurrences
from tests.ops.mechanisms.peers import check
from tests.ops.mechanisms.recurrences import FORMS

DELTA = ops.get_mechanism("gated_delta", chunk_size=4)
NEGATIVE = ops.get_mechanism("gated_delta", chunk_size=4, allow_neg_eigval=True)


def after(state: Any) -> GatedDeltaState:
    """A state whose tokens all came before."""
    return GatedDeltaState(None, state)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
def test_the_recurrence_of_flash_linear_attention(form: str, dtype: Any) -> None:
    """Outputs, last state and all gradients, from a state of tokens before."""

    def run(q: Any, k: Any, v: Any, log_decay: Any, beta: Any, state: Any) -> Any:
        y, last = DELTA.attend(
            *(q, k, v),
            is_causal=True,
            log_decay=log_decay,
            beta=beta,
            initial_state=after(state),
            return_state=True,
            form=form,
        )
        return {"y": y, "last": last.value}

    check("gated_delta", run, dtype)


@pytest.mark.parametrize("form", FORMS)
def test_without_decay_it_is_the_delta_rule_of_flash_linear_attention(form: str) -> None:
    def run(q: Any, k: Any, v: Any, beta: Any, state: Any) -> Any:
        y, last = DELTA.attend(
            *(q, k, v),
            is_causal=True,
            log_decay=jnp.zeros_like(beta),
            beta=beta,
            initial_state=after(state),
            return_state=True,
            form=form,
        )
        return {"y": y, "last": last.value}

    check("delta", run, np.float64)


def judge(k: Any, v: Any, a: Any, beta: Any) -> Any:
    """The states after every token, [T, K, V], of one row and head in float64."""
    k, v, a, beta = (np.asarray(x, np.float64)[0, :, 0] for x in (k, v, a, beta))
    states = np.zeros((len(k) + 1, k.shape[1], v.shape[1]))
    for t in range(len(k)):
        erase = np.eye(k.shape[1]) - beta[t] * np.outer(k[t], k[t])
        states[t + 1] = np.exp(a[t]) * erase @ states[t] + beta[t] * np.outer(k[t], v[t])
    return states[1:]


def unit_keys(length: int, dim: int) -> Any:
    k = np.random.default_rng(0).normal(size=(1, length, 1, dim))
    return (k / np.linalg.norm(k, axis=-1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("form", FORMS)
def test_orthogonal_keys_are_overwritten_one_by_one(form: str) -> None:
    """Each is read as what was written last, whatever was written at the others."""
    dim, rounds = 4, 5
    delta = ops.get_mechanism("gated_delta", chunk_size=8, scale=1.0)
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    which = np.concatenate([rng.permutation(dim) for _ in range(rounds)])
    k: Any = basis[which][None, :, None]
    v: Any = rng.normal(size=(1, dim * rounds, 1, 3))
    ones = np.ones((1, dim * rounds, 1))
    with jax.enable_x64(True):
        run = jax.jit(partial(delta.attend, is_causal=True, return_state=True, form=form))
        y, state = run(k, k, v, log_decay=0 * ones, beta=ones)
    assert_close(np.asarray(y), v, np.float64)
    last = np.argsort(which[-dim:])
    assert_close(basis @ np.asarray(state.value)[0, 0], v[0, -dim:, 0][last], np.float64)
    np.testing.assert_allclose(state.transition, 0, atol=1e-14)  # nothing is left of the past


@pytest.mark.parametrize("form", FORMS)
def test_one_key_again_and_again(form: str) -> None:
    """A chunk whose keys are all alike, or nearly: the triangular system is as large as can be."""
    length, dim = 64, 4
    delta = ops.get_mechanism("gated_delta")
    ones, v = np.ones((1, length, 1), np.float32), unit_keys(length, 3)
    run = jax.jit(partial(delta.attend, is_causal=True, form=form))
    for spread in (0.0, 1e-3, 1e-1):
        k = np.ones((1, length, 1, dim), np.float32) + spread * unit_keys(length, dim)
        k = (k / np.linalg.norm(k, axis=-1, keepdims=True)).astype(np.float32)
        y = run(k, k, v, log_decay=0 * ones, beta=ones)
        states = judge(k, v, 0 * ones, ones)
        want = np.einsum("tk,tkv->tv", k[0, :, 0] * dim**-0.5, states)
        assert_close(y[0, :, 0], want.astype(np.float32), np.float32)


@pytest.mark.parametrize("form", ["chunked", pytest.param("recurrent", marks=pytest.mark.slow)])
def test_the_state_stays_small(form: str) -> None:
    """10,000 values W k of unit keys, in float32: it only ever comes nearer to W."""
    length, dim = 10_000, 8
    rng = np.random.default_rng(1)
    k, wanted = unit_keys(length, dim), rng.normal(size=(dim, 3)).astype(np.float32)
    v = k @ wanted
    beta = rng.uniform(0, 1, (1, length, 1)).astype(np.float32)
    delta = ops.get_mechanism("gated_delta")
    tokens = (k, v, 0 * beta, beta)

    def run(k: Any, v: Any, log_decay: Any, beta: Any) -> Any:
        how: Any = {"log_decay": log_decay, "beta": beta, "form": form}
        return delta.attend(k, k, v, is_causal=True, return_state=True, **how)

    y, state = compile_as_users(run, *tokens)(*tokens)
    states = judge(*tokens)
    errors = np.linalg.norm(states - wanted, axis=(1, 2))
    assert np.all(np.diff(errors) < 1e-6)  # keys and values are rounded
    assert errors[-1] < 1e-6
    np.testing.assert_allclose(state.value[0, 0], wanted, rtol=0, atol=1e-5)
    assert np.linalg.norm(state.transition) < 1e-5  # and of what was before, nothing is left
    want = np.einsum("tk,tkv->tv", k[0, :, 0] * dim**-0.5, states)
    assert_close(y[0, :, 0], want.astype(np.float32), np.float32)


def test_minus_infinity_forgets_all_that_came_before() -> None:
    """As if those before were padding, in values and gradients."""
    length, begin = 16, 6
    rng = np.random.default_rng(2)
    k, v, q = unit_keys(length, 4), unit_keys(length, 3), unit_keys(length, 4)
    beta = rng.uniform(0, 1, (1, length, 1)).astype(np.float32)
    a = -rng.uniform(0, 1, (1, length, 1)).astype(np.float32)
    a[:, begin] = -np.inf

    @partial(jax.jit, static_argnames="form")
    def run(tokens: Any, mask: Any, form: str) -> Any:
        def outputs(q: Any, k: Any, v: Any, a: Any, beta: Any) -> Any:
            gates: Any = {"log_decay": a, "beta": beta, "form": form}
            return DELTA.attend(q, k, v, is_causal=True, mask=mask, **gates)

        y, pull = jax.vjp(outputs, *tokens)
        return y, pull(jnp.sin(jnp.arange(float(y.size))).reshape(y.shape))

    every, late = np.ones((1, length), bool), (np.arange(length) >= begin)[None]
    for form in ("parallel", "chunked"):
        y, gradients = run((q, k, v, a, beta), every, form=form)
        tail, wanted = run((q, k, v, np.nan_to_num(a, neginf=0), beta), late, form=form)
        assert_close(y[late], tail[late], np.float32)
        for got, want in zip(gradients, wanted, strict=True):
            assert np.isfinite(got).all()
            assert_close(got[:, begin + 1 :], want[:, begin + 1 :], np.float32)
        assert not np.asarray(gradients[3])[:, begin].any()


def loop(q: Any, k: Any, v: Any, log_decay: Any, beta: Any) -> Any:
    """The formula, token by token in float64."""
    batch, length, heads, dim = k.shape
    state, y = np.zeros((batch, heads, dim, v.shape[-1])), np.zeros_like(v)
    for t in range(length):
        key, rate = k[:, t, :, :, None], beta[:, t, :, None, None]
        old = np.swapaxes(key, 2, 3) @ state
        state = np.exp(log_decay[:, t])[..., None, None] * (state - rate * key * old)
        state = state + rate * key * v[:, t, :, None]
        y[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], state) / np.sqrt(dim)
    return y


@pytest.mark.parametrize("form", FORMS)
def test_negative_eigenvalues(form: str) -> None:
    tokens, rng = recurrences.make_tokens(), np.random.default_rng(3)
    gates = {"log_decay": -rng.uniform(0, 1, (2, 9, 2)), "beta": rng.uniform(0.5, 1.99, (2, 9, 2))}
    recurrences.check(NEGATIVE, loop, tokens | gates, {}, form)


@pytest.mark.parametrize("form", FORMS)
def test_a_token_of_beta_2_negates_the_value_of_its_key(form: str) -> None:
    """So the state is the parity of the tokens so far, which no beta below 1 can count."""
    bits = np.random.default_rng(4).integers(0, 2, 200)
    bits[0] = 1  # writes the value 1 at the key: 0.5 v with beta 2
    ones, v = np.ones((1, 200, 1)), np.zeros((1, 200, 1, 1))
    v[0, 0] = 0.5
    y = jax.jit(partial(NEGATIVE.attend, is_causal=True, form=form))(
        *(ones[..., None], ones[..., None], v),
        log_decay=0 * ones,
        beta=2 * bits[None, :, None] * ones,
    )
    np.testing.assert_array_equal(y.ravel(), (-1.0) ** (np.cumsum(bits) - 1))


def test_beta_is_at_most_2_with_negative_eigenvalues() -> None:
    one = jnp.ones((1, 1, 1, 2))
    for delta, limit in ((DELTA, 1), (NEGATIVE, 2)):
        with pytest.raises(ValueError, match=f"beta of 'gated_delta' must be .* at most {limit}"):
            delta.attend(
                one, one, one, is_causal=True, log_decay=0 * one[..., 0], beta=2.5 * one[..., 0]
            )
    beta = NEGATIVE.token_arguments[1]
    np.testing.assert_allclose(beta.activation(jnp.array([-99.0, 0.0, 99.0])), [0, 1, 2], atol=1e-7)
