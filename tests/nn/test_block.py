"""The transformer block: parameter counts of the paper, its equations, dropout, precision."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn
from flax_linattn.nn.feed_forward import ACTIVATIONS
from flax_linattn.nn.norm import LayerNorm, standardize
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn import checks, equations
from tests.nn.cases import STACKED, WIDTH, call, make_block, normal, run_steps


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


SCALED = {"layer_scale": 0.3, "drop_path_rate": 0.5}


OPTIONS = [
    *({"norm": norm, "activation": name} for norm in ("pre", "post") for name in ("gelu", "tanh")),
    *({"norm": norm, **SCALED} for norm in ("pre", "post", "sandwich")),
    {"norm": "post", "activation": "relu", "residual_scale": 0.5},
    {"norm": "pre", "norm_type": "rms", "activation": "swiglu", "use_bias": False},
    {"norm": "sandwich", "norm_type": "rms", "activation": "geglu"},
    {"norm": "pre", "is_parallel": True, "activation": "silu", "residual_scale": 0.5},
]


@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: "-".join(map(str, options.values()))
)
def test_block_is_its_equations(options):
    """In parallel and by steps, in which drop path has no part."""
    block = make_block(**options)
    x = normal(1, 2, 5, WIDTH)
    want = equations.transformed(block, np.asarray(x, np.float64))
    assert_close(call(block, x, is_causal=True), want, "float32")
    assert_close(run_steps(block, x, block.init_state(2, 5))[0], want, "float32")


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
    block = make_block(mechanism, norm=norm)
    checks.streams_and_packs(block)


def test_dropout_only_with_a_key():
    block, sure = make_block(dropout_rate=0.5), make_block()
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


@pytest.mark.parametrize(
    "options", [pytest.param({"norm": "pre"}, marks=pytest.mark.slow), {"norm": "post"}, SCALED]
)
@pytest.mark.parametrize("mechanism", STACKED)
def test_bfloat16_computation(mechanism, options):
    """Float32 inputs keep a float32 residual; bfloat16 ones a bfloat16 residual."""
    half, exact = (
        make_block(mechanism, dtype=jnp.bfloat16, **options),
        make_block(mechanism, **options),
    )
    assert {a.dtype for a in jax.tree.leaves(nnx.state(half, nnx.Param))} == {jnp.dtype("float32")}
    x = normal(7, 2, 5, WIDTH)
    want = call(exact, x, is_causal=True)
    for dtype in (jnp.float32, jnp.bfloat16):
        y = call(half, x.astype(dtype), is_causal=True)
        assert y.dtype == dtype
        assert_close(y, want, "bfloat16")
        y_steps, _ = run_steps(half, x.astype(dtype), half.init_state(2, 5))
        assert_close(y_steps, y, "bfloat16")


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm_is_its_equation(offset):
    """Both conventions of the scale are one function at the beginning."""
    norm = nn.RMSNorm(64, offset=offset, rngs=nnx.Rngs(0))
    x = normal(8, 3, 64) * 4 + 8
    plain = call(nn.RMSNorm(64, rngs=nnx.Rngs(0)), x)
    assert_same_bits(call(norm, x), plain)
    norm.scale[...] = normal(9, 64)
    assert_close(call(norm, x), equations.normed(norm, x), "float32")
    half = call(norm, x.astype(jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    assert_close(half, equations.normed(norm, x.astype(jnp.bfloat16)), "bfloat16")


def test_unknown_options_name_the_class():
    for make in (nn.TransformerBlock, nn.DecoderBlock, nn.Attention):
        with pytest.raises(TypeError, match=f"{make.__name__} has no option 'kernel_initt'; did"):
            make(WIDTH, 2, kernel_initt=None, rngs=nnx.Rngs(0))


def test_layer_norm_statistics_are_float32():
    """Only the output is rounded to bfloat16."""
    norm = LayerNorm(64, rngs=nnx.Rngs(0))
    x = (normal(8, 3, 64) * 4 + 8).astype(jnp.bfloat16)
    y = call(norm, x)
    assert y.dtype == jnp.bfloat16
    exact = equations.normed(norm, x.astype(jnp.float32))
    np.testing.assert_allclose(y.astype(jnp.float32), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("is_centered", [True, False])
def test_derivatives_of_norms(is_centered):
    """Against automatic differentiation of the formula in float64, to the second order."""

    def formula(x):
        x = x - jnp.mean(x, axis=-1, keepdims=True) if is_centered else x
        return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)

    def derivatives(function, x, dx, dy):
        def gradient(x):
            return jax.vjp(function, x)[1](dy)[0]

        return *jax.jvp(function, (x,), (dx,)), gradient(x), jax.jvp(gradient, (x,), (dx,))[1]

    x, dx, dy = normal(10, 3, 64) * 4 + 8, normal(11, 3, 64), normal(12, 3, 64)
    ours = jax.jit(lambda *to: derivatives(lambda x: standardize(x, 1e-5, is_centered), *to))
    with jax.enable_x64(True):
        exact = derivatives(formula, *(np.asarray(a, np.float64) for a in (x, dx, dy)))
    for got, want in zip(ours(x, dx, dy), exact, strict=True):
        assert_close(got, want, "float32")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "middle"}, "norm must be one of pre, post, sandwich, got 'middle'"),
        ({"norm": "rms"}, "got 'rms', which is a type of norm; pass norm_type='rms' instead"),
        ({"norm_type": "batch"}, "norm_type must be one of layer, rms, got 'batch'"),
        ({"activation": "swish"}, "activation must be one of .*swiglu, geglu, got 'swish'"),
        ({"is_parallel": True}, "a parallel block is normalized before its branches"),
        ({"residual_scale": 0.0}, "residual_scale"),
        ({"mechanism": "rnn"}, "'rnn'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_block(**options)
    with pytest.raises(ValueError, match="must be a multiple of num_heads"):
        nn.TransformerBlock(WIDTH, 4, rngs=nnx.Rngs(0))
