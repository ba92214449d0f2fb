"""The convolutions over tokens against dense one-hot convolutions in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_linattn import nn
from flax_linattn.ops.contract.masks import find_segments
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import LAYOUTS, at_real, call, moved, normal, run_steps
from tests.nn.equations import ACTIVATIONS, array

TOKENS, FEATURES = 7, 8
PADDINGS = ["same", "causal"]
OUTSIDE = 1000
"""No token: what padding may hold."""


@functools.cache
def make(padding="same", kernel_size=3, features=FEATURES, **options):
    """One whose parameters are away from their initial values."""
    embed = nn.ConvEmbedding(
        TOKENS, features, padding=padding, kernel_size=kernel_size, rngs=nnx.Rngs(0), **options
    )
    return moved(embed)


def tokens(seed, *shape):
    return np.random.default_rng(seed).integers(0, TOKENS, shape).astype(np.int32)


def plain(embed, sequence):
    """The network on the one-hot vectors of one sequence without padding: [T, C]."""
    x = np.eye(TOKENS)[np.asarray(sequence)]
    size = embed.kernel_size
    behind = size - 1 if embed.padding == "causal" else size // 2
    for kernel, norm in zip([embed.table, *embed.kernels], embed.norms, strict=True):
        kernel = array(kernel)
        y = np.zeros((len(x), kernel.shape[-1]))
        for t in range(len(x)):
            for tap in range(size):
                if 0 <= t - behind + tap < len(x):
                    y[t] += x[t - behind + tap] @ kernel[tap]
        axis = -1 if embed.padding == "causal" else None
        mean, variance = y.mean(axis, keepdims=True), y.var(axis, keepdims=True)
        y = (y - mean) / np.sqrt(variance + 1e-5) * array(norm.scale) + array(norm.bias)
        x = ACTIVATIONS["gelu"](y)
    return x


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kernel_size", [1, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_it_is_the_network_on_one_hot_vectors(padding, kernel_size):
    embed = make(padding, kernel_size)
    x = tokens(1, 2, 6)
    want = np.stack([plain(embed, row) for row in x])
    assert_close(call(embed, x), want, "float32")


def test_it_is_the_network_at_the_papers_size():
    """256 symbols, where a dense product would be 256 wide; its gradient, too."""
    embed = nn.ConvEmbedding(256, 32, rngs=nnx.Rngs(0))
    x = np.random.default_rng(0).integers(0, 256, (2, 300))
    graph, params = nnx.split(embed)

    def dense(params):
        part = nnx.merge(graph, params)
        h = jax.nn.one_hot(x, 256)
        for kernel, norm in zip([part.table, *part.kernels], part.norms, strict=True):
            h = jax.lax.conv_general_dilated(
                h, kernel[...], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
            )
            h = jax.nn.gelu(norm(h), approximate=False)
        return h

    def pulled(outputs):
        y, pull = jax.vjp(outputs, params)
        return y, pull(normal(1, 2, 300, 32))[0]

    want = jax.jit(lambda: pulled(dense))()
    got = jax.jit(lambda: pulled(lambda params: nnx.merge(graph, params)(x)))()
    assert_close(got, want, "float32")
    text = jax.jit(lambda x: embed(x)).lower(x).as_text()
    assert "2x300x256x" not in text  # no one-hot vectors


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("filler", [OUTSIDE, -1, 0])
def test_padding_anywhere_is_skipped(padding, filler):
    embed = make(padding)
    real = tokens(2, len(LAYOUTS), 4)
    x = np.full(LAYOUTS.shape, filler, np.int32)
    x[LAYOUTS] = real.ravel()
    want = np.stack([plain(embed, row) for row in real])
    got = call(embed, x, mask=LAYOUTS)
    assert_close(at_real(got), want, "float32")
    assert np.isfinite(got).all()


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_row_of_padding_alone_is_finite_and_so_are_gradients(padding):
    embed = make(padding)
    x, mask = np.full((2, 5), OUTSIDE), np.array([[True] * 5, [False] * 5])
    x[0] = tokens(3, 5)
    graph, params = nnx.split(embed)

    @jax.jit
    def pulled(x, mask):
        def real(params):
            y = nnx.merge(graph, params)(x, mask=mask)
            return jnp.where(mask[..., None], y, 0.0)

        y, pull = jax.vjp(real, params)
        return y, pull(normal(4, 2, 5, FEATURES))[0]

    y, gradients = pulled(x, mask)
    assert_close(y[0], plain(embed, x[0]), "float32")
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))
    other, again = pulled(np.where(mask, x, 3), mask)
    assert_same_bits((other, again), (y, gradients))


@settings(max_examples=15)
@given(st.data())
def test_masks_of_any_kind(data):
    """Whatever stands at padding, and wherever it is."""
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=6, max_size=6)))[None]
    x = np.array(data.draw(st.lists(st.integers(0, TOKENS - 1), min_size=6, max_size=6)))[None]
    embed = make()
    got = call(embed, np.where(mask, x, OUTSIDE), mask=mask)
    if mask.any():
        assert_close(got[mask], plain(embed, x[mask]), "float32")


@pytest.mark.parametrize("token", [TOKENS, -1])
def test_a_token_outside_gives_nan(token):
    """Not another one's features: to the whole sequence, or to what the past leads it to."""
    x = tokens(5, 2, 12)
    x[0, 3] = token
    y = call(make(), x)
    assert np.isnan(y[0]).all()
    assert_close(y[1], plain(make(), x[1]), "float32")
    y = call(make("causal"), x)
    assert np.isnan(y[0, 3:10]).any(axis=-1).all()
    assert np.isfinite(y[0, :3]).all()
    assert np.isfinite(y[0, 10:]).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16])
