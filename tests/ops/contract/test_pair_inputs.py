"""Masks, biases and dropout of single pairs: against plain NumPy, jax.nn, and each other."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_linattn import ops

B, T, H, K = 2, 6, 3, 4
NAMES = ("softmax", "softmax:window=3", "forgetting", "expressive", "elementwise", "aft")
FAST = "softmax"
MECHANISMS = [
    pytest.param(name, marks=[] if name == FAST else pytest.mark.slow, id=name) for name in NAMES
]
IS_CAUSAL = ("softmax:window=3", "forgetting")
MASK = np.array([[True] * T, [False, True, True, False, True, True]])
IDS = np.array([[0, 0, 0, 1, 1, 1], [2, 2, 2, 2, 2, 3]], np.int32)


def tokens(name: str, dtype: Any = np.float64, length: int = T) -> tuple[Any, ...]:
    """Queries, keys, values, and the per-token inputs of a mechanism."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, B, length, H, K)).astype(dtype)
    gates = {"log_decay": -rng.uniform(0, 1, (B, length, H))} if name == "forgetting" else {}
    return q, k, v, gates


def pairs(name: str, *shape: int, seed: int = 1) -> dict[str, np.ndarray]:
    """The inputs per pair that a mechanism supports, with hidden pairs in both."""
    rng = np.random.default_rng(seed)
    given = {"pair_mask": rng.uniform(size=shape) < 0.7}
    if "bias" in ops.get_mechanism(name).capabilities.pair_inputs:
        given["bias"] = np.where(rng.uniform(size=shape) < 0.2, -np.inf, rng.normal(size=shape))
    return given


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("shape", [(B, H), (1, H), (B, 1), (1, 1)])
def test_softmax_is_jax_attention(is_causal: bool, shape: tuple[int, int]) -> None:
    q, k, v, _ = tokens("softmax", np.float32)
    given = pairs("softmax", *shape, T, T)
    given["pair_mask"] |= np.eye(T, dtype=bool)  # jax.nn averages where nothing is visible
    given["bias"] = np.nan_to_num(given["bias"], neginf=0.5).astype(np.float32)
    want = jax.nn.dot_product_attention(
        q, k, v, mask=given["pair_mask"], bias=given["bias"], is_causal=is_causal
    )
    got = ops.get_mechanism("softmax").attend(q, k, v, is_causal=is_causal, **given)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("call", ["plain", "padded", "packed"])
def test_every_form_is_the_reference(name: str, call: str) -> None:
    options: dict[str, Any] = {"is_causal": name in IS_CAUSAL or call == "packed"}
    options |= {"plain": {}, "padded": {"mask": MASK}, "packed": {"segment_ids": IDS}}[call]
    with jax.enable_x64(True):
        mechanism = ops.get_mechanism(name, chunk_size=4)
        q, k, v, gates = tokens(name)
        options |= gates | pairs(name, B, H, T, T)
        want = mechanism.reference(q, k, v, **options)
        weights = ops.weights(mechanism, q, k, **options)
        hidden = np.broadcast_to(~options["pair_mask"], (B, H, T, T))
        at = (slice(None),) * 2 + (None,) * (weights.ndim - 4)
        assert not np.any(np.where(hidden[at], weights, 0)) and np.any(weights)
        for form in mechanism.capabilities.forms:
            y = mechanism.attend(q, k, v, form=form, **options)
            np.testing.assert_allclose(y, want, rtol=1e-9, atol=1e-9, err_msg=form)


