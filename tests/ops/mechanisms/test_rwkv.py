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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rate", [-2.0, 1.0, 8.0])
def test_equation_16(form: str, rate: float) -> None:
    """The last token is remembered whole, whatever the rate: e^-(t-1-i)w with i = t - 1."""
    q, k, v, _, bonus = make_tokens()
    decay = rate + 0.1 * np.arange(H * K).reshape(H, K)
    want = np.zeros_like(v)
    for t in range(T):
        ago = (t - 1 - np.arange(t))[:, None, None]
        past = np.exp(k[:, :t] - ago * np.exp(decay))
        own = np.exp(bonus + k[:, t])
        top = np.sum(past * v[:, :t], axis=1) + own * v[:, t]
        want[:, t] = top / (np.sum(past, axis=1) + own) / (1 + np.exp(-q[:, t]))
    with jax.enable_x64(True):
        assert_close(np.asarray(attend(q, k, v, decay, bonus, form=form)), want, np.float64)


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


def test_the_first_token_is_all_there_is() -> None:
    """Whatever its bonus."""
    q, k, v, decay, bonus = (x.astype(np.float32) for x in make_tokens(1))
    y = attend(q, k, v, decay, 30 * bonus)
    assert_close(np.asarray(y), v / (1 + np.exp(-q)), np.float32)


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


def test_padding_does_not_fade() -> None:
    """The departure that the docstring names."""
    q, k, v, decay, bonus = (x.astype(np.float32) for x in make_tokens())
    mask = np.random.default_rng(1).random(T) < 0.6
    y = attend(q, k, v, decay, bonus, mask=np.tile(mask, (B, 1)))
    alone = attend(q[:, mask], k[:, mask], v[:, mask], decay, bonus)
    assert_close(np.asarray(y)[:, mask], np.asarray(alone), np.float32)


@pytest.mark.parametrize("name", ["time_decay", "time_first"])
def test_arguments_of_another_shape(name: str) -> None:
    q, k, v, decay, _ = (x.astype(np.float32) for x in make_tokens())
    run: Any = partial(RWKV.attend, q, k, v, is_causal=True)
    message = rf"{name} must be one number a channel, \[H, K\] = \(2, 3\), got \(3, 2\)\."
    with pytest.raises(ValueError, match=message):
        run(**{name: decay.T})


@pytest.mark.parametrize("name", ["forgetting_aaren", "rwkv"])
def test_forward_mode_by_the_parallel_form_is_the_gradient(name: str) -> None:
    mechanism = ops.get_mechanism(name, chunk_size=4)
    rng = np.random.default_rng(7)
    q, k, v, dk, dv, weight = rng.normal(size=(6, B, T, H, K)).astype(np.float32)
    q = q[0, 0] if mechanism.capabilities.learned_query else q
    gates = {each.name: -np.abs(rng.normal(size=(B, T, H))) for each in mechanism.token_arguments}
    gates = {key: gate.astype(np.float32) for key, gate in gates.items()}

    @jax.jit
    def both(k: Any, v: Any, gates: Any) -> Any:
        def run(form: str, k: Any, v: Any, gates: Any) -> Any:
            return mechanism.attend(q, k, v, is_causal=True, form=form, **gates)

        of_gates = jax.tree.map(jnp.ones_like, gates)
        _, forward = jax.jvp(partial(run, "parallel"), (k, v, gates), (dk, dv, of_gates))
        _, pull = jax.vjp(partial(run, "chunked"), k, v, gates)
        into_k, into_v, into_gates = pull(jnp.asarray(weight))
        return jnp.sum(forward * weight), (
            jnp.sum(into_k * dk) + jnp.sum(into_v * dv) + sum(map(jnp.sum, into_gates.values()))
        )

    forward, backward = both(k, v, gates)
    np.testing.assert_allclose(forward, backward, rtol=1e-4)
