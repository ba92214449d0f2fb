"""What mechanisms are compared with computes what they do."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.bench import against_yardsticks, comparisons, normal, yardsticks

TOKENS = (2, 11, 2, 4)


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("elementwise_series", yardsticks.engine("elementwise_series", chunk_size=4)),
        ("softmax", yardsticks.softmax_xla),
    ],
)
def test_yardsticks_compute_the_same(name: str, peer: Any) -> None:
    q, k, v = (0.7 * x for x in normal(TOKENS, TOKENS, TOKENS))
    want = jax.jit(partial(ops.get_mechanism(name).attend, is_causal=True))(q, k, v)
    with jax.numpy_dtype_promotion("standard"):
        np.testing.assert_allclose(jax.jit(peer)(q, k, v), want, atol=2e-5)


def test_the_engine_scans_aaren() -> None:
    score, v = normal(TOKENS[:3], TOKENS)
    aaren = next(c for c in comparisons("cpu") if c.name == "aaren")
    want = jax.jit(aaren.ours)(score, v)
    np.testing.assert_allclose(jax.jit(aaren.peers["our engine"])(score, v), want, atol=1e-6)


def test_a_cache_has_no_engine() -> None:
    with pytest.raises(ValueError, match="no state of constant size"):
        yardsticks.engine("softmax")
    assert "our engine" not in against_yardsticks("softmax", 16).peers


def test_cudnn_is_a_peer_on_a_gpu() -> None:
    for comparison in comparisons("gpu"):
        assert sum(name.startswith("softmax") for name in comparison.peers) == 2