@pytest.mark.parametrize("name", MECHANISMS)
def test_steps_and_states_continue(name: str) -> None:
    """The columns are the slots of the cache in the order of time, then the new tokens."""
    with jax.enable_x64(True):
        mechanism = ops.get_mechanism(name)
        q, k, v, gates = tokens(name)
        given = pairs(name, B, H, T, T)
        whole = mechanism.attend(q, k, v, is_causal=True, **gates, **given)
        slots = getattr(mechanism, "window", None) or T

        def columns(first: int, last: int, count: int, before: bool) -> dict[str, np.ndarray]:
            """Columns of a cache that holds ``count`` tokens, as stored, and rows first:last."""
            cached = np.arange(slots) + (count - slots if slots < T else 0)
            index = np.where((cached >= 0) & (cached < count), cached, 0)
            index = np.concatenate([index, np.arange(first, last)]) if before else index
            return {name: x[:, :, first:last, index] for name, x in given.items()}

        def part(first: int, last: int) -> tuple[Any, Any]:
            here = tuple(x[:, first:last] for x in (q, k, v))
            return here, {name: x[:, first:last] for name, x in gates.items()}

        state = mechanism.init_state(B, H, K, K, max_length=T, dtype=np.float64)
        for first, last in ((0, 3), (3, 4)):
            here, gate = part(first, last)
            y, state = mechanism.attend(
                *here,
                is_causal=True,
                initial_state=state,
                return_state=True,
                **gate,
                **columns(first, last, first, True),
            )
            np.testing.assert_allclose(y, whole[:, first:last], rtol=1e-9, atol=1e-9)
        for t in range(4, T):
            here, gate = part(t, t + 1)
            now = {name: x[:, :, 0] for name, x in columns(t, t + 1, t + 1, False).items()}
            q_t, k_t, v_t = (x[:, 0] for x in here)
            gate = {name: x[:, 0] for name, x in gate.items()}
            y, state = mechanism.step(q_t, k_t, v_t, state, **gate, **now)
            np.testing.assert_allclose(y, whole[:, t], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["parallel", "chunked"])
@pytest.mark.parametrize(
    "name", [each for each in MECHANISMS if each.id in ("softmax", "forgetting", "expressive")]
)
def test_gradients_of_the_bias(name: str, form: str) -> None:
    """Against finite differences in float64."""
    with jax.enable_x64(True):
        mechanism = ops.get_mechanism(name, chunk_size=4)
        q, k, v, gates = tokens(name)
        given = pairs(name, 1, H, T, T)
        bias = np.nan_to_num(given.pop("bias"), neginf=0.5)

        def loss(bias: Any) -> Any:
            y = mechanism.attend(q, k, v, is_causal=True, form=form, bias=bias, **gates, **given)
            return jnp.sum(y * v)

        gradient = jax.grad(loss)(bias)
        for at in ((0, 0, 3, 1), (0, 1, 5, 5), (0, 2, 4, 0)):
            change = np.zeros_like(bias)
            change[at] = 1e-6
            want = (loss(bias + change) - loss(bias - change)) / 2e-6
            np.testing.assert_allclose(gradient[at], want, rtol=1e-6, atol=1e-8)
        assert not np.any(np.triu(gradient, 1))


