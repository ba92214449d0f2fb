"""The transformer block: parameter counts of the paper, its equations, dropout, precision."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn
from flax_linattn.nn.dropout import apply_dropout
from flax_linattn.nn.feed_forward import ACTIVATIONS
from flax_linattn.nn.norm import LayerNorm
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn import checks
from tests.nn.cases import STACKED, WIDTH, call, normal, run_steps

HIDDEN = 12


@functools.cache
def make(mechanism="aaren", **options):
    block = nn.TransformerBlock(
        WIDTH, 2, hidden_features=HIDDEN, mechanism=mechanism, rngs=nnx.Rngs(0), **options
    )
    graph, params = nnx.split(block, nnx.Param)
    leaves, tree = jax.tree.flatten(params)  # biases and norms start at 0 and 1: move them

    def noise(seed, shape):
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    leaves = [jnp.asarray(np.asarray(a) + 0.1 * noise(i, a.shape)) for i, a in enumerate(leaves)]
    return nnx.merge(graph, jax.tree.unflatten(tree, leaves))


@pytest.mark.parametrize(
    ("mechanism", "count"),
    [("softmax", 3_152_384), ("aaren", 3_152_896), ("bidirectional_aaren", 3_152_896)],
)
def test_parameter_counts_of_the_paper(mechanism, count):
    """Section 4.5 of the Aaren paper."""
    block = nnx.eval_shape(
        lambda: nn.TransformerBlock(
            512, 8, hidden_features=2048, mechanism=mechanism, rngs=nnx.Rngs(0)
        )
    )
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(block))) == count


def test_hidden_features_default_to_four_times_the_width():
    block = nnx.eval_shape(lambda: nn.TransformerBlock(WIDTH, 2, rngs=nnx.Rngs(0)))
    assert block.feed_forward.expand.kernel.shape == (WIDTH, 4 * WIDTH)


@jax.jit
def normed(x, scale, bias):
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + bias


def plain_norm(norm, x):
    return normed(x, norm.scale[...], norm.bias[...])


def plain_block(block, x):
    """Time-Series-Library's layer and its pre-norm sibling, written out."""

    def feed_forward(x):
        first, second = block.feed_forward.expand, block.feed_forward.contract
        h = x @ first.kernel[...] + first.bias[...]
        if block.feed_forward.activation == "gelu":
            h = 0.5 * h * (1 + jax.scipy.special.erf(h / np.float32(np.sqrt(2))))
        elif block.feed_forward.activation == "relu":
            h = jnp.where(h > 0, h, 0.0)
        else:
            h = 1 - 2 / (jnp.exp(2 * h) + 1)
        return h @ second.kernel[...] + second.bias[...]

    def attend(x):
        return call(block.attention, x, is_causal=True)

    if block.norm == "pre":
        x = x + attend(plain_norm(block.attention_norm, x))
        return x + feed_forward(plain_norm(block.feed_forward_norm, x))
    x = plain_norm(block.attention_norm, x + attend(x))
    return plain_norm(block.feed_forward_norm, x + feed_forward(x))


