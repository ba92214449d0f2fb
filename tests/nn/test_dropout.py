"""Dropout and its random bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.random import threefry_2x32

from flax_linattn.nn.dropout import apply_dropout, make_dropout
from flax_linattn.nn.random_bits import random_bits, threefry

ONES = 2**32 - 1


def test_with_twenty_rounds_the_cipher_is_that_of_jax() -> None:
    key = jnp.array([0x13198A2E, 0x03707344], jnp.uint32)
    counts = jnp.arange(64, dtype=jnp.uint32)
    ours = jnp.concatenate(threefry(key, counts[:32], counts[32:], rounds=20))
    np.testing.assert_array_equal(ours, threefry_2x32(key, counts))


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
        ((ONES, ONES), (ONES, ONES), (0xFD36D048, 0x2D17272C)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xBA3E4725, 0xF27D669E)),
    ],
)
def test_with_thirteen_rounds_it_gives_the_known_answers(
    key: tuple[int, int], counter: tuple[int, int], words: tuple[int, int]
) -> None:
    got = threefry(jnp.array(key, jnp.uint32), *jnp.array(counter, jnp.uint32))
    assert tuple(map(int, got)) == words


def test_bits_are_even_and_independent() -> None:
    """Of each of 32 bits, of neighbors in each direction, and of two keys."""
    bits = np.asarray(random_bits(jax.random.key(1), (40, 50, 64)))
    assert len(np.unique(bits)) > bits.size - 10
    assert bits.shape == (40, 50, 64)
    ones = (bits[..., None] >> np.arange(32, dtype=np.uint32)) & 1
    deviation = 0.5 / np.sqrt(bits.size)
    assert np.abs(ones.mean(axis=(0, 1, 2)) - 0.5).max() < 4.5 * deviation
    low = bits < np.uint32(2**32 // 10)
    other = np.asarray(random_bits(jax.random.key(2), (40, 50, 64))) < np.uint32(2**32 // 10)
    pairs = [(np.roll(low, 1, axis), low) for axis in range(3)] + [(low, other)]
    for first, second in pairs:
        together = (first & second).mean()
        assert abs(together - 0.01) < 4.5 * np.sqrt(0.01 * 0.99 / low.size)


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_a_part_of_a_sharded_array_drops_what_the_whole_does(kind: jax.sharding.AxisType) -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    dropout, key, x = make_dropout(0.3, nnx.Rngs(0)), jax.random.key(3), jnp.ones((16, 5, 4))
    whole = apply_dropout(dropout, x, key)
    parts = jax.jit(lambda x: apply_dropout(dropout, x, key))(jax.device_put(x, rows))
    np.testing.assert_array_equal(whole, parts)
    assert parts.sharding.spec[0] == "data"


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_the_mean_stays(dtype: type, impl: str) -> None:
    x = jnp.ones((200, 100), dtype)
    y = apply_dropout(make_dropout(0.1, nnx.Rngs(0)), x, jax.random.key(0, impl=impl))
    assert y.dtype == x.dtype
    dropped = float((y == 0).mean())
    assert abs(dropped - 0.1) < 4.5 * np.sqrt(0.1 * 0.9 / x.size)
    kept = np.asarray(y[y != 0], np.float32)
    np.testing.assert_allclose(kept, 1 / 0.9, rtol=float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 4), (2, 0, 4)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    x = jnp.ones(shape)
    assert apply_dropout(make_dropout(0.5, nnx.Rngs(0)), x, jax.random.key(0)).shape == shape


def test_a_rate_of_nearly_one_drops_nearly_all() -> None:
    y = apply_dropout(make_dropout(1 - 1e-12, nnx.Rngs(0)), jnp.ones(1000), jax.random.key(0))
    assert not y.any()
