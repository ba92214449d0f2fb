"""The peers that speed is measured against compute what the mechanisms do."""

from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("experiments", reason="the experiments are not part of the installed package")

from experiments.efficiency import peers
from experiments.efficiency.timing import compare, forward_and_backward, normal
from flax_linattn import ops

TOKENS = (2, 11, 2, 4)


@pytest.mark.parametrize(
    ("name", "is_causal", "peer"),
    [
        ("elementwise_series", True, peers.elementwise_series_cumsum),
        ("taylorshift", False, peers.taylorshift_algorithm_1),
        ("expressive", True, peers.expressive_dense),
        ("softmax", True, peers.softmax_xla),
    ],
)
def test_peers_compute_the_same(name: str, is_causal: bool, peer: Any) -> None:
    q, k, v = (0.7 * x for x in normal(TOKENS, TOKENS, TOKENS))
    want = ops.get_mechanism(name).attend(q, k, v, is_causal=is_causal)
    with jax.numpy_dtype_promotion("standard"):
        np.testing.assert_allclose(peer(q, k, v), want, atol=2e-5)


def test_the_scan_is_aaren() -> None:
    score, v = normal(TOKENS[:3], TOKENS)
    aaren = ops.get_mechanism("aaren", scale=1.0)
    want = aaren.attend(np.ones((2, 1), np.float32), score[..., None], v, is_causal=True)
    np.testing.assert_allclose(peers.aaren_scan(score, v), want, atol=1e-6)


def test_comparing() -> None:
    score, v = normal(TOKENS[:3], TOKENS)
    results = compare({"scan": forward_and_backward(peers.aaren_scan)}, (score, v), rounds=2)
    times = results["scan"]["milliseconds"]
    assert 0 < times["least"] <= times["median"] <= times["most"]
    assert results["scan"]["temporary_bytes"] > 0