@pytest.mark.parametrize("activation", ["gelu", "relu", "tanh"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_is_its_equations(norm, activation):
    block = make(norm=norm, activation=activation)
    x = normal(1, 2, 5, WIDTH)
    assert_close(call(block, x, is_causal=True), plain_block(block, x), "float32")


def test_gelu_is_the_exact_one():
    x = np.linspace(-4, 4, 33)
    want = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x]
    got = ACTIVATIONS["gelu"](jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    tanh = jax.nn.gelu(jnp.asarray(x, jnp.float32), approximate=True)
    assert np.abs(tanh - np.asarray(want)).max() > 1e-4


@pytest.mark.parametrize("norm", [pytest.param("pre", marks=pytest.mark.slow), "post"])
@pytest.mark.parametrize("mechanism", STACKED)
def test_block_streams(mechanism, norm):
    """As the loop of steps, in parts, packed, and with padding anywhere."""
    block = make(mechanism, norm=norm)
    x = normal(2, checks.ROWS, checks.LENGTH, WIDTH)
    whole = checks.run(block, x)
    checks.is_the_loop_of_steps(block, x, whole)
    checks.goes_on_from_any_split(block, x, whole)
    checks.packed_is_separate(block, x)
    checks.future_changes_no_bit_of_the_past(block, x, whole)
    checks.padding_changes_nothing(block)


def test_dropout_only_with_a_key():
    block, sure = make(dropout_rate=0.5), make()
    x = normal(6, 2, 5, WIDTH)
    without = call(block, x, is_causal=True)
    assert_same_bits(without, call(sure, x, is_causal=True))
    first, again, other = (
        call(block, x, is_causal=True, dropout_key=jax.random.key(seed)) for seed in (1, 1, 2)
    )
    assert_same_bits(first, again)
    assert not np.allclose(first, other, atol=0.1)
    assert not np.allclose(first, without, atol=0.1)
    same = call(sure, x, is_causal=True, dropout_key=jax.random.key(1))
    assert_close(same, without, "float32")


def test_dropout_drops_the_rate_and_keeps_the_mean():
    x = jnp.ones((100, 100))
    y = apply_dropout(nnx.Dropout(0.2), x, jax.random.key(0))
    dropped = float(jnp.mean(y == 0.0))
    assert dropped == pytest.approx(0.2, abs=0.02)
    np.testing.assert_allclose(y[y != 0.0], 1 / 0.8, rtol=1e-6)


def test_dropout_masks_differ_between_sublayers():
    """One key, yet attention and feed-forward drop independently."""
    feed_forward = nn.FeedForward(64, 64, dropout_rate=0.5, rngs=nnx.Rngs(0))
    feed_forward.contract.kernel[...] = jnp.zeros((64, 64))
    feed_forward.contract.bias[...] = jnp.ones(64)
    out = call(feed_forward, jnp.ones((8, 64)), dropout_key=jax.random.key(0))
    assert 0.4 < float(np.mean(out == 0.0)) < 0.6
    block = nn.TransformerBlock(64, 2, hidden_features=64, norm="pre", dropout_rate=0.5,
                                rngs=nnx.Rngs(0))  # fmt: skip
    block.attention.out_projection.kernel[...] = jnp.zeros((64, 64))
    block.attention.out_projection.bias[...] = jnp.ones(64)
    block.feed_forward.contract.kernel[...] = jnp.zeros((64, 64))
    block.feed_forward.contract.bias[...] = jnp.ones(64)
    # Each sublayer adds 0 or 2: independent masks give 0, 2 and 4 in shares 1/4, 1/2, 1/4.
    y = call(block, jnp.zeros((4, 16, 64)), dropout_key=jax.random.key(1))
    shares = [float(np.mean(y == value)) for value in (0.0, 2.0, 4.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.04)


@pytest.mark.parametrize("norm", [pytest.param("pre", marks=pytest.mark.slow), "post"])
@pytest.mark.parametrize("mechanism", STACKED)
def test_bfloat16_computation(mechanism, norm):
    """Float32 inputs keep a float32 residual; bfloat16 ones a bfloat16 residual."""
    half, exact = make(mechanism, norm=norm, dtype=jnp.bfloat16), make(mechanism, norm=norm)
    assert {a.dtype for a in jax.tree.leaves(nnx.state(half))} == {jnp.dtype("float32")}
    x = normal(7, 2, 5, WIDTH)
    want = call(exact, x, is_causal=True)
    for dtype in (jnp.float32, jnp.bfloat16):
        y = call(half, x.astype(dtype), is_causal=True)
        assert y.dtype == dtype
        assert_close(y, want, "bfloat16")
        y_steps, _ = run_steps(half, x.astype(dtype), half.init_state(2, 5))
        assert_close(y_steps, y, "bfloat16")


def test_layer_norm_statistics_are_float32():
    """Only the output is rounded to bfloat16."""
    norm = LayerNorm(64, rngs=nnx.Rngs(0))
    x = (normal(8, 3, 64) * 4 + 8).astype(jnp.bfloat16)
    y = call(norm, x)
    assert y.dtype == jnp.bfloat16
    exact = plain_norm(norm, x.astype(jnp.float32))
    np.testing.assert_allclose(y.astype(jnp.float32), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "middle"}, "norm must be one of pre, post, got 'middle'"),
        ({"activation": "swish"}, "activation must be one of gelu, relu, tanh, got 'swish'"),
        ({"mechanism": "rnn"}, "'rnn'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
    with pytest.raises(ValueError, match="must be a multiple of num_heads"):
        nn.TransformerBlock(WIDTH, 4, rngs=nnx.Rngs(0))
