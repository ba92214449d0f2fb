"""The peers that speed is measured against compute what the mechanisms do."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.bench import comparisons, normal, peers

TOKENS = (2, 11, 2, 4)


@pytest.mark.parametrize(
    ("name", "is_causal", "peer"),
    [
        ("elementwise_series", True, peers.elementwise_series_cumsum),
        ("elementwise_series", True, peers.engine("elementwise_series", chunk_size=4)),
        ("taylorshift", False, peers.taylorshift_algorithm_1),
        ("taylorshift", False, peers.taylorshift_equation_1),
        ("expressive", True, peers.expressive_dense),
        ("softmax", True, peers.softmax_xla),
    ],
)
def test_peers_compute_the_same(name: str, is_causal: bool, peer: Any) -> None:
    q, k, v = (0.7 * x for x in normal(TOKENS, TOKENS, TOKENS))
    want = jax.jit(partial(ops.get_mechanism(name).attend, is_causal=is_causal))(q, k, v)
    with jax.numpy_dtype_promotion("standard"):
        np.testing.assert_allclose(jax.jit(peer)(q, k, v), want, atol=2e-5)


def test_the_scans_are_aaren() -> None:
    score, v = normal(TOKENS[:3], TOKENS)
    aaren = next(c for c in comparisons("cpu") if c.name == "aaren")
    want = jax.jit(aaren.ours)(score, v)
    for peer in (peers.aaren_scan, aaren.peers["our engine"]):
        np.testing.assert_allclose(jax.jit(peer)(score, v), want, atol=1e-6)


def test_a_cache_has_no_engine() -> None:
    with pytest.raises(ValueError, match="no state of constant size"):
        peers.engine("softmax")


def test_cudnn_is_a_peer_on_a_gpu() -> None:
    for comparison in comparisons("gpu"):
        softmax = [name for name in comparison.peers if name.startswith("softmax")]
        assert len(softmax) == (2 if comparison.curve else 0)
