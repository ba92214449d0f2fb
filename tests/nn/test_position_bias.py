"""Position biases, pair masks and weight dropout of attention layers."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn

B, T, C, H = 2, 9, 12, 3
MASK = np.array([[True] * T, [False, True, True, False, True, True, True, False, True]])
IDS = np.array([[0] * 4 + [1] * 5, [2] * 6 + [3] * 3], np.int32)


def inputs(length: int = T) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(B, length, C)).astype(np.float32)


def layer(kind: str = "alibi", mechanism: str = "softmax", **options: Any) -> nn.Attention:
    bias: Any = {
        "alibi": lambda: nn.AlibiBias(H),
        "relative": lambda: nn.RelativeBias(
            H, num_buckets=6, max_distance=8, is_causal=True, rngs=nnx.Rngs(1)
        ),
        "none": lambda: None,
    }[kind]()
    if kind == "relative":
        bias.table[...] = jax.random.normal(jax.random.key(2), (6, H))
    options = {"is_causal": True, "position_bias": bias, "rngs": nnx.Rngs(0)} | options
    return nn.Attention(C, H, mechanism=mechanism, **options)


def slopes_of_the_paper(n: int) -> list[float]:
    """The authors' function."""

    def power_of_2(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + slopes_of_the_paper(2 * closest)[0::2][: n - closest]


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 20])
def test_slopes_of_alibi(heads: int) -> None:
    np.testing.assert_allclose(nn.AlibiBias(heads).slopes, slopes_of_the_paper(heads), rtol=1e-6)


@pytest.mark.parametrize("is_causal", [True, False])
def test_buckets_of_t5(is_causal: bool) -> None:
    """Against T5's own function (mesh_tensorflow), one distance after another."""
    bias = nn.RelativeBias(2, is_causal=is_causal, rngs=nnx.Rngs(0))
    offset = np.arange(-300, 301)
    want = []
    for each in offset:
        n, size, bucket = -int(each), 32, 0
        if not is_causal:
            size, bucket, n = 16, 16 * (n < 0), abs(n)
        n = max(n, 0)
        single = size // 2
        if n >= single:
            large = math.log(n / single) / math.log(128 / single) * (size - single)
            n = min(single + int(large + 1e-6), size - 1)
        want.append(bucket + n)
    assert bias.buckets(jnp.asarray(offset)).tolist() == want


@pytest.mark.parametrize("kind", ["alibi", "relative"])
def test_a_bias_is_that_of_the_distances(kind: str) -> None:
    attention, x = layer(kind), inputs()
    assert attention.position_bias is not None
    positions = jnp.arange(T)[None]
    bias = attention.position_bias(positions, positions)
    plain = layer("none")
    np.testing.assert_allclose(attention(x), plain(x, bias=bias), rtol=1e-6, atol=1e-6)
    assert np.abs(attention(x) - plain(x)).max() > 1e-3


@pytest.mark.parametrize(
    ("kind", "mechanism"),
    [
        ("relative", "softmax"),
        ("alibi", "softmax:window=4"),
        pytest.param("relative", "forgetting", marks=pytest.mark.slow),
        pytest.param("alibi", "expressive", marks=pytest.mark.slow),
    ],
)
def test_prefill_steps_padding_and_segments_agree(kind: str, mechanism: str) -> None:
    attention, x = layer(kind, mechanism), inputs()
    want = attention(x, mask=MASK)
    for row in range(B):  # padding does not count
        alone = attention(x[row : row + 1, MASK[row]])
        np.testing.assert_allclose(want[row, MASK[row]], alone[0], rtol=1e-5, atol=1e-5)
    state = attention.init_state(B, max_length=T)
    for part in (slice(0, 3), slice(3, 7)):
        y, state = attention(x[:, part], mask=MASK[:, part], state=state, return_state=True)
        np.testing.assert_allclose(y, want[:, part], rtol=1e-5, atol=1e-5)
    for t in range(7, T):
        y, state = attention.step(x[:, t], state, mask=MASK[:, t])
        real = MASK[:, t]
        np.testing.assert_allclose(y[real], want[real, t], rtol=1e-5, atol=1e-5)
    packed, state = attention(x[:, :6], segment_ids=IDS[:, :6], return_state=True)
    rest = attention(x[:, 6:], segment_ids=IDS[:, 6:], state=state)
    packed = np.concatenate([packed, rest], axis=1)
    np.testing.assert_allclose(packed[:1, 4:], attention(x[:1, 4:]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(packed[1:, :6], attention(x[1:, :6]), rtol=1e-5, atol=1e-5)


def test_calls_with_pair_masks_and_biases() -> None:
    attention, x = layer("none"), inputs()
    pair_mask = np.random.default_rng(1).uniform(size=(B, 1, T, T)) < 0.6
    bias = np.where(pair_mask, 0, -np.inf).astype(np.float32)
    np.testing.assert_allclose(
        attention(x, pair_mask=pair_mask), attention(x, bias=bias), rtol=1e-6, atol=1e-6
    )
    whole = attention(x, pair_mask=pair_mask)
    _, state = attention(x[:, :-1], return_state=True)
    y, _ = attention.step(x[:, -1], state, pair_mask=pair_mask[:, :, -1])
    np.testing.assert_allclose(y, whole[:, -1], rtol=1e-5, atol=1e-5)


def test_dropout_of_the_weights() -> None:
    attention = layer("alibi", weight_dropout_rate=0.5, rngs=nnx.Rngs(params=0, dropout=1))
    plain, x, key = layer("alibi"), inputs(), jax.random.key(5)
    np.testing.assert_array_equal(attention(x), plain(x))
    dropped = attention(x, dropout_key=key)
    assert np.abs(dropped - plain(x)).max() > 1e-3
    np.testing.assert_array_equal(dropped, attention(x, dropout_key=key))
    attention.train()
    assert np.abs(attention(x) - attention(x)).max() > 1e-3


def test_what_is_refused() -> None:
    for options, message in (
        ({"mechanism": "linear"}, "'linear' does not support position_bias: its state"),
        ({"mechanism": "softmax:window=4,sinks=1"}, "position_bias .* sinks"),
        (
            {"mechanism": "elementwise", "kind": "none", "weight_dropout_rate": 0.5},
            "'elementwise' does not support weight_dropout_rate: each channel",
        ),
        ({"weight_dropout_rate": 1.0}, "weight_dropout_rate"),
        ({"num_heads": 4}, "heads"),
    ):
        options = {"num_heads": H, "kind": "alibi", "mechanism": "softmax"} | options
        kind, heads = options.pop("kind"), options.pop("num_heads")
        bias = nn.AlibiBias(H) if kind == "alibi" else None
        with pytest.raises(ValueError, match=message):
            nn.Attention(C, heads, position_bias=bias, rngs=nnx.Rngs(0), **options)
    with pytest.raises(ValueError, match="max_distance must be larger than the 8 distances"):
        nn.RelativeBias(2, num_buckets=16, max_distance=8, is_causal=True, rngs=nnx.Rngs(0))
