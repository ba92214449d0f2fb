"""Materialised weights: applied to values they are the mechanism."""

from typing import Any

import jax
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases

EXTRA = {
    "linformer": {"max_length": 8, "num_projections": 3},
    "nystrom": {"num_landmarks": 3},
    "reformer": {"bucket_size": 2, "num_hashes": 2},
}


@pytest.mark.parametrize("name", ops.list_mechanisms())
def test_weights_times_values_is_attention(name: str) -> None:
    mechanism = ops.get_mechanism(name, **EXTRA.get(name, {}))
    can = mechanism.capabilities
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, 7, 2, 4)).astype(np.float32)
    q = q[0, 0] if can.learned_query else q
    gates = cases.make_gates(mechanism, rng, (2, 7), 2, 4, 4)
    gates = {name: gate.astype(np.float32) for name, gate in gates.items()}
    mask = np.arange(7) < np.array([[7], [4]])

    @jax.jit
    def run(q: Any, k: Any, v: Any) -> Any:
        options = {"is_causal": can.causal, "mask": mask, **gates}
        return ops.weights(mechanism, q, k, **options), mechanism.attend(q, k, v, **options)

    w, want = map(np.asarray, run(q, k, v))
    if can.channelwise:
        assert w.shape == (2, 2, 4, 7, 7)
        got = np.einsum("bhkts,bshk->bthk", w, v)
    else:
        assert w.shape == (2, 2, 7, 7)
        got = np.einsum("bhts,bshv->bthv", w, v)
    np.testing.assert_allclose(got, want, atol=2e-5)
    if can.causal:
        assert not np.triu(w, 1).any()
    assert not w[1, ..., 4:].any()
