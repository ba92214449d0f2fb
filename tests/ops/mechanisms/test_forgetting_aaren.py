"""Forgetting Aaren: a peer's forget gate, endless streams, and scores far from zero."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.compilation import compile_as_users
from tests.contract.tolerances import assert_close
from tests.ops.mechanisms.peers import check

AAREN = ops.get_mechanism("forgetting_aaren", chunk_size=4)
FORMS = ["parallel", "chunked", "recurrent"]
B, T, H, K, V = 2, 13, 2, 3, 4


def make_tokens(length: int = T, dtype: Any = np.float64) -> Any:
    """q, k, v, log-decays."""
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(H, K)), rng.normal(size=(B, length, H, K))
    v, decay = rng.normal(size=(B, length, H, V)), rng.uniform(-3, 1, (B, length, H))
    return tuple(x.astype(dtype) for x in (q, k, v, -(10.0**decay)))


def attend(q: Any, k: Any, v: Any, log_decay: Any, **how: Any) -> Any:
    return AAREN.attend(q, k, v, is_causal=True, log_decay=log_decay, **how)


def judge(score: Any, v: Any, log_decay: Any) -> Any:
    """The means of all positions, token by token in float64, relative to a maximum."""
    score, v, log_decay = (np.asarray(x, np.float64) for x in (score, v, log_decay))
    y = np.zeros_like(v)
    m, u, w = np.full_like(score[:, 0], -np.inf), np.zeros_like(score[:, 0]), np.zeros_like(v[:, 0])
    for t in range(v.shape[1]):
        m = m + log_decay[:, t]
        top = np.maximum(m, score[:, t])
        past, own = np.exp(m - top), np.exp(score[:, t] - top)
        m, u = top, past * u + own
        w = past[..., None] * w + own[..., None] * v[:, t]
        y[:, t] = w / u[..., None]
    return y


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
def test_the_forget_gate_of_flash_linear_attention(form: str, dtype: Any) -> None:
    """Their softmax with one query for all positions: outputs and gradients."""

    def run(q: Any, k: Any, v: Any, log_decay: Any) -> Any:
        return {"y": attend(q, k, v, log_decay, form=form)}

    check("forgetting_aaren", run, dtype)


@pytest.mark.parametrize("form", ["steps", "chunked"])
def test_an_endless_stream_follows_a_change(form: str) -> None:
    """100,000 tokens of 0, then ones: the mean is 1 - e^(-n/100) after n, Aaren's stays near 0."""
    length, after, rate = 100_000, 500, 0.01
    mechanism = ops.get_mechanism("forgetting_aaren")
    v = np.zeros((1, length + after, 1, 1), np.float32)
    v[:, length:] = 1
    q, log_decay = jnp.ones((1, 1)), np.full_like(v[..., 0], -rate)

    def chunked(v: Any, log_decay: Any) -> Any:
        return mechanism.attend(
            *(q, 0 * v, v), is_causal=True, log_decay=log_decay, return_state=True
        )

    def steps(v: Any, log_decay: Any) -> Any:
        def one(state: Any, now: Any) -> Any:
            v, log_decay = now
            y, state = mechanism.step(q, 0 * v, v, state, log_decay=log_decay)
            return state, y

        by_time = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (v, log_decay))
        state, y = jax.lax.scan(one, mechanism.init_state(1, 1, 1, 1), by_time)
        return jnp.moveaxis(y, 0, 1), state

    run = steps if form == "steps" else chunked
    y, state = compile_as_users(run, v, log_decay)(v, log_decay)
    assert all(np.isfinite(leaf).all() for leaf in state)
    np.testing.assert_allclose(state.u, 1 / -np.expm1(-rate), rtol=1e-5)
    n = np.arange(1, after + 1)
    np.testing.assert_allclose(y[0, length:, 0, 0], -np.expm1(-rate * n), rtol=1e-4, atol=1e-5)
    assert y[0, -1, 0, 0] > 0.99 and after / (length + after) < 0.01


