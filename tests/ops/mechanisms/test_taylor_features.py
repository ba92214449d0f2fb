"""Taylor features against TaylorShift."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn.ops.engine.features import clip_key, clip_query
from tests.ops.mechanisms.tokens import jitted, qkv


def test_taylor_features_are_taylorshift_without_its_normalization() -> None:
    q, k, v = qkv(20)
    for is_causal in (True, False):
        want = jitted("taylorshift:normalize=False", is_causal=is_causal)(q, k, v)
        got = jitted("taylor_features:scale=1.0", is_causal=is_causal)(q, k, v)
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("spec", ["taylor_features", "taylorshift:normalize=False"])
@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_the_size_of_a_query_cancels(spec: str, form: str) -> None:
    """Where the squares of its features have no float32; and of ordinary ones no bit changes."""
    q, k, v = qkv(20)
    run = jitted(f"{spec},chunk_size=4" if ":" in spec else f"{spec}:chunk_size=4", form=form)
    with jax.enable_x64(True):
        reference = jitted(spec, "reference")
        for size in (1e10, 1e20, 1e30):
            wide = [x.astype(np.float64) for x in (np.float32(size) * q, k, v)]
            want = reference(*wide)
            np.testing.assert_allclose(run(np.float32(size) * q, k, v), want, rtol=1e-3, atol=1e-4)
    for size in (1e25, 1e30):  # beside which the features of such keys are nearly 0
        for key in (0 * k, k * np.float32([0, 1] * (k.shape[-1] // 2))):
            query = np.float32(size) * np.ones_like(q) * np.float32([1, 0] * (k.shape[-1] // 2))
            want = np.broadcast_to(v.mean(axis=1, keepdims=True), v.shape)
            np.testing.assert_allclose(run(query, key, v), want, rtol=1e-5, atol=1e-6)
    scaled, factor = clip_query(jnp.asarray(q))
    assert (np.asarray(factor) == 1).all() and (np.asarray(scaled) == q).all()
    assert (np.asarray(clip_key(jnp.asarray(k))) == k).all()
