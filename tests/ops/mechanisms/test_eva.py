"""EVA: its authors' code, where it is softmax, its noise, and what it refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.ops.mechanisms.make_peers import EVA_CHUNKS, EVA_WINDOW
from tests.ops.mechanisms.peers import check
from tests.ops.mechanisms.tokens import jitted, qkv

MAPS = {
    "mean_query_kernel": np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8),
    "mean_query_bias": np.linspace(-1, 1, 8, dtype=np.float32),
    "mean_key_kernel": np.linspace(1, -1, 64, dtype=np.float32).reshape(8, 8),
    "mean_key_bias": np.linspace(1, -1, 8, dtype=np.float32),
}
SMALL = "eva:window_size=2,num_chunks=3"


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_code_of_its_authors(dtype: Any) -> None:
    """On one draw: outputs, and gradients into tokens, maps and the draw."""
    eva = ops.get_mechanism("eva", window_size=EVA_WINDOW, num_chunks=EVA_CHUNKS)
    check("eva", lambda q, k, v, **own: {"y": eva.attend(q, k, v, **own)}, dtype)


@pytest.mark.parametrize("length", [1, 8, 12])
def test_a_window_of_all_is_softmax(length: int) -> None:
    """Chunks have nothing to add then, whatever is made of their means."""
    q, k, v = qkv(length)
    size = "window_size=8" if length <= 8 else "window_size=6,overlap=6"
    got = jitted(f"eva:num_chunks=3,{size}")(q, k, v, **MAPS)
    want = jitted("softmax")(q, k, v)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_chunk_a_token_is_softmax() -> None:
    """Without overlap a chunk's key and value are the token's."""
    q, k, v = qkv(10)
    got = jitted("eva:window_size=1,overlap=0,num_chunks=16")(q, k, v)
    np.testing.assert_allclose(got, jitted("softmax")(q, k, v), atol=1e-6)


def test_noise_moves_the_values_of_chunks() -> None:
    """None is noise of 0; a draw changes what is seen of chunks and nothing in a whole window."""
    q, k, v = qkv(9)
    attend = jitted(SMALL)
    noise = np.random.default_rng(1).normal(size=(2, 3, 8)).astype(np.float32)
    mean = attend(q, k, v, **MAPS)
    np.testing.assert_array_equal(attend(q, k, v, **MAPS, noise=0 * noise), mean)
    assert np.abs(attend(q, k, v, **MAPS, noise=noise) - mean).max() > 0.01
    whole = jitted("eva:num_chunks=3,window_size=9")
    np.testing.assert_array_equal(whole(q, k, v, noise=noise), whole(q, k, v))


def test_a_query_without_a_token_stands_in_no_window() -> None:
    q, k, v = qkv(9)
    mask = np.arange(9) < np.array([[6], [9]])
    every = np.ones((2, 9), bool)
    want = np.asarray(jitted(SMALL)(q, k, v, mask=mask))
    for which in ("attend", "reference"):
        got = jitted(SMALL, which)(q, k, v, mask=mask, query_mask=every)
        np.testing.assert_allclose(got, want, atol=1e-6)
    assert not want[0, 6:].any() and want[1].any()


def test_layers_learn_the_maps_of_means() -> None:
    """With the first values of its authors' code: deviations of 0.02, biases of 0."""
    learned = ops.get_mechanism("eva").learned_parameters(2, 64)
    first = {n: x.init(jax.random.key(0), x.shape, jnp.float32) for n, x in learned.items()}
    assert {n: x.shape for n, x in first.items()} == {
        n: (64, 64) if "kernel" in n else (64,) for n in MAPS
    }
    assert 0.019 < first["mean_key_kernel"].std() < 0.021
    assert not first["mean_key_bias"].any() and not first["mean_query_bias"].any()


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"window_size": 0}, "window_size must be at least 1, got 0"),
        ({"num_chunks": 0}, "num_chunks must be at least 1, got 0"),
        ({"overlap": -1}, "overlap must be at least 0, got -1"),
        ({"scale": 0.0}, r"scale must be positive.* got 0\.0"),
    ],
)
def test_bad_hyperparameters(hyperparameters: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.get_mechanism("eva", **hyperparameters)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"noise": np.ones((3, 8))}, r"\[H, num_chunks, K\] = \(2, 3, 8\), got \(3, 8\)"),
        ({"noise": np.ones((2, 4, 8))}, r"\[H, num_chunks, K\] = \(2, 3, 8\), got \(2, 4, 8\)"),
        ({"mean_key_kernel": np.ones((8, 4))}, r"\[K, K\] = \(8, 8\), got \(8, 4\)"),
        ({"mean_query_bias": np.ones((2, 8))}, r"\[K\] = \(8,\), got \(2, 8\)"),
        ({"scale": -1.0}, r"scale must be positive.* got -1\.0"),
    ],
)
@pytest.mark.parametrize("which", ["attend", "reference"])
def test_bad_arguments(own: Any, message: str, which: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(ops.get_mechanism(SMALL), which)(*qkv(5), **own)


def test_queries_are_those_of_the_keys() -> None:
    q, k, v = qkv(5)
    with pytest.raises(ValueError, match="'eva' needs as many queries as keys, got T=5, S=4"):
        ops.get_mechanism("eva").attend(q, k[:, :4], v[:, :4])