@cache
def far_from_zero(which: str) -> Any:
    """(scores, values, log-decays) -> outputs and gradients of a fixed weighting of them."""
    aaren = ops.get_mechanism("forgetting_aaren", chunk_size=16)
    method = aaren.reference if which == "reference" else partial(aaren.attend, form=which)

    def run(*tokens: Any) -> Any:
        def outputs(score: Any, v: Any, log_decay: Any) -> Any:
            q = jnp.ones((H, 1), score.dtype)
            own: Any = {"log_decay": log_decay, "scale": 1.0}
            return method(q, score[..., None], v, is_causal=True, **own)

        y, pull = jax.vjp(outputs, *tokens)
        return y, pull(jnp.sin(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    return run


@pytest.mark.parametrize(
    "form",
    [*(pytest.param(f, marks=pytest.mark.slow) for f in ("parallel", "chunked")), "recurrent"],
)
def test_scores_far_from_zero(form: str) -> None:
    """In float32 each keeps its digits beside decays of 1e-3, in values and gradients.

    From token 20 on, those of one head are 10,000 less, of the other 10,000 more.
    """
    _, k, v, log_decay = make_tokens(40, np.float32)
    score = np.round(64 * k[..., 0]) / 64  # which float32 holds exactly, with the offset too
    score[:, 20:] += np.array([-1e4, 1e4], np.float32)
    tokens = (score, v, log_decay)
    got = compile_as_users(far_from_zero(form), *tokens)(*tokens)
    with jax.enable_x64(True):
        want = jax.jit(far_from_zero("reference"))(*(x.astype(np.float64) for x in tokens))
        want = jax.tree.map(np.asarray, want)
    assert_close(want[0], judge(*tokens), np.float64)
    assert_close(got, want, np.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("begin", [0, 3, 6, T - 1])
def test_minus_infinity_forgets_all_that_came_before(form: str, begin: int) -> None:
    """As if those before were padding, wherever it is in a chunk, and with padding around it."""
    q, k, v, log_decay = make_tokens()
    log_decay[:, begin] = -np.inf
    mask = np.random.default_rng(1).random((B, T)) < 0.7
    mask[0], mask[:, begin] = True, True
    late = np.arange(T) >= begin
    none = np.nan_to_num(log_decay, neginf=0)
    with jax.enable_x64(True):
        y, gradients, state = jax.tree.map(np.asarray, resets(form)(q, k, v, log_decay, mask))
        tail, _, last = jax.tree.map(np.asarray, resets(form)(q, k, v, none, mask & late))
    assert_close(y[:, late], tail[:, late], np.float64)
    assert all(np.isfinite(x).all() for x in gradients)
    assert not gradients[3][:, begin].any()
    assert_close(state.sums.mean, last.sums.mean, np.float64)
    assert_close(state.u, last.u, np.float64)
    assert_close(state.m + state.fallen, last.m + last.fallen, np.float64)


@cache
def resets(form: str) -> Any:
    """(tokens, mask) -> outputs, gradients of their weighted sum, state, in float64."""

    def run(q: Any, k: Any, v: Any, log_decay: Any, mask: Any) -> Any:
        def outputs(*tokens: Any) -> Any:
            return attend(*tokens, mask=mask, return_state=True, form=form)

        y, pull, state = jax.vjp(outputs, q, k, v, log_decay, has_aux=True)
        return y, pull(jnp.sin(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)), state

    return jax.jit(run)


def test_a_state_after_a_reset_goes_on() -> None:
    """Its decay is -inf: nothing that comes before it counts, and what comes after does."""
    q, k, v, log_decay = make_tokens()
    log_decay[:, 5] = -np.inf
    step = jax.jit(AAREN.step)
    with jax.enable_x64(True):
        state = AAREN.init_state(B, H, K, V, dtype=np.float64)
        rows = []
        for t in range(T):
            y, state = step(q, k[:, t], v[:, t], state, log_decay=log_decay[:, t])
            rows.append(np.asarray(y))
        run = jax.jit(partial(attend, return_state=True))
        whole, last = run(q, k, v, log_decay)
        parts = [
            run(q, k[:, at], v[:, at], log_decay[:, at])[1]
            for at in (slice(3), slice(3, 8), slice(8, T))
        ]
        merged = AAREN.merge(AAREN.merge(*parts[:2]), parts[2])
        merged_right = AAREN.merge(parts[0], AAREN.merge(*parts[1:]))
    assert_close(np.stack(rows, axis=1), np.asarray(whole), np.float64)
    for other in (state, merged, merged_right):
        assert_close(other.w, last.w, np.float64)
        assert_close(other.u, last.u, np.float64)
        np.testing.assert_array_equal(other.log_decay, np.full((B, H), -np.inf))


def test_sums_of_the_segment_before_may_overflow() -> None:
    """Where a segment starts, no gradient passes, even if products of the past overflow."""
    q, k, v, log_decay = make_tokens(8, np.float32)
    v[:, :4] *= 1e25
    segments = jnp.repeat(jnp.array([[1, 2]]), 4, axis=1).repeat(B, axis=0)

    def loss(log_decay: Any) -> Any:
        y = attend(q, k, v, log_decay, segment_ids=segments, form="recurrent")
        return 1e16 * jnp.sum(y[:, 4:])

    assert np.all(np.isfinite(jax.grad(loss)(jnp.asarray(log_decay))[:, 4:]))
