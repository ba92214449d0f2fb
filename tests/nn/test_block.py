"""The transformer block: parameter counts of the paper, its equations, dropout, precision."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn
from flax_linattn.nn.block import ACTIVATIONS, LayerNorm, apply_dropout
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import CAUSAL, LAYOUTS, PACKED, at_real, normal, padded, run_steps

WIDTH, HIDDEN = 8, 12


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


@pytest.mark.parametrize(("mechanism", "count"), [("softmax", 3_152_384), ("aaren", 3_152_896)])
def test_parameter_counts_of_the_paper(mechanism, count):
    """Section 4.5 of the Aaren paper."""
    block = nnx.eval_shape(
        lambda: nn.TransformerBlock(
            512, 8, hidden_features=2048, mechanism=mechanism, rngs=nnx.Rngs(0)
        )
    )
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(block))) == count


def test_hidden_features_default_to_four_times_the_width():
    block = nn.TransformerBlock(WIDTH, 2, rngs=nnx.Rngs(0))
    assert block.feed_forward.expand.kernel.shape == (WIDTH, 4 * WIDTH)


def plain_norm(norm, x):
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * norm.scale[...] + norm.bias[...]


def plain_block(block, x):
    """Time-Series-Library's layer and its pre-norm sibling, written out."""

    def feed_forward(x):
        first, second = block.feed_forward.expand, block.feed_forward.contract
        h = x @ first.kernel[...] + first.bias[...]
        if block.feed_forward.activation == "gelu":
            h = 0.5 * h * (1 + jax.scipy.special.erf(h / np.float32(np.sqrt(2))))
        else:
            h = jnp.where(h > 0, h, 0.0)
        return h @ second.kernel[...] + second.bias[...]

    def attend(x):
        return block.attention(x, is_causal=True)

    if block.norm == "pre":
        x = x + attend(plain_norm(block.attention_norm, x))
        return x + feed_forward(plain_norm(block.feed_forward_norm, x))
    x = plain_norm(block.attention_norm, x + attend(x))
    return plain_norm(block.feed_forward_norm, x + feed_forward(x))


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_is_its_equations(norm, activation):
    block = make(norm=norm, activation=activation)
    x = normal(1, 2, 5, WIDTH)
    got, want = jax.jit(lambda x: (block(x, is_causal=True), plain_block(block, x)))(x)
    assert_close(got, want, "float32")