def test_narrow_dtypes_hold_tokens(dtype):
    embed = nn.ConvEmbedding(300, 8, rngs=nnx.Rngs(0))
    x = np.array([[0, 127, 3]])
    assert_same_bits(call(embed, x.astype(dtype)), call(embed, x))


def test_tokens_are_whole_numbers():
    with pytest.raises(TypeError, match="tokens must have an integer dtype, got float32"):
        make()(jnp.ones((2, 3)))


@pytest.mark.parametrize("kernel_size", [1, 2, 3])
def test_causal_streams(kernel_size):
    """By steps, with padding, and in parts; the state is that of the tokens alone."""
    embed = make("causal", kernel_size)
    real = tokens(6, len(LAYOUTS), 4)
    x = np.full(LAYOUTS.shape, OUTSIDE, np.int32)
    x[LAYOUTS] = real.ravel()
    want = np.stack([plain(embed, row) for row in real])
    start = embed.init_state(len(x))
    y, after = run_steps(embed, x, start, LAYOUTS)
    assert_close(at_real(y), want, "float32")
    _, alone = run_steps(embed, real, start, np.ones(real.shape, bool))
    assert_close(after, alone, "float32")
    parts, state = [], start
    for part in (slice(0, 3), slice(3, 6)):
        how = {"mask": LAYOUTS[:, part], "state": state, "return_state": True}
        y, state = call(embed, x[:, part], **how)
        parts.append(y)
    assert_close(at_real(np.concatenate(parts, axis=1)), want, "float32")
    assert_close(state, after, "float32")


def test_causal_packs():
    embed = make("causal")
    x, ids = tokens(7, 2, 6), np.array([[1, 1, 2, 2, 2, 2], [5, 3, 3, 3, 3, 4]])
    mask = np.array([[1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 0, 1]], bool)
    y = call(
        embed, np.where(mask, x, OUTSIDE), mask=mask, segments=jax.jit(find_segments)(ids, mask)
    )
    for row in range(2):
        for segment in np.unique(ids[row]):
            there = (ids[row] == segment) & mask[row]
            assert_close(y[row][there], plain(embed, x[row][there]), "float32")


