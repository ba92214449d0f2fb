"""The value embedding against explicit convolutions in numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn
from flax_linattn.ops.contract.masks import find_segments
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import LAYOUTS, at_real, call, normal, padded, run_steps

CHANNELS, FEATURES = 3, 5
KERNEL_SIZES = [1, 2, 3, 5]


@functools.cache
def make(kernel_size=3, padding="causal", **options):
    return nn.ValueEmbedding(
        CHANNELS, FEATURES, kernel_size=kernel_size, padding=padding, rngs=nnx.Rngs(0), **options
    )


def causal_convolution(embed, x):
    """y[t] = sum_j x[t - (k - 1) + j] W[j], with zeros before the start; x [T, C]."""
    size = embed.kernel_size
    kernel = np.asarray(embed.projection.kernel[...], np.float64).reshape(size, CHANNELS, -1)
    y = np.zeros((len(x), FEATURES))
    for t in range(len(x)):
        for j in range(size):
            if t - (size - 1) + j >= 0:
                y[t] += np.asarray(x[t - (size - 1) + j], np.float64) @ kernel[j]
    return y


@pytest.mark.parametrize("kernel_size", KERNEL_SIZES)
@pytest.mark.parametrize("length", [1, 6])
def test_causal_is_the_convolution(kernel_size, length):
    embed = make(kernel_size)
    x = normal(1, 2, length, CHANNELS)
    want = np.stack([causal_convolution(embed, row) for row in x])
    assert_close(call(embed, x), want, "float32")


@pytest.mark.parametrize("kernel_size", KERNEL_SIZES)
def test_padding_is_skipped_not_convolved(kernel_size):
    """Padding anywhere, NaN in it: the convolution of the compacted sequence; so by steps."""
    embed = make(kernel_size)
    real, mask = normal(2, 4, 4, CHANNELS), jnp.asarray(LAYOUTS)
    want = np.stack([causal_convolution(embed, row) for row in real])
    y, window = call(embed, padded(real), mask=mask, return_state=True)
    assert_close(at_real(y), want, "float32")
    y_steps, window_steps = run_steps(embed, padded(real), embed.init_state(4), mask)
    assert_close(at_real(y_steps), want, "float32")
    last = np.pad(real, ((0, 0), (kernel_size - 1, 0), (0, 0)))[:, 4:]
    assert_same_bits(window, last)
    assert_same_bits(window_steps, last)


def test_a_step_looks_for_no_token():
    embed = make(3)
    step = jax.make_jaxpr(lambda x, state: embed.step(x, state))
    program = str(step(normal(4, 2, CHANNELS), embed.init_state(2)))
    assert "concatenate" in program
    for searched in ("gather", "select_n", "cum", "while"):
        assert searched not in program


@pytest.mark.parametrize("kernel_size", KERNEL_SIZES)
def test_state_carries_across_any_split(kernel_size):
    embed = make(kernel_size)
    x = padded(normal(3, 4, 4, CHANNELS))
    whole, window = call(embed, x, mask=LAYOUTS, return_state=True)

    @jax.jit
    def parts(x, mask):
        splits = []
        for n in range(1, 6):
            head, state = embed(x[:, :n], mask=mask[:, :n], return_state=True)
            tail, state = embed(x[:, n:], mask=mask[:, n:], state=state, return_state=True)
            splits.append((jnp.concatenate([head, tail], axis=1), state))
        return splits

    for y, state in parts(x, LAYOUTS):
        assert_close(at_real(y), at_real(whole), "float32")
        assert_same_bits(state, window)


@pytest.mark.parametrize("kernel_size", KERNEL_SIZES)
def test_packed_is_separate(kernel_size):
    embed = make(kernel_size)
    x = normal(4, 2, 6, CHANNELS)
    ids = np.array([[1, 1, 2, 2, 2, 2], [5, 3, 3, 3, 3, 4]])
    mask = np.array([[1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 0, 1]], bool)
    x = np.where(mask[..., None], x, np.float32(np.nan))
    y = call(embed, x, mask=mask, segments=jax.jit(find_segments)(ids, mask))
    for row in range(2):
        for segment in np.unique(ids[row]):
            there = np.asarray((ids[row] == segment) & mask[row])
            assert_close(y[row][there], causal_convolution(embed, x[row][there]), "float32")


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_circular_is_the_wrapped_convolution(kernel_size):
    """As torch.nn.Conv1d(kernel_size, padding=k // 2, padding_mode="circular")."""
    embed = make(kernel_size, "circular")
    x = normal(5, 2, 7, CHANNELS)
    half = kernel_size // 2
    wrapped = np.pad(np.asarray(x, np.float64), ((0, 0), (half, half), (0, 0)), mode="wrap")
    kernel = np.asarray(embed.projection.kernel[...]).reshape(kernel_size, CHANNELS, FEATURES)
    want = np.zeros((2, 7, FEATURES))
    for t in range(7):
        for j in range(kernel_size):
            want[:, t] += wrapped[:, t + j] @ kernel[j]
    assert_close(call(embed, x), want, "float32")


def test_circular_sees_padding_as_zeros():
    embed = make(3, "circular")
    x, mask = padded(normal(6, 4, 4, CHANNELS)), jnp.asarray(LAYOUTS)
    zeros = jnp.where(mask[..., None], x, 0.0)
    assert_same_bits(call(embed, x, mask=mask), call(embed, zeros, mask=None))


def test_circular_refuses_to_stream():
    embed = make(3, "circular")
    x = normal(7, 2, 4, CHANNELS)
    runs = jax.jit(find_segments)(np.zeros((2, 4), np.int32))
    for refused in (
        lambda: embed.init_state(2),
        lambda: embed(x, return_state=True),
        lambda: embed(x, state=jnp.zeros((2, 2, CHANNELS))),
        lambda: embed(x, segments=runs),
        lambda: embed.step(x[:, 0], jnp.zeros((2, 2, CHANNELS))),
    ):
        with pytest.raises(ValueError, match="padding='causal' to stream it"):
            refused()


def test_kernel_starts_as_kaiming_normal():
    """Variance 2 / fan-in, and no bias, as Time-Series-Library has it."""
    embed = nn.ValueEmbedding(16, 256, kernel_size=3, rngs=nnx.Rngs(0))
    assert embed.projection.bias is None
    kernel = embed.projection.kernel[...]
    assert kernel.shape == (48, 256)
    assert float(jnp.std(kernel)) == pytest.approx((2 / 48) ** 0.5, rel=0.05)


def test_half_precision_inputs_keep_the_state_dtype():
    embed = make(3, dtype=jnp.bfloat16)
    x = normal(8, 2, 4, CHANNELS).astype(jnp.bfloat16)
    state = embed.init_state(2)
    y, window = run_steps(embed, x[:, :1], state)
    assert y.dtype == jnp.bfloat16
    assert window.dtype == state.dtype == jnp.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": "same"}, "padding must be one of causal, circular, got 'same'"),
        ({"kernel_size": 0}, "at least 1, .* got 0"),
        ({"kernel_size": 4, "padding": "circular"}, "odd for circular padding, got 4"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
