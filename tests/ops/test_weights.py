"""Materialised weights: applied to values they are the mechanism."""

import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops

EXTRA = {"linformer": {"max_length": 8, "num_projections": 3}, "nystrom": {"num_landmarks": 3}}


@pytest.mark.parametrize("name", ops.list_mechanisms())
def test_weights_times_values_is_attention(name: str) -> None:
    mechanism = ops.get_mechanism(name, **EXTRA.get(name, {}))
    can = mechanism.capabilities
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(2, 7, 2, 4)), np.float32) for _ in range(3))
    q = q[0, 0] if can.learned_query else q
    mask = jnp.arange(7) < jnp.array([[7], [4]])
    w = ops.weights(mechanism, q, k, is_causal=can.causal, mask=mask)
    if can.channelwise:
        assert w.shape == (2, 2, 4, 7, 7)
        got = jnp.einsum("bhkts,bshk->bthk", w, v)
    else:
        assert w.shape == (2, 2, 7, 7)
        got = jnp.einsum("bhts,bshv->bthv", w, v)
    want = mechanism.attend(q, k, v, is_causal=can.causal, mask=mask)
    np.testing.assert_allclose(got, want, atol=2e-5)
    if can.causal:
        assert not np.triu(np.asarray(w), 1).any()
    assert not np.asarray(w)[1, ..., 4:].any()