def test_same_refuses_to_stream_and_to_pack():
    embed, x = make(), jnp.zeros((2, 4), int)
    for refused in (
        lambda: embed.init_state(2),
        lambda: embed(x, return_state=True),
        lambda: embed(x, state=()),
        lambda: embed.step(x[:, 0], ()),
    ):
        with pytest.raises(ValueError, match='has no state; create it with padding="causal"'):
            refused()
    with pytest.raises(
        ValueError, match=r"later tokens, so the embedding has no packed segments; create it"
    ):
        embed(x, segments=find_segments(x))


@pytest.mark.parametrize("padding", PADDINGS)
def test_half_precision(padding):
    """Of the computation alone, or of the parameters, too; windows stay float32."""
    x, exact = tokens(8, 2, 6), make(padding)
    want = call(exact, x)
    of_halves = nn.ConvEmbedding(
        TOKENS, FEATURES, padding=padding, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0)
    )
    halved = jax.tree.map(lambda a: a.astype(jnp.bfloat16), nnx.state(exact, nnx.Param))
    nnx.update(of_halves, halved)
    for half in (make(padding, dtype=jnp.bfloat16), of_halves):
        with jax.numpy_dtype_promotion("standard"):  # layer norms of half-precision parameters
            y = call(half, x)
        assert y.dtype == jnp.bfloat16
        assert_close(y, want, "bfloat16")


def test_steps_of_half_precision_carry_their_state():
    half, x = make("causal", dtype=jnp.bfloat16), tokens(8, 2, 6)
    state = half.init_state(2)
    y, after = run_steps(half, x, state)
    assert_close(y, call(half, x), "bfloat16")
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(after)]
    assert dtypes == [leaf.dtype for leaf in jax.tree.leaves(state)]
    assert dtypes == [jnp.int32, jnp.float32, jnp.float32]


def test_it_starts_as_pytorch_does():
    """Uniform in +-1/sqrt(fan-in) of each convolution, norms at 1 and 0, and no bias."""
    embed = nn.ConvEmbedding(256, 64, rngs=nnx.Rngs(0))
    for kernel, fan_in in zip([embed.table, *embed.kernels], (768, 48, 96), strict=True):
        largest = float(abs(kernel[...]).max())
        assert 0.9 * fan_in**-0.5 < largest <= fan_in**-0.5
    shapes = {name: v.shape for name, v in nnx.to_flat_state(nnx.state(embed))}
    assert shapes["table",] == (3, 256, 16)
    assert [shapes["kernels", i] for i in range(2)] == [(3, 16, 32), (3, 32, 64)]
    assert len(shapes) == 3 + 2 * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": "circular"}, "padding must be one of same, causal, got 'circular'"),
        ({"kernel_size": 2}, 'kernel_size must be odd for padding "same", got 2'),
        ({"kernel_size": 0}, "kernel_size must be at least 1, got 0"),
        ({"features": 6}, "features must be a multiple of 4, because .* got 6"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_the_norm_of_a_sequence_keeps_its_digits():
    """Where the mean is large, and in half precision but for the output's rounding."""
    norm = nn.SequenceNorm(3)
    x, mask = normal(9, 2, 5, 3) + 1000.0, np.array([[1, 1, 1, 0, 1], [1, 0, 0, 0, 0]], bool)
    for real in (None, mask):
        y = call(norm, x, mask=real)
        for row in range(2):
            kept = np.ones(5, bool) if real is None else real[row]
            values = np.asarray(x[row][kept], np.float64)
            want = (values - values.mean()) / np.sqrt(values.var() + 1e-5)
            np.testing.assert_allclose(y[row][kept], want, rtol=0, atol=1e-3)
    assert call(norm, x.astype(jnp.bfloat16)).dtype == jnp.bfloat16
