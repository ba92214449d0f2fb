"""What mechanisms are compared with computes what they do."""

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.bench import (
    against_baselines,
    baselines,
    comparisons,
    gated_comparisons,
    inputs,
    normal,
)
from flax_linattn.bench.comparison import FORWARD, GATED, OURS, mechanism

TOKENS = (2, 11, 2, 4)
ENGINES = [name for name in ops.list_mechanisms() if baselines.has_engine(name)]
CAUSAL = {name for name in ENGINES if ops.get_mechanism(name).capabilities.causal}
CANCELLING = {"expressive", "expressive_quadratic", "rfa"}
"""They divide by sums that may nearly vanish, which magnifies rounding."""


FAST = ("softmax", "aaren", "elementwise_series", "taylorshift", "gated_delta", "nystrom")
"""One of each family."""


def slow_but(names: Iterable[str]) -> list[Any]:
    return [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in names]


def test_softmax_is_softmax() -> None:
    q, k, v = normal(TOKENS, TOKENS, TOKENS)
    want = jax.jit(partial(ops.get_mechanism("softmax").attend, is_causal=True))(q, k, v)
    with jax.numpy_dtype_promotion("standard"):
        np.testing.assert_allclose(jax.jit(baselines.softmax_xla)(q, k, v), want, atol=2e-5)


@pytest.mark.parametrize("name", slow_but(sorted(CAUSAL - CANCELLING)))
def test_the_engine_computes_the_same(name: str) -> None:
    arrays = inputs(ops.get_mechanism(name), 11, batch_size=2, num_heads=2, dim=4)
    if name == "elementwise_series":  # whose powers cancel where q k is far below 0
        arrays = [0.7 * x for x in arrays]
    want = jax.jit(mechanism(name, is_causal=True))(*arrays)
    got = jax.jit(baselines.engine(name, chunk_size=4))(*arrays)
    np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize("name", [n for n in GATED if n != "forgetting"])
def test_the_loop_computes_the_same(name: str) -> None:
    arrays = inputs(ops.get_mechanism(name), 11, batch_size=2, num_heads=2, dim=4)
    want = jax.jit(mechanism(name, is_causal=True))(*arrays)
    np.testing.assert_allclose(jax.jit(baselines.loop(name))(*arrays), want, atol=2e-5)


@pytest.mark.parametrize("name", slow_but(ops.list_mechanisms()))
def test_every_mechanism_is_measured(name: str) -> None:
    comparison = against_baselines(name, 8, dim=4)
    ours = dataclasses.replace(comparison, peers={}).prepare(8, FORWARD)
    results = comparison.measure(ours, 8, rounds=1)["results"]
    assert results[OURS]["milliseconds"]["median"] > 0
    arrays = comparison.arguments(8)
    for peer in comparison.peers.values():
        with jax.numpy_dtype_promotion("standard"):
            assert jax.eval_shape(peer, *arrays).shape == arrays[1].shape


def test_mechanisms_that_forget_have_a_place() -> None:
    by_name = {comparison.name: comparison for comparison in gated_comparisons("cpu")}
    assert set(by_name) == {f"{name}, causal" for name in GATED}
    wanted = {name for name in ops.list_mechanisms() if ops.get_mechanism(name).token_arguments}
    assert wanted <= set(GATED)
    for name, comparison in by_name.items():
        assert ("a loop over tokens" in comparison.peers) == ("forgetting, " not in name)
        assert {"softmax attention (XLA)", "linear attention"} <= set(comparison.peers)
        arrays = comparison.arguments(8)
        with jax.numpy_dtype_promotion("standard"):
            shapes = {jax.eval_shape(peer, *arrays).shape for peer in comparison.peers.values()}
        assert shapes == {arrays[1].shape}


def test_gates_are_those_of_a_new_layer() -> None:
    q, k, v, log_decay, beta = inputs(ops.get_mechanism("gated_delta"), 64)
    np.testing.assert_allclose(np.linalg.norm(q, axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(k, axis=-1), 1, rtol=1e-5)
    assert log_decay.shape == beta.shape == v.shape[:3]
    assert log_decay.max() < 0 and 0 < beta.min() < 0.5 < beta.max() < 1
    memory = -1 / np.median(log_decay, axis=(0, 1))
    assert np.all(np.diff(memory) > 0) and 4 < memory[0] < 16 and 512 < memory[-1] < 2048


def test_the_engine_scans_aaren() -> None:
    score, v = normal(TOKENS[:3], TOKENS)
    aaren = next(c for c in comparisons("cpu") if c.name == "aaren")
    want = jax.jit(aaren.ours)(score, v)
    np.testing.assert_allclose(jax.jit(aaren.peers["our engine"])(score, v), want, atol=1e-6)


def test_a_cache_has_no_engine() -> None:
    for make in (baselines.engine, baselines.loop):
        with pytest.raises(ValueError, match="no state of constant size"):
            make("softmax")
    assert "our engine" not in against_baselines("softmax", 16).peers


def test_what_a_state_alone_does_not_tell_has_no_engine() -> None:
    with pytest.raises(ValueError, match="reads more than its state"):
        baselines.engine("rwkv")
    assert "our engine" not in against_baselines("rwkv", 16).peers


def test_cudnn_is_a_peer_on_a_gpu() -> None:
    for comparison in (*comparisons("gpu"), *gated_comparisons("gpu")):
        assert sum(name.startswith("softmax") for name in comparison.peers) == 2
