"""Linformer: the length that it is made for, and where it is softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.ops.mechanisms.tokens import jitted, qkv


def test_linformer_with_a_projection_a_token_is_softmax() -> None:
    q, k, v = qkv(10)
    eye = np.eye(10, dtype=np.float32)
    got = jitted("linformer")(q, k, v, key_projection=eye, value_projection=eye)
    np.testing.assert_allclose(got, jitted("softmax")(q, k, v), atol=1e-6)


def test_linformer_is_made_for_a_length() -> None:
    q, k, v = qkv(9)
    linformer = ops.get_mechanism("linformer", max_length=8)
    with pytest.raises(ValueError, match="made for sequences of 8 positions, got 9; make it with"):
        linformer.attend(q, k, v)
    mask = jnp.arange(9) < jnp.array([[8], [9]])
    with pytest.raises(ValueError, match="made for sequences of 8 positions, got 9"):
        linformer.attend(q, k, v, mask=mask)
    with pytest.raises(ValueError, match="made for sequences of 8 positions, got 9"):
        jax.jit(lambda q: linformer.attend(q, k, v, mask=mask))(q)  # the mask is known
    y = jax.jit(lambda mask: linformer.attend(q, k, v, mask=mask))(mask)
    want = np.asarray(jax.jit(linformer.attend)(q[:, :8], k[:, :8], v[:, :8]))[0]
    # Relative to the largest output: small ones are sums that cancel.
    np.testing.assert_allclose(y[0, :8], want, rtol=0, atol=1e-6 * np.max(np.abs(want)))
    assert np.isnan(y[1]).all()
    table = jnp.ones((12, 4))
    with pytest.raises(ValueError, match=r"given together .* got \(12, 4\) and None"):
        linformer.attend(q, k, v, key_projection=table)
    for name in ("linformer", "aft"):
        with pytest.raises(ValueError, match=rf"get_mechanism\('{name}', max_length=...\)"):
            ops.get_mechanism(name).learned_parameters(2, 8)
