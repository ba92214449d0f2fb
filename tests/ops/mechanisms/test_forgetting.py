"""Forgetting attention against a loop in NumPy: decays of all sizes, in all forms."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.engine.cache import KVCache
from flax_linattn.ops.engine.double_float import DoubleFloat, running_sum
from tests.compilation import compile_as_users

FORMS = ["parallel", "chunked", "recurrent"]
BATCH, HEADS, KEY_DIM, VALUE_DIM = 3, 2, 4, 5
LENGTH = 13
FORGETTING = ops.get_mechanism("forgetting", chunk_size=4)


def make_tokens(length: int = LENGTH, dtype: Any = np.float64) -> Any:
    """q, k, v and log-decays from nearly none to -300, one of them minus infinity."""
    rng = np.random.default_rng(0)
    shape = BATCH, length, HEADS
    q, k = (rng.normal(size=(*shape, KEY_DIM)) for _ in range(2))
    v = rng.normal(size=(*shape, VALUE_DIM))
    log_decay = -(10.0 ** rng.uniform(-3, 2.5, shape))
    log_decay[0, length // 2, 1] = -np.inf
    return tuple(x.astype(dtype) for x in (q, k, v, log_decay))


def make_mask() -> Any:
    mask = np.random.default_rng(1).random((BATCH, LENGTH)) < 0.7
    mask[0], mask[2, :4] = True, False
    return mask


def make_ids() -> Any:
    return np.sort(np.random.default_rng(2).integers(0, 3, (BATCH, LENGTH)), axis=1)


def judge(tokens: Any, mask: Any = None, ids: Any = None) -> Any:
    """Equation 5, a token and a head at a time, in float64, adding from late to early."""
    q, k, v, log_decay = (np.asarray(x, np.float64) for x in tokens)
    batch, length, heads = log_decay.shape
    mask = np.ones((batch, length), bool) if mask is None else mask
    ids = np.zeros((batch, length), int) if ids is None else ids
    y = np.zeros((batch, length, heads, v.shape[-1]))
    for b, i, h in np.ndindex(batch, length, heads):
        if not mask[b, i]:
            continue
        seen: list[int] = []
        scores: list[float] = []
        fall = 0.0
        for j in range(i, -1, -1):
            if not mask[b, j]:
                continue
            if ids[b, j] != ids[b, i]:
                break
            seen.append(j)
            scores.append(q[b, i, h] @ k[b, j, h] / np.sqrt(q.shape[-1]) + fall)
            fall += log_decay[b, j, h]
        weight = np.exp(np.array(scores) - max(scores))
        y[b, i, h] = weight @ v[b, seen, h] / weight.sum()
    return y


def attend(q: Any, k: Any, v: Any, log_decay: Any, **how: Any) -> Any:
    return FORGETTING.attend(q, k, v, is_causal=True, log_decay=log_decay, **how)


def close(got: Any, want: Any, tolerance: float = 1e-12) -> None:
    jax.tree.map(
        lambda g, w: np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance), got, want
    )


@functools.cache
def with_gradients(which: str) -> Any:
    """(tokens, mask, ids) -> outputs and gradients of a fixed weighting of them, compiled."""

    def run(tokens: Any, mask: Any, ids: Any) -> Any:
        how = {"is_causal": True, "mask": mask, "segment_ids": ids}
        method: Any = FORGETTING.reference
        if which != "reference":
            method = functools.partial(FORGETTING.attend, form=which)

        def outputs(q: Any, k: Any, v: Any, log_decay: Any) -> Any:
            return method(q, k, v, log_decay=log_decay, **how)

        y, pull = jax.vjp(outputs, *tokens)
        return y, pull(jnp.sin(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    return jax.jit(run)


@pytest.mark.parametrize("which", ["reference", *FORMS])
@pytest.mark.parametrize("packed", [False, True])
def test_all_forms_are_the_equation(which: str, packed: bool) -> None:
    """Padding, segments, a token that forgets all; gradients are those of the reference."""
    tokens, mask = make_tokens(), make_mask()
    ids = make_ids() if packed else np.zeros((BATCH, LENGTH), int)
    with jax.enable_x64(True):
        y, gradients = with_gradients(which)(tokens, mask, ids)
        close(y, judge(tokens, mask, ids))
        close(gradients, with_gradients("reference")(tokens, mask, ids)[1])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_small_decays_after_large_ones(form: str) -> None:
    """What falls in 50 tokens of -1e-3, after 3,000 of -20, compiled as users do, in float32."""
    strong, weak = 3000, 50
    mechanism = ops.get_mechanism("forgetting")
    length = strong + weak
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(1, length, 1, 2)).astype(np.float32) for _ in range(3))
    log_decay = np.full((1, length, 1), -1e-3, np.float32)
    log_decay[:, :strong] = -20
    run: Any = compile_as_users(
        lambda q, k, v, a: mechanism.attend(q, k, v, is_causal=True, log_decay=a, form=form)[
            :, strong:
        ],
        *(q, k, v, log_decay),
    )
    # What came 20 tokens before the last strong one weighs less than e^-200.
    late = slice(strong - 20, None)
    want = judge(x[:, late] for x in (q, k, v, log_decay))[:, 20:]
    np.testing.assert_allclose(run(q, k, v, log_decay), want, rtol=1e-5, atol=1e-5)


def test_running_sums_keep_what_one_float_loses() -> None:
    rng = np.random.default_rng(5)
    x = -(10.0 ** rng.uniform(-6, 4, (2, 1000, 3))).astype(np.float32)
    c: Any = jax.tree.map(np.asarray, compile_as_users(running_sum, x)(x))
    exact = np.cumsum(x.astype(np.longdouble), axis=1)
    late = exact[:, 1:] - exact[:, :-1]
    before, after = (
        DoubleFloat(*(part[:, span] for part in c)) for span in (slice(None, -1), slice(1, None))
    )
    np.testing.assert_allclose(after.subtract(before), late, rtol=1e-6, atol=1e-6)
    assert np.max(np.abs(c.high[:, 1:] - c.high[:, :-1] - late)) > 0.01  # one float alone
    tangents: Any = jax.jit(lambda x: jax.jvp(running_sum, (x,), (x,))[1])(x)
    np.testing.assert_allclose(tangents.high, jnp.cumsum(x, axis=1), rtol=1e-6)
    assert not np.any(tangents.low)


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_large_scores_leave_decays_their_digits(form: str) -> None:
    """Scores of 10,240 beside decays of 1e-3, in float32: kept apart, they lose nothing."""
    q, k, v, log_decay = make_tokens(dtype=np.float32)
    q, k = np.ones_like(q), np.round(8 * k) / 8
    q[..., 0], k[..., 0] = 32, np.where(np.arange(LENGTH)[:, None] < 6, 640, -640)
    run: Any = compile_as_users(functools.partial(attend, form=form), q, k, v, log_decay)
    np.testing.assert_allclose(
        run(q, k, v, log_decay), judge((q, k, v, log_decay)), rtol=1e-5, atol=1e-5
    )


def test_second_derivatives() -> None:
    q, k, v, log_decay = make_tokens(6)
    log_decay = np.clip(log_decay, -3, None)

    def second(form: str) -> Any:
        def loss(log_decay: Any) -> Any:
            return jnp.sum(jnp.sin(attend(q, k, v, log_decay, form=form)))

        return jax.jit(jax.grad(lambda a: jnp.sum(jax.grad(loss)(a) ** 2)))(log_decay)

    with jax.enable_x64(True):
        close(second("chunked"), second("parallel"), 1e-10)


def test_states_of_other_mechanisms_have_the_leaves_they_had() -> None:
    softmax = ops.get_mechanism("softmax").init_state(1, 2, 3, 4, 5)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(softmax)]
    assert names == [".key", ".value", ".length"]

    state = FORGETTING.init_state(1, 2, 3, 4, 5)
    paths = jax.tree_util.tree_leaves_with_path(state)
    assert jax.tree_util.keystr(paths[-1][0]) == ".per_token['log_decay']"
    again = jax.tree.map(lambda x: x, state)
    assert isinstance(again, KVCache) and again.per_token.keys() == {"log_decay"}


def test_cached_log_decays_are_kept_in_the_dtype_of_sums() -> None:
    mechanism = ops.get_mechanism("forgetting", cache_dtype="bfloat16")
    state = mechanism.init_state(1, 2, 3, 4, 5)
    assert state.key.dtype == jnp.bfloat16
    assert state.per_token["log_decay"].dtype == jnp.float32


def test_a_cache_without_log_decays_is_refused() -> None:
    q, k, v, log_decay = make_tokens(4, np.float32)
    state = ops.get_mechanism("softmax").init_state(BATCH, HEADS, KEY_DIM, VALUE_DIM, 8)
    with pytest.raises(ValueError, match="does not belong to 'forgetting'"):
        attend(q, k, v, log_decay, initial_state=state, return_state=True)
