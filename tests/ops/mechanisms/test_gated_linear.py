"""Gated linear attention: a peer's recurrence, and decays that leave nearly nothing or all."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.mechanisms.gated_linear import GatedLinearState
from tests.compilation import compile_as_users
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.ops.mechanisms.peers import check

GATED = ops.get_mechanism("gated_linear", chunk_size=4)
B, H, K, V = 1, 2, 4, 3


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
def test_the_recurrence_of_flash_linear_attention(form: str, dtype: Any) -> None:
    """Outputs, last state and all gradients, from a state of tokens before."""

    def run(q: Any, k: Any, v: Any, log_decay: Any, state: Any) -> Any:
        before = GatedLinearState(jnp.zeros(state.shape[:3], state.dtype), state)
        y, after = GATED.attend(
            *(q, k, v),
            is_causal=True,
            log_decay=log_decay,
            initial_state=before,
            return_state=True,
            form=form,
        )
        return {"y": y, "last": after.value}

    check("gated_linear", run, dtype)


def make_tokens(length: int) -> Any:
    """Tokens, and decays of a channel that leave 1e-6 and 1 - 1e-6 of it, some nothing at all.

    Each channel has its own share of each kind, so that some remember for a whole sequence.
    """
    rng = np.random.default_rng(0)
    q, k, a = rng.normal(size=(3, B, length, H, K))
    v = rng.normal(size=(B, length, H, V))
    kinds = np.log([1e-6, 1 - 1e-6, 0.5])
    a = kinds[(rng.random(a.shape) < np.linspace(0, 1, K)).astype(int)]
    a[rng.random(a.shape) < 0.05] = kinds[2]
    a[:, :, 0, 0] = kinds[0]
    a[rng.random(a.shape) < 20 / length] = -np.inf
    dy = rng.normal(size=v.shape)
    return tuple(x.astype(np.float32) for x in (q, k, v, a, dy))


def judge(q: Any, k: Any, v: Any, a: Any, dy: Any) -> Any:
    """Outputs and gradients of sum(y * dy), token by token in float64."""
    q, k, v, a, dy = (np.asarray(x, np.float64) for x in (q, k, v, a, dy))
    decay, scale = np.exp(a), K**-0.5
    states = np.zeros((q.shape[1] + 1, B, H, K, V))
    for t in range(q.shape[1]):
        new = k[:, t, ..., None] * v[:, t, :, None]
        states[t + 1] = decay[:, t, ..., None] * states[t] + new
    y = scale * np.einsum("bthk,tbhkv->bthv", q, states[1:])
    dq = scale * np.einsum("bthv,tbhkv->bthk", dy, states[1:])
    dk, dv, da = np.zeros_like(k), np.zeros_like(v), np.zeros_like(a)
    later = np.zeros((B, H, K, V))
    for t in reversed(range(q.shape[1])):
        later = later + scale * q[:, t, ..., None] * dy[:, t, :, None]
        dk[:, t] = np.einsum("bhkv,bhv->bhk", later, v[:, t])
        dv[:, t] = np.einsum("bhkv,bhk->bhv", later, k[:, t])
        da[:, t] = decay[:, t] * np.sum(later * states[t], axis=-1)
        later = decay[:, t, ..., None] * later
    return y, (dq, dk, dv, da)


@pytest.mark.parametrize(
    ("form", "length"),
    [
        pytest.param("parallel", 100, marks=pytest.mark.slow),
        ("chunked", 5_000),
        pytest.param("recurrent", 5_000, marks=pytest.mark.slow),
        pytest.param("chunked", 100_000, marks=pytest.mark.slow),
    ],
)
def test_decays_neither_overflow_nor_underflow(form: str, length: int) -> None:
    """In float32, in values and gradients."""
    tokens = make_tokens(length)
    mechanism = ops.get_mechanism("gated_linear")

    def run(q: Any, k: Any, v: Any, a: Any, dy: Any) -> Any:
        def outputs(q: Any, k: Any, v: Any, a: Any) -> Any:
            return mechanism.attend(q, k, v, is_causal=True, log_decay=a, form=form)

        y, pull = jax.vjp(outputs, q, k, v, a)
        return y, pull(dy)

    assert_close(compile_as_users(run, *tokens)(*tokens), judge(*tokens), np.float32)


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_minus_infinity_forgets_all_that_came_before(form: str) -> None:
    """As if the sequence began there; what came before changes no bit."""
    q, k, v, a, _ = make_tokens(16)
    a = np.where(np.isinf(a), np.float32(-1), a)
    a[:, 8] = -np.inf
    run = jax.jit(partial(GATED.attend, is_causal=True, form=form))
    whole = run(q, k, v, log_decay=a)
    other = (np.concatenate([x[:, :8] + 1, x[:, 8:]], axis=1) for x in (q, k, v))
    assert_same_bits(whole[:, 8:], run(*other, log_decay=a)[:, 8:])
    tail = run(*(x[:, 8:] for x in (q, k, v)), log_decay=np.nan_to_num(a[:, 8:], neginf=0))
    assert_close(whole[:, 8:], tail, np.float32)
