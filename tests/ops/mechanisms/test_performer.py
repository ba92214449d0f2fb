"""Performer: what its random features approximate."""

import numpy as np

from flax_linattn.ops.engine import random_features
from tests.ops.mechanisms.tokens import jitted, qkv


def test_performer_converges_to_softmax() -> None:
    """The kernel is unbiased: ten times the features, a third of the error."""
    q, k, v = qkv(12, size=0.5)
    want = jitted("softmax")(q, k, v)

    def error(num_features: int) -> float:
        performer = jitted(f"performer:num_features={num_features}")
        rows = [random_features.orthogonal_gaussian(num_features, 8, seed) for seed in range(4)]
        errors = [performer(q, k, v, projection=np.float32(drawn)) - want for drawn in rows]
        return float(np.sqrt(np.mean(np.square(errors))))

    few, many = error(256), error(4096)
    assert many < few / 2 and many < 0.01
    drawn = np.float32(random_features.orthogonal_gaussian(256, 8, seed=3))
    want = jitted("performer:num_features=256")(q, k, v, projection=drawn)
    got = jitted("performer:num_features=256,seed=3")(q, k, v)
    np.testing.assert_allclose(got, want, rtol=1e-6)
