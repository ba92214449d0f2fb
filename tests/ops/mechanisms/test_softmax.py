"""Softmax attention and its cache: what the contract suite cannot know."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.engine.forms import PARALLEL_LENGTH, PARALLEL_SCORES, choose_form
from tests.compilation import compile_as_users


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_softmax_is_jax_attention() -> None:
    softmax = ops.get_mechanism("softmax")
    q, k, v = normal(3, 2, 7, 3, 4)
    for is_causal in (True, False):
        want = jax.jit(partial(jax.nn.dot_product_attention, is_causal=is_causal))(q, k, v)
        got = jax.jit(partial(softmax.attend, is_causal=is_causal))(q, k, v)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_enormous_scores_under_jit() -> None:
    """Where jax.nn.dot_product_attention gives NaN."""
    q, k, v = normal(3, 1, 7, 2, 4)
    y = jax.jit(lambda q: ops.get_mechanism("softmax").attend(q, k, v, is_causal=True))(
        np.float32(1e21) * q
    )
    assert np.isfinite(y).all()


@pytest.mark.parametrize("name", ["softmax", "aaren", "bidirectional_aaren", "aft", "aft_simple"])
def test_enormous_scores_are_those_of_their_maximum(name: str) -> None:
    """Without a gradient, where one fused loop makes the weights: their scale is no power of 2."""
    mechanism = ops.get_mechanism(name)
    q, k, v = normal(3, 2, 12, 4, 7)
    q = q[0, 0] if mechanism.capabilities.learned_query else q
    parameters = {"position_bias": normal(12, 12)} if name == "aft" else {}
    run = compile_as_users(partial(mechanism.attend, form="parallel"), q, k, v, **parameters)
    for size in (1e10, 1e20, 1e30):
        large = np.float32(size) * k
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda x: x.astype(np.float64), ((q, large, v), parameters))
            want = jax.jit(mechanism.reference)(*wide[0], **wide[1])
        y = run(q, large, v, **parameters)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5, err_msg=f"{size:g}")


@pytest.mark.parametrize("is_causal", [True, False])
def test_implementation_of_jax(is_causal: bool) -> None:
    q, k, v = normal(3, 2, 7, 3, 4)
    by_jax = ops.get_mechanism("softmax", implementation="xla")
    got = jax.jit(partial(by_jax.attend, is_causal=is_causal))(q, k, v)
    want = jax.jit(partial(by_jax.reference, is_causal=is_causal))(q, k, v)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_masked_tokens_take_no_slot() -> None:
    softmax = ops.get_mechanism("softmax")
    k = jnp.arange(1.0, 5.0).reshape(1, 4, 1, 1)
    mask = jnp.array([[False, True, False, True]])
    state = softmax.init_state(1, 1, 1, 1, 3)
    _, state = softmax.attend(k, k, k, mask=mask, initial_state=state, return_state=True)
    assert state.length.tolist() == [2] and state.key.ravel().tolist() == [2.0, 4.0, 0.0]


def test_cache_dtype() -> None:
    softmax = ops.get_mechanism("softmax", cache_dtype="bfloat16")
    q, k, v = normal(3, 2, 1, 3, 4)
    state = softmax.init_state(2, 3, 4, 4, 5)
    assert state.key.dtype == state.value.dtype == jnp.bfloat16
    y, state = softmax.step(q[:, 0], k[:, 0], v[:, 0], state)
    assert y.dtype == jnp.float32 and state.key.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, v[:, 0].astype(jnp.bfloat16).astype(jnp.float32))


@pytest.mark.parametrize(
    ("kind", "queries", "keys", "form"),
    [
        ("streaming", PARALLEL_LENGTH, PARALLEL_LENGTH, "parallel"),
        ("streaming", 1, PARALLEL_LENGTH + 1, "chunked"),
        ("cache", 1, PARALLEL_SCORES, "parallel"),
        ("cache", 2, PARALLEL_SCORES, "chunked"),
    ],
)
def test_auto_form(kind: str, queries: int, keys: int, form: str) -> None:
    assert choose_form(kind, queries, keys) == form
