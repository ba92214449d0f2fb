"""Softmax attention and its cache: what the contract suite cannot know."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import inference, models, ops
from flax_linattn.ops.contract.masks import Visibility
from flax_linattn.ops.engine.block_plan import BlockPlan
from flax_linattn.ops.engine.forms import (
    MAX_PARALLEL_LENGTH,
    MAX_PARALLEL_SCORES,
    BlockSizes,
    choose_form,
)
from flax_linattn.typing import Array
from tests.compilation import compile_as_users
from tests.ops.mechanisms.make_peers import SDPA, pair_mask
from tests.ops.mechanisms.peers import check


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_softmax_is_jax_attention() -> None:
    softmax = ops.get_mechanism("softmax")
    q, k, v = normal(3, 2, 7, 3, 4)
    for is_causal in (True, False):
        want = jax.jit(partial(jax.nn.dot_product_attention, is_causal=is_causal))(q, k, v)
        got = jax.jit(partial(softmax.attend, is_causal=is_causal))(q, k, v)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("case", SDPA)
def test_softmax_is_scaled_dot_product_attention_of_torch(case: str, dtype: Any) -> None:
    """Outputs and gradients, with masks, biases, windows and grouped queries."""
    options = dict(SDPA[case])
    is_causal = options.pop("is_causal", False)
    has_mask = options.pop("mask", False)
    hyperparameters = {name: options[name] for name in ("window", "scale") if name in options}
    softmax = ops.get_mechanism("softmax", **hyperparameters)

    def run(q: Array, k: Array, v: Array, **bias: Array) -> dict[str, Array]:
        pairs = {"pair_mask": jnp.asarray(pair_mask())} if has_mask else {}
        return {"y": softmax.attend(q, k, v, is_causal=is_causal, **pairs, **bias)}

    assert check(f"sdpa_{case}", run, dtype) < 2e-6


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
        ("streaming", MAX_PARALLEL_LENGTH, MAX_PARALLEL_LENGTH, "parallel"),
        ("streaming", 1, MAX_PARALLEL_LENGTH + 1, "chunked"),
        ("scored", 1, MAX_PARALLEL_SCORES["scored"], "parallel"),
        ("scored", 2, MAX_PARALLEL_SCORES["scored"], "chunked"),
    ],
)
def test_auto_form(kind: str, queries: int, keys: int, form: str) -> None:
    assert choose_form(kind, queries, keys) == form


def banded(length: int, window: int) -> np.ndarray:
    distance = np.arange(length)[:, None] - np.arange(length)
    return (distance >= 0) & (distance < window)


@pytest.mark.parametrize(
    ("window", "form"), [(None, "parallel"), (None, "chunked"), (1, "chunked"), (6, "chunked")]
)
def test_groups_masks_biases_and_windows_are_those_of_jax(window: Any, form: str) -> None:
    """Jax attends with all of them at once; a query that sees no key is 0 here only."""
    rng, (batch, length, heads) = np.random.default_rng(0), (2, 21, 6)
    q, (k, v) = normal(1, batch, length, heads, 4)[0], normal(2, batch, length, 2, 4)
    bias = jnp.asarray(rng.normal(size=(1, heads, length, length)), jnp.float32)
    pair_mask = jnp.asarray(rng.random((batch, 1, length, length)) < 0.7)
    mechanism = ops.get_mechanism("softmax", window=window, chunk_size=8)
    how = {"is_causal": True, "bias": bias}
    y = jax.jit(partial(mechanism.attend, form=form, **how))(q, k, v, pair_mask=pair_mask)
    near = None if window is None else (window - 1, 0)
    want = jax.jit(partial(jax.nn.dot_product_attention, local_window_size=near, **how))(
        q, k, v, mask=pair_mask
    )
    visible = np.tri(length, dtype=bool) & pair_mask
    visible &= banded(length, window or length)
    some = np.broadcast_to(visible.any(axis=-1)[:, 0], (batch, length))
    np.testing.assert_allclose(y[some], want[some], rtol=0, atol=1e-6)
    assert not y[~some].any()


@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (70, 0), (1000, 0), (1, 1), (70, 5)])
def test_a_window_is_a_band_in_blocks_and_steps(window: int, sinks: int) -> None:
    """Longer than blocks are, not at all a multiple of them; against plain NumPy."""
    length = 200
    mechanism = ops.get_mechanism("softmax", window=window, sinks=sinks)
    q, k, v = normal(3, 1, length, 2, 4)
    score = np.einsum("bthk,bshk->bhts", q, k).astype(np.float64) / 2
    first = np.tri(length, dtype=bool) & (np.arange(length) < sinks)
    weight = np.exp(score) * (banded(length, window) | first)
    want = np.einsum("bhts,bshv->bthv", weight / weight.sum(axis=-1, keepdims=True), v)
    blocks = jax.jit(partial(mechanism.attend, is_causal=True, form="chunked"))(q, k, v)
    np.testing.assert_allclose(blocks, want, rtol=1e-5, atol=1e-5)

    def take_in(state: Any, token: Any) -> Any:
        y, state = mechanism.step(*token, state)
        return state, y

    tokens = tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, v))
    _, steps = jax.jit(partial(jax.lax.scan, take_in))(mechanism.init_state(1, 2, 4, 4), tokens)
    np.testing.assert_allclose(jnp.moveaxis(steps, 0, 1), want, rtol=1e-5, atol=1e-5)


def test_a_window_makes_the_blocks_of_its_band_alone() -> None:
    """The products grow with T, not with its square."""
    mechanism = ops.get_mechanism("softmax", window=64)

    sizes = BlockSizes(1, 1, 64, 64)

    def pairs(length: int) -> int:
        plan = BlockPlan(sizes, length, length)
        return len(plan.block_pairs(Visibility(is_causal=True, window=mechanism.window)))

    assert pairs(64 * 64) == 2 * 64 - 1
    with_cache = BlockPlan(sizes, 128, 128 + 64)
    assert len(with_cache.block_pairs(Visibility(is_causal=True, cached=64, window=64))) == 4


def test_sinks_of_packed_segments_in_blocks() -> None:
    """A segment may begin in any block; padding counts for neither."""
    mechanism = ops.get_mechanism("softmax", window=8, sinks=3)
    q, k, v = normal(3, 1, 200, 2, 4)
    ids = np.repeat([0, 1, 2], [90, 20, 90])[None].astype(np.int32)
    mask = np.random.default_rng(1).uniform(size=(1, 200)) < 0.8
    call = partial(mechanism.attend, is_causal=True, segment_ids=ids, mask=mask)
    got = jax.jit(partial(call, form="chunked"))(q, k, v)
    want = mechanism.reference(q, k, v, is_causal=True, segment_ids=ids, mask=mask)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_nan_in_a_sink_stays_and_elsewhere_leaves_with_the_window(form: str) -> None:
    mechanism = ops.get_mechanism("softmax", window=3, sinks=1, chunk_size=4)
    q, k, v = normal(3, 1, 12, 2, 4)
    ids = np.repeat([0, 1], 6)[None].astype(np.int32)

    def lost(at: int, **options: Any) -> list[int]:
        broken = v.copy()
        broken[:, at] = np.nan
        y = mechanism.attend(q, k, broken, is_causal=True, form=form, **options)
        return np.flatnonzero(np.isnan(y[0, :, 0, 0])).tolist()

    assert lost(0) == [*range(12)] and lost(4) == [4, 5, 6]
    assert lost(6, segment_ids=ids) == [*range(6, 12)] and lost(1, segment_ids=ids) == [1, 2, 3]


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_sinks_continue_in_a_state(cut: int) -> None:
    """Before and after the sinks and the ring are full, with padding in the middle."""
    mechanism = ops.get_mechanism("softmax", window=3, sinks=2)
    q, k, v = normal(3, 2, 14, 2, 4)
    mask = np.random.default_rng(1).uniform(size=(2, 14)) < 0.7
    want = mechanism.reference(q, k, v, is_causal=True, mask=mask)
    state = mechanism.init_state(2, 2, 4, 4)
    for part in (slice(0, cut), slice(cut, 12)):
        y, state = mechanism.attend(
            *(x[:, part] for x in (q, k, v)),
            mask=mask[:, part],
            is_causal=True,
            initial_state=state,
            return_state=True,
        )
        np.testing.assert_allclose(y, want[:, part], rtol=1e-5, atol=1e-5)
    for t in (12, 13):
        y, state = mechanism.step(q[:, t], k[:, t], v[:, t], state, mask[:, t])
        np.testing.assert_allclose(y, want[:, t], rtol=1e-5, atol=1e-5)
    assert state.key.shape[2] == 5


def test_sinks_and_their_ring_make_few_blocks() -> None:
    plan = BlockPlan(BlockSizes(1, 1, 64, 64), 64 * 64, 64 * 64)
    pairs = plan.block_pairs(Visibility(is_causal=True, window=64, sinks=4))
    assert len(pairs) == 3 * 64 - 3


@pytest.mark.parametrize("soft_cap", [2.0, 50.0])
def test_a_soft_cap_in_every_form(soft_cap: float) -> None:
    """Values and gradients against the reference in float64, at scores far beyond the cap."""
    with jax.enable_x64(True):
        mechanism = ops.get_mechanism("softmax", soft_cap=soft_cap, chunk_size=4)
        q, k, v = normal(3, 2, 7, 3, 4).astype(np.float64)
        mask = np.arange(7) != 2
        mask = np.stack([mask, ~mask | mask])

        def loss(attend: Any, q: Any, k: Any, v: Any) -> Any:
            return jnp.sum(attend(3 * q, k, v, is_causal=True, mask=mask) * np.cos(np.arange(4)))

        def run(attend: Any) -> Any:
            return jax.value_and_grad(partial(loss, attend), argnums=(0, 1, 2))(q, k, v)

        want = run(mechanism.reference)
        assert abs(want[0] - run(ops.get_mechanism("softmax").reference)[0]) > 1e-3
        for form in mechanism.capabilities.forms:
            got = run(partial(mechanism.attend, form=form))
            jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), got, want)
        _, state = mechanism.attend(q[:, :6], k[:, :6], v[:, :6], is_causal=True, return_state=True)
        y, _ = mechanism.step(q[:, 6], k[:, 6], v[:, 6], state)
        want = mechanism.reference(q, k, v, is_causal=True)[:, 6]
        np.testing.assert_allclose(y, want, rtol=1e-9, atol=1e-9)


def test_a_soft_cap_of_enormous_scores_is_finite() -> None:
    mechanism = ops.get_mechanism("softmax:soft_cap=30")
    q, k, v = normal(3, 1, 6, 2, 4)
    for form in ("parallel", "chunked"):
        run = jax.value_and_grad(
            lambda q, form=form: jnp.sum(mechanism.attend(q, 1e20 * k, v, form=form))
        )
        assert all(bool(jnp.all(jnp.isfinite(x))) for x in run(1e10 * q))


def test_a_window_says_what_it_lacks() -> None:
    mechanism = ops.get_mechanism("softmax:window=4")
    x = jnp.ones((1, 8, 2, 4))
    with pytest.raises(ValueError, match="'softmax' is causal only"):
        mechanism.attend(x, x, x)
    with pytest.raises(ValueError, match="cannot merge states"):
        mechanism.merge(mechanism.init_state(1, 2, 4, 4), mechanism.init_state(1, 2, 4, 4))
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        ops.get_mechanism("softmax", window=0)
    with pytest.raises(ValueError, match="implementation='xla' does not support a window"):
        ops.get_mechanism("softmax", window=4, implementation="xla")
    with pytest.raises(ValueError, match=r"sinks=2 keeps first tokens visible .* pass window"):
        ops.get_mechanism("softmax", sinks=2)
    with pytest.raises(ValueError, match="soft_cap must be positive"):
        ops.get_mechanism("softmax", soft_cap=0.0)
    with pytest.raises(ValueError, match="implementation='xla' does not support a soft_cap"):
        ops.get_mechanism("softmax", soft_cap=1.0, implementation="xla")
    other = ops.get_mechanism("softmax").init_state(1, 2, 4, 4, max_length=4)
    with pytest.raises((ValueError, TypeError), match="state"):
        mechanism.step(x[:, 0], x[:, 0], x[:, 0], other)


def test_a_model_with_a_window_streams_without_end() -> None:
    model = models.Backbone(
        3, 8, num_layers=1, num_heads=2, mechanism="softmax:window=4", rngs=nnx.Rngs(0)
    )
    x, mask = jnp.asarray(normal(2, 11, 3)), np.ones((2, 11), bool)
    mask[1, ::3] = False
    stream = inference.Stream(model, batch_size=2)
    size = inference.state_bytes(stream.state)
    for t in range(11):
        y = stream.step(x[:, t], mask[:, t])
    assert inference.state_bytes(stream.state) == size
    whole = jax.jit(model)(x, mask=mask)
    np.testing.assert_allclose(y, whole[:, -1], rtol=1e-5, atol=1e-5)