@settings(max_examples=15)
@given(seed=st.integers(0, 2**16), is_causal=st.booleans(), padded=st.booleans())
def test_softmax_is_plain_numpy(seed: int, is_causal: bool, padded: bool) -> None:
    q, k, v, _ = tokens("softmax", np.float32)
    given = pairs("softmax", B, H, T, T, seed=seed)
    mask = MASK if padded else np.ones((B, T), bool)
    visible = given["pair_mask"] & mask[:, None, None] & mask[:, None, :, None]
    visible &= np.tri(T, dtype=bool) | (not is_causal)
    score = np.einsum("bthk,bshk->bhts", q, k) / 2 + given["bias"]
    weight = np.where(visible, np.exp(score), 0)
    total = weight.sum(axis=-1, keepdims=True)
    weight = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    want = np.einsum("bhts,bshv->bthv", weight, v)
    given["bias"] = given["bias"].astype(np.float32)
    attend = jax.jit(partial(ops.get_mechanism("softmax").attend, is_causal=is_causal))
    np.testing.assert_allclose(attend(q, k, v, mask=mask, **given), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_no_earlier_output_depends_on_nan_in_a_bias(form: str) -> None:
    mechanism = ops.get_mechanism("softmax", chunk_size=4)
    q, k, v, _ = tokens("softmax", np.float32)
    bias = np.zeros((1, 1, T, T), np.float32)
    broken = bias.copy()
    broken[:, :, 3, 1], broken[:, :, :4, 4:], broken[:, :, 5, 5] = np.nan, np.nan, -np.inf

    @partial(jax.value_and_grad, argnums=(0, 1, 2, 3), has_aux=True)
    def loss(q: Any, k: Any, v: Any, bias: Any) -> Any:
        y = mechanism.attend(q, k, v, is_causal=True, form=form, bias=bias)
        return jnp.sum(y[:, :3] ** 2), y

    (_, want), want_gradients = loss(q, k, v, bias)
    (_, y), gradients = loss(q, k, v, broken)
    assert jnp.isnan(y[0, :, 0, 0]).tolist() == [False, False, False, True, False, False]
    np.testing.assert_array_equal(y[:, :3], want[:, :3])
    for gradient, expected in zip(gradients, want_gradients, strict=True):
        np.testing.assert_array_equal(gradient, expected)


def test_a_hidden_row_is_zero() -> None:
    mechanism = ops.get_mechanism("softmax")
    q, k, v, _ = tokens("softmax", np.float32)
    bias = np.zeros((1, 1, T, T), np.float32)
    bias[:, :, 2] = -np.inf
    y, gradient = jax.value_and_grad(lambda q: jnp.sum(mechanism.attend(q, k, v, bias=bias)[:, 2]))(
        q
    )
    assert float(y) == 0 and not np.any(gradient)


@pytest.mark.parametrize(
    "name", [each for each in MECHANISMS if each.id not in ("elementwise", "aft")]
)
def test_dropout_of_the_weights(name: str) -> None:
    mechanism = ops.get_mechanism(name, chunk_size=4)
    q, k, v, gates = tokens(name, np.float32)
    gates = jax.tree.map(np.float32, gates)
    attend = partial(mechanism.attend, q, k, v, is_causal=True, **gates)
    dropout = {"dropout_rate": 0.25, "dropout_key": jax.random.key(3)}
    want = mechanism.reference(q, k, v, is_causal=True, **gates, **dropout)
    for form in mechanism.capabilities.forms:
        np.testing.assert_allclose(attend(form=form, **dropout), want, rtol=1e-5, atol=1e-5)
    before = ops.weights(mechanism, q, k, is_causal=True, **gates)
    after = ops.weights(mechanism, q, k, is_causal=True, **gates, **dropout)
    dropped = (after == 0) & (before > 0)
    assert 0.1 < np.sum(dropped) / np.sum(before > 0) < 0.4
    np.testing.assert_allclose(after, np.where(dropped, 0, before / 0.75), rtol=1e-5)


def test_what_is_refused() -> None:
    q, k, v, _ = tokens("softmax", np.float32)
    softmax, mask = ops.get_mechanism("softmax"), np.ones((B, H, T, T), bool)
    for name, reason in (
        ("linear", "'linear' does not support pair_mask: its state has a constant size, so past"),
        ("nystrom", "'nystrom' does not support pair_mask: "),
    ):
        with pytest.raises(ValueError, match=re.escape(reason)):
            ops.get_mechanism(name).attend(q, k, v, pair_mask=mask)
    with pytest.raises(ValueError, match="'elementwise' does not support bias: each channel"):
        ops.get_mechanism("elementwise").attend(q, k, v, bias=np.ones((1, 1, T, T)))
    for inputs, error, message in (
        ({"pair_mask": mask[:, :2]}, ValueError, "= [2 or 1, 3 or 1, 6, 6], got (2, 2, 6, 6)"),
        ({"pair_mask": mask[0]}, ValueError, "pair_mask must have shape [B or 1, H or 1, T, S]"),
        ({"pair_mask": mask.astype(int)}, TypeError, "pair_mask must be Boolean, with True for"),
        ({"bias": mask}, TypeError, "bias must be floating, got bool"),
        ({"dropout_rate": 0.5}, ValueError, "dropout needs both dropout_rate and dropout_key"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            softmax.attend(q, k, v, **inputs)
    state = softmax.init_state(B, H, K, K, max_length=8)
    with pytest.raises(ValueError, match="6, 14], where S counts the 8 slots of initial_state"):
        softmax.attend(q, k, v, initial_state=state, pair_mask=mask)
    with pytest.raises(ValueError, match=re.escape("[B or 1, H or 1, L] = [2 or 1, 3 or 1, 8]")):
        softmax.step(q[:, 0], k[:, 0], v[:, 0], state, pair_mask=mask[:, :, 0])
