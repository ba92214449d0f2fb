"""Taylor features against TaylorShift."""

import numpy as np

from tests.ops.mechanisms.tokens import jitted, qkv


def test_taylor_features_are_taylorshift_without_its_normalisation() -> None:
    q, k, v = qkv(20)
    for is_causal in (True, False):
        want = jitted("taylorshift:normalize=False", is_causal=is_causal)(q, k, v)
        got = jitted("taylor_features:scale=1.0", is_causal=is_causal)(q, k, v)
        np.testing.assert_allclose(got, want, atol=1e-5)
