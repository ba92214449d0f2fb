"""Drop path and layer scale, by themselves and in the block."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_linattn import nn
from flax_linattn.nn.dropout import apply_dropout, split_key
from tests.contract.tolerances import assert_same_bits
from tests.nn.cases import WIDTH, call, make_block, normal

drop = jax.jit(nn.apply_drop_path, static_argnums=1)


@settings(max_examples=10)
@given(st.sampled_from([0.05, 0.5, 0.9]), st.integers(0, 2**31))
def test_a_row_is_dropped_whole_or_scaled(rate, seed):
    x = normal(0, 16, 3, 2)
    y = np.asarray(drop(x, rate, jax.random.key(seed)))
    scaled = np.asarray(x) / np.float32(1 - rate)
    for row in range(len(x)):
        assert not y[row].any() or np.allclose(y[row], scaled[row], rtol=1e-6)


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_the_mean_stays_and_the_rate_is_the_share(rate):
    """Within four standard deviations of a binomial share."""
    rows = 20_000
    y = np.asarray(drop(jnp.ones((rows, 2)), rate, jax.random.key(1)))
    spread = 4 * math.sqrt(rate * (1 - rate) / rows)
    assert np.mean(y[:, 0] == 0) == pytest.approx(rate, abs=spread)
    assert np.mean(y) == pytest.approx(1, abs=spread / (1 - rate))


def test_nothing_is_dropped_without_a_key_or_rate():
    x = normal(0, 4, 3)
    assert nn.apply_drop_path(x, 0.5, None) is x
    assert nn.apply_drop_path(x, 0.0, jax.random.key(0)) is x


def test_a_dropped_branch_gives_no_nan_and_no_gradient():
    x = jnp.full((64, 2), jnp.nan).at[::2].set(1.0)
    y = np.asarray(drop(x, 0.5, jax.random.key(0)))
    kept = y.any(axis=1)
    assert not np.isnan(y[~kept]).any()
    gradient = jax.grad(lambda x: drop(x, 0.5, jax.random.key(0)).sum())(jnp.ones((64, 2)))
    want = np.where(kept[:, None], np.float32([2, 2]), np.float32(0))
    assert_same_bits(np.asarray(gradient), want)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_wrong_rates(rate):
    with pytest.raises(ValueError, match=r"drop_path_rate must be in \[0, 1\)"):
        nn.apply_drop_path(jnp.ones(2), rate, None)
    with pytest.raises(ValueError, match=r"drop_path_rate must be in \[0, 1\)"):
        nn.TransformerBlock(WIDTH, 2, drop_path_rate=rate, rngs=nnx.Rngs(0))


def test_layer_scale_multiplies_in_the_accumulation_dtype():
    scale = nn.LayerScale(3, rngs=nnx.Rngs(0))
    scale.scale[...] = jnp.array([1e-4, 1.001, -3.0])
    x = normal(1, 2, 5, 3).astype(jnp.bfloat16)
    y = call(scale, x)
    assert y.dtype == jnp.bfloat16
    want = np.asarray(x, np.float32) * np.array([1e-4, 1.001, -3], np.float32)
    assert_same_bits(y, np.asarray(jnp.asarray(want).astype(jnp.bfloat16)))
    assert nn.LayerScale(3, rngs=nnx.Rngs(0)).scale[...].tolist() == pytest.approx([1e-4] * 3)
    with pytest.raises(ValueError, match="layer_scale must be positive, got 0"):
        nn.LayerScale(3, 0.0)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_each_row_drops_each_branch_by_itself(norm):
    """A row is one of four: both branches, either, or none; without noise each is exact."""
    block = make_block(norm=norm, layer_scale=0.3, drop_path_rate=0.5)
    rows = 64
    x = jnp.tile(normal(3, 1, 3, WIDTH), (rows, 1, 1))
    y = call(block, x, is_causal=True, dropout_key=jax.random.key(0))
    wanted = []
    for first in (0.0, 2.0):
        for second in (0.0, 2.0):
            scaled = nnx.clone(block)
            scaled.attention_scale.scale[...] *= first
            scaled.feed_forward_scale.scale[...] *= second
            wanted.append(call(scaled, x[:1], is_causal=True)[0])
    distance = np.abs(y[:, None] - np.stack(wanted)).max(axis=(2, 3))
    assert (distance.min(axis=1) < 1e-5).all()
    counts = np.bincount(distance.argmin(axis=1), minlength=4)
    assert counts.min() >= 4  # of 16 expected each: 3.5 standard deviations


def test_drop_path_acts_in_training_mode_where_dropout_has_rate_0():
    block = nnx.clone(make_block(drop_path_rate=0.5))
    x = normal(4, 8, 3, WIDTH)
    sure = call(block, x, is_causal=True)
    block.train()
    run = nnx.jit(lambda block, x: block(x, is_causal=True))
    first, second = run(block, x), run(block, x)
    assert not np.allclose(first, sure, atol=1e-3)
    assert not np.allclose(first, second, atol=1e-3)
    alone = nn.TransformerBlock(WIDTH, 2, drop_path_rate=0.5, rngs=nnx.Rngs(params=0))
    alone.train()
    with pytest.raises(ValueError, match="it has no key; pass dropout_key"):
        alone(x)


def test_dropout_without_drop_path_draws_as_before():
    """From the two halves of the block's key, as stored runs did."""
    block = make_block(dropout_rate=0.5, norm="pre")
    x, key = normal(5, 2, 4, WIDTH), jax.random.key(7)
    keys = split_key(key, 2)

    @jax.jit
    def plainly(x):
        attended = block.attention(block.attention_norm(x), is_causal=True)
        x = x + apply_dropout(block.dropout, attended, keys[0])
        return x + block.feed_forward.map(block.feed_forward_norm(x), keys[1])

    assert_same_bits(call(block, x, is_causal=True, dropout_key=key), np.asarray(plainly(x)))


def test_a_block_without_the_two_has_the_variables_it_had():
    names = {"attention", "attention_norm", "feed_forward", "feed_forward_norm"}
    assert set(nnx.state(make_block(), nnx.Param)) == names
    scaled = set(nnx.state(make_block(layer_scale=0.1, drop_path_rate=0.1), nnx.Param))
    assert scaled - names == {"attention_scale", "feed_forward_scale"}