def test_gelu_is_the_exact_one():
    x = np.linspace(-4, 4, 33)
    want = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x]
    got = ACTIVATIONS["gelu"](jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    tanh = jax.nn.gelu(jnp.asarray(x, jnp.float32), approximate=True)
    assert np.abs(tanh - np.asarray(want)).max() > 1e-4


@pytest.mark.parametrize("norm", [pytest.param("pre", marks=pytest.mark.slow), "post"])
@pytest.mark.parametrize("mechanism", CAUSAL)
def test_parallel_is_the_loop_of_steps_and_splits(mechanism, norm):
    block = make(mechanism, norm=norm)
    x = normal(2, 2, 5, WIDTH)

    @jax.jit
    def whole_and_split(x):
        head, state = block(x[:, :2], is_causal=True, return_state=True)
        tail = block(x[:, 2:], is_causal=True, state=state)
        return block(x, is_causal=True), jnp.concatenate([head, tail], axis=1)

    whole, split = whole_and_split(x)
    y_steps, _ = run_steps(block, x, block.init_state(2, 5))
    assert_close(split, whole, "float32")
    assert_close(y_steps, whole, "float32")


@pytest.mark.parametrize("norm", [pytest.param("pre", marks=pytest.mark.slow), "post"])
@pytest.mark.parametrize("mechanism", CAUSAL)
def test_padding_anywhere_changes_nothing(mechanism, norm):
    """Outputs at real positions and all parameter gradients, with NaN as padding."""
    graph, params = nnx.split(make(mechanism, norm=norm), nnx.Param)
    real, weights = normal(3, 4, 4, WIDTH), normal(4, 4, 4, WIDTH)

    @jax.jit
    def run(params, x, mask, weights):
        def loss(params):
            y = nnx.merge(graph, params)(x, is_causal=True, mask=mask)
            return jnp.sum(jnp.where(mask[..., None], y * weights, 0.0)), y

        return jax.grad(loss, has_aux=True)(params)

    grad_real, y_real = run(params, real, jnp.ones((4, 4), bool), weights)
    grad, y = run(params, padded(real), jnp.asarray(LAYOUTS), padded(weights, 0.0))
    assert_close(at_real(y), y_real, "float32")
    assert_close(grad, grad_real, "float32")


@pytest.mark.parametrize("mechanism", PACKED)
def test_packed_is_separate(mechanism):
    block = make(mechanism)
    x = normal(5, 2, 6, WIDTH)
    ids = jnp.array([[0, 0, 0, 1, 1, 1]] * 2)
    packed = jax.jit(lambda x: block(x, is_causal=True, segment_ids=ids))(x)
    separate = jax.jit(lambda x: block(x, is_causal=True))(x.reshape(4, 3, WIDTH))
    assert_close(packed, separate.reshape(2, 6, WIDTH), "float32")


def test_dropout_only_with_a_key():
    block, sure = make(dropout_rate=0.5), make()
    x = normal(6, 2, 5, WIDTH)
    run = jax.jit(lambda x, key: block(x, is_causal=True, dropout_key=key))
    without = block(x, is_causal=True)
    assert_same_bits(without, sure(x, is_causal=True))
    assert_same_bits(run(x, jax.random.key(1)), run(x, jax.random.key(1)))
    assert not jnp.allclose(run(x, jax.random.key(1)), run(x, jax.random.key(2)), atol=0.1)
    assert not jnp.allclose(run(x, jax.random.key(1)), without, atol=0.1)
    same = sure(x, is_causal=True, dropout_key=jax.random.key(1))
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
    out = feed_forward(jnp.ones((8, 64)), dropout_key=jax.random.key(0))
    assert 0.4 < float(jnp.mean(out == 0.0)) < 0.6
    block = nn.TransformerBlock(64, 2, hidden_features=64, dropout_rate=0.5, rngs=nnx.Rngs(0))
    block.attention.out_projection.kernel[...] = jnp.zeros((64, 64))
    block.attention.out_projection.bias[...] = jnp.ones(64)
    block.feed_forward.contract.kernel[...] = jnp.zeros((64, 64))
    block.feed_forward.contract.bias[...] = jnp.ones(64)
    # Each sublayer adds 0 or 2: independent masks give 0, 2 and 4 in shares 1/4, 1/2, 1/4.
    y = jax.jit(lambda x, key: block(x, dropout_key=key))(jnp.zeros((4, 16, 64)), jax.random.key(1))
    shares = [float(jnp.mean(y == value)) for value in (0.0, 2.0, 4.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.04)


@pytest.mark.parametrize("norm", [pytest.param("pre", marks=pytest.mark.slow), "post"])
@pytest.mark.parametrize("mechanism", CAUSAL)
def test_bfloat16_computation(mechanism, norm):
    """Float32 inputs keep a float32 residual; bfloat16 ones a bfloat16 residual."""
    half, exact = make(mechanism, norm=norm, dtype=jnp.bfloat16), make(mechanism, norm=norm)
    assert {a.dtype for a in jax.tree.leaves(nnx.state(half))} == {jnp.dtype("float32")}
    x = normal(7, 2, 5, WIDTH)
    run = jax.jit(lambda x: half(x, is_causal=True))
    want = jax.jit(lambda x: exact(x, is_causal=True))(x)
    for dtype in (jnp.float32, jnp.bfloat16):
        y = run(x.astype(dtype))
        assert y.dtype == dtype
        assert_close(y, want, "bfloat16")
        y_steps, _ = run_steps(half, x.astype(dtype), half.init_state(2, 5))
        assert_close(y_steps, y, "bfloat16")


def test_layer_norm_statistics_are_float32():
    """Only the output is rounded to bfloat16."""
    norm = LayerNorm(64, rngs=nnx.Rngs(0))
    x = (normal(8, 3, 64) * 4 + 8).astype(jnp.bfloat16)
    y = norm(x)
    assert y.dtype == jnp.bfloat16
    exact = plain_norm(norm, x.astype(jnp.float32))
    np.testing.assert_allclose(y.astype(jnp.float32), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "middle"}, "'pre' or 'post', got 'middle'"),
        ({"activation": "swish"}, "unknown activation 'swish'; choose one of: gelu, relu"),
        ({"mechanism": "rnn"}, "'rnn'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
    with pytest.raises(ValueError, match="must be a multiple of num_heads"):
        nn.TransformerBlock(WIDTH, 3, rngs=nnx.Rngs(0))
