"""RWKV-4: its author's recurrence, the equations of Peng et al. (2023), and its first values."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn, ops
from flax_linattn.ops.engine.exponential import ForgettingState
from tests.compilation import compile_as_users
from tests.contract.tolerances import assert_close
from tests.ops.mechanisms.peers import check

RWKV = ops.get_mechanism("rwkv", chunk_size=4)
FORMS = ["parallel", "chunked", "recurrent"]
B, T, H, K = 2, 13, 2, 3


def make_tokens(length: int = T) -> Any:
    """q, k, v, time_decay, time_first."""
    rng = np.random.default_rng(0)
    return (*rng.normal(size=(3, B, length, H, K)), *rng.normal(size=(2, H, K)))


def attend(q: Any, k: Any, v: Any, time_decay: Any, time_first: Any, **how: Any) -> Any:
    return RWKV.attend(q, k, v, is_causal=True, time_decay=time_decay, time_first=time_first, **how)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
def test_the_recurrence_of_its_author(form: str, dtype: Any) -> None:
    """Outputs, last state and all gradients, from a state of tokens before."""

    def run(
        q: Any, k: Any, v: Any, time_decay: Any, time_first: Any, w: Any, u: Any, m: Any
    ) -> Any:
        none = jnp.zeros_like(m)
        y, last = attend(
            *(q, k, v, time_decay, time_first),
            initial_state=ForgettingState(none, m, none, u, w),
            return_state=True,
            form=form,
        )
        return {"y": y, "last_w": last.w, "last_u": last.u, "last_m": last.m + last.fallen}

    check("rwkv", run, dtype)


@pytest.mark.parametrize("form", ["chunked", "recurrent"])
@pytest.mark.parametrize("length", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_keys_of_ten_thousand(form: str, length: int) -> None:
    """Appendix D: nothing overflows; a large key is remembered until its decay has eaten it."""
    mechanism = ops.get_mechanism("rwkv")
    rng = np.random.default_rng(3)
    q, k, v = rng.normal(size=(3, 1, length, 1, 4))
    k = np.round(8 * k) / 8
    k[:, 5], k[:, length // 2] = 10_000, -10_000
    decay = np.log([[1e-6, 1e-2, 20, 1e4]])  # rates: after 2,000 tokens only some have eaten it
    bonus = np.array([[0.0, -5.0, 5.0, 0.5]])
    tokens = tuple(x.astype(np.float32) for x in (q, k, v, decay, bonus))

    def run(*tokens: Any) -> Any:
        *qkv, decay, bonus = tokens
        return mechanism.attend(
            *qkv,
            is_causal=True,
            time_decay=decay,
            time_first=bonus,
            return_state=True,
            form=form,
        )

    y, state = compile_as_users(run, *tokens)(*tokens)
    assert all(np.isfinite(leaf).all() for leaf in state)
    assert_close(np.asarray(y), judge(*tokens), np.float32)


def judge(q: Any, k: Any, v: Any, decay: Any, bonus: Any) -> Any:
    """Equations 13 to 19 token by token in float64, relative to a maximum."""
    q, k, v, decay, bonus = (np.asarray(x, np.float64) for x in (q, k, v, decay, bonus))
    rate, y = np.exp(decay), np.zeros_like(v)
    a, b = np.zeros_like(v[:, 0]), np.zeros_like(v[:, 0])
    m = np.full_like(a, -np.inf)
    for t in range(v.shape[1]):
        top = np.maximum(m, k[:, t] + bonus)
        past, own = np.exp(m - top), np.exp(k[:, t] + bonus - top)
        mean = (past * a + own * v[:, t]) / (past * b + own)
        y[:, t] = mean / (1 + np.exp(-q[:, t]))
        top = np.maximum(m - rate, k[:, t])
        past, own = np.exp(m - rate - top), np.exp(k[:, t] - top)
        a, b, m = past * a + own * v[:, t], past * b + own, top
    return y


def test_layers_begin_with_the_values_of_the_paper() -> None:
    """Appendix E: -5 + 8 (c / (C - 1))^0.7 of channel c, and log 0.3 with a half more or less."""
    layer = nn.Attention(24, 4, mechanism="rwkv", rngs=nnx.Rngs(0))
    channel = np.arange(24)
    decay = -5 + 8 * (channel / 23) ** 0.7
    bonus = np.log(0.3) + 0.5 * ((channel + 1) % 3 - 1)
    learned = layer.mechanism_parameters
    assert_close(np.asarray(learned["time_decay"][...]).ravel(), decay, np.float32)
    assert_close(np.asarray(learned["time_first"][...]).ravel(), bonus, np.float32)


def test_without_its_arguments_the_rate_is_one_and_no_bonus() -> None:
    q, k, v, decay, bonus = make_tokens()
    with jax.enable_x64(True):
        plain = RWKV.attend(q, k, v, is_causal=True)
        want = attend(q, k, v, 0 * decay, 0 * bonus)
    np.testing.assert_array_equal(plain, want)


@pytest.mark.parametrize("name", ["time_decay", "time_first"])
def test_arguments_of_another_shape(name: str) -> None:
    q, k, v, decay, _ = (x.astype(np.float32) for x in make_tokens())
    run: Any = partial(RWKV.attend, q, k, v, is_causal=True)
    message = rf"{name} must be one number a channel, \[H, K\] = \(2, 3\), got \(3, 2\)\."
    with pytest.raises(ValueError, match=message):
        run(**{name: decay.T})
