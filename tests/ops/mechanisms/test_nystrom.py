"""Nystromformer where it is softmax."""

import jax
import numpy as np

from tests.ops.mechanisms.tokens import jitted, qkv


def test_nystrom_with_a_landmark_a_token_is_softmax() -> None:
    """The pseudo-inverse is then the inverse, as far as its iterations go."""
    with jax.enable_x64(True):
        q, k, v = (x.astype(np.float64) for x in qkv(10, size=2.0))
        got = jitted("nystrom:num_landmarks=16,iterations=40")(q, k, v)
        want = jitted("softmax")(q, k, v)
    np.testing.assert_allclose(got, want, atol=1e-6)
