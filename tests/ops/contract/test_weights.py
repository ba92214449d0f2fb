"""Materialised weights: applied to values they are the mechanism."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases

EXTRA = {
    "linformer": {"max_length": 8, "num_projections": 3},
    "nystrom": {"num_landmarks": 3},
    "reformer": {"bucket_size": 2, "num_hashes": 2},
}


MECHANISMS = [
    pytest.param(ops.get_mechanism(name, **EXTRA.get(name, {})), id=name)
    for name in ops.list_mechanisms()
]


def fast(mechanism: ops.Mechanism) -> bool:
    return cases.representative(mechanism) or not mechanism.capabilities.recurrent


@pytest.mark.parametrize("mechanism", cases.slow_unless(fast, MECHANISMS))
def test_weights_times_values_is_attention(mechanism: ops.Mechanism) -> None:
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


def test_weights_of_queries_that_share_keys() -> None:
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 3, 4, 2))
    softmax = ops.get_mechanism("softmax")
    got = ops.weights(softmax, q, k[:, :, :2], is_causal=True)
    want = ops.weights(softmax, q, k[:, :, [0, 0, 1, 1]], is_causal=True)
    np.testing.assert_allclose(got, want, atol=1e-6)


@dataclasses.dataclass(frozen=True)
class ChannelSums(ops.StreamingMechanism):
    """Sums that leak by a decay a channel of the values: a token argument of axes HV."""

    name = "channel_sums"
    about = "sums that leak"
    capabilities = ops.Capabilities(
        constant_memory=True, noncausal=False, cross=False, mergeable=True
    )
    token_arguments = (ops.TokenArgument("fade", "HV", high=0.0, activation=jax.nn.log_sigmoid),)

    def _init_state(self, sizes: Any) -> Any:
        shape = (sizes.batch_size, sizes.num_heads, sizes.value_dim)
        return jnp.zeros(shape, sizes.dtype), jnp.zeros(shape, sizes.dtype)

    def lift(self, k: Any, v: Any, query: Any = None, fade: Any = None) -> Any:
        return fade, v

    def _merge(self, state_a: Any, state_b: Any) -> Any:
        return state_a[0] + state_b[0], jnp.exp(state_b[0]) * state_a[1] + state_b[1]

    def read(self, q: Any, state: Any) -> Any:
        return state[1]

    def _reference(self, q: Any, k: Any, v: Any, visible: Any, parameters: Any) -> Any:
        index = jnp.arange(v.shape[1])
        later = visible[:, :, None] & (index > index[:, None])
        fade = parameters["fade"][:, None, None]
        lost = jnp.sum(jnp.where(later[..., None, None], fade, 0), axis=3)
        weight = jnp.where(visible[..., None, None], jnp.exp(lost), 0)
        return jnp.sum(weight * v[:, None], axis=2)


def test_weights_of_each_channel_of_the_values() -> None:
    """Where a token argument has their axis; what does not fit is refused by the mechanism."""
    mechanism = ChannelSums()
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 2, 7, 3, 4)).astype(np.float32)
    v, x = rng.normal(size=(2, 2, 7, 3, 5)).astype(np.float32)
    fade = jax.nn.log_sigmoid(x)

    @jax.jit
    def run(q: Any, k: Any, v: Any, fade: Any) -> Any:
        options = {"is_causal": True, "fade": fade}
        return ops.weights(mechanism, q, k, **options), mechanism.attend(q, k, v, **options)

    w, want = run(q, k, v, fade)
    assert w.shape == (2, 3, 5, 7, 7)
    np.testing.assert_allclose(np.einsum("bhvts,bshv->bthv", w, v), want, atol=2e-5)
    with pytest.raises(TypeError, match="needs fade"):
        ops.weights(mechanism, q, k, is_causal=True)
    with pytest.raises(ValueError, match="expects fade as"):
        ops.weights(mechanism, q, k, is_causal=True, fade=fade[..., 0])
