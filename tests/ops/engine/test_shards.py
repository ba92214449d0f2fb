"""``sequence_parallel``: what it refuses, and models and prompts that are split."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from flax_linattn import models, nn, ops
from tests.meshes import make_mesh


def test_what_cannot_be_split_is_refused() -> None:
    mesh = make_mesh(seq=4)
    with pytest.raises(ValueError, match="'softmax' has no state of constant size"):
        ops.sequence_parallel(ops.get_mechanism("softmax"), mesh, "seq")
    aaren = ops.get_mechanism("aaren")
    with pytest.raises(ValueError, match="no axis 'time'; it has seq"):
        ops.sequence_parallel(aaren, mesh, "time")
    split = ops.sequence_parallel(aaren, mesh, "seq")
    with pytest.raises(ValueError, match="'aaren' is split over 'seq' already"):
        ops.sequence_parallel(split, mesh, "seq")
    q, x = jnp.ones((2, 3)), jnp.ones((1, 10, 2, 3))
    with pytest.raises(ValueError, match="10 tokens cannot be split evenly over the 4 devices"):
        split.attend(q, x, x, is_causal=True)
    with pytest.raises(ValueError, match="has no form 'direct'"):
        taylorshift = ops.sequence_parallel(ops.get_mechanism("taylorshift"), mesh, "seq")
        taylorshift.attend(x, x, x, form="direct")


def test_heads_are_those_that_the_mechanism_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    aaren = ops.get_mechanism("aaren")
    asked = []
    monkeypatch.setattr(type(aaren), "check_heads", lambda self, heads: asked.append(heads))
    nn.Attention(
        6, 3, mechanism=ops.sequence_parallel(aaren, make_mesh(seq=4), "seq"), rngs=nnx.Rngs(0)
    )
    assert asked == [3]


@pytest.mark.parametrize(
    "spec", ["aaren", pytest.param("elementwise_series:order=2", marks=pytest.mark.slow)]
)
def test_a_model_takes_a_prompt_that_is_split(spec: str) -> None:
    """Its outputs and its state, from which it streams on, are those of one device."""
    mesh, length = make_mesh(seq=4), 32
    mechanism = ops.get_mechanism(spec, chunk_size=4)

    def make(mechanism: Any) -> models.Backbone:
        return models.Backbone(
            3, 16, num_layers=2, num_heads=2, mechanism=mechanism, is_causal=True, rngs=nnx.Rngs(0)
        )

    one, several = make(mechanism), make(ops.sequence_parallel(mechanism, mesh, "seq"))
    x = np.random.default_rng(0).normal(size=(2, length + 1, 3)).astype(np.float32)
    want, state = jax.jit(lambda x: one(x, return_state=True))(x[:, :length])
    prompt = jax.device_put(x[:, :length], NamedSharding(mesh, PartitionSpec(None, "seq")))
    got, split_state = jax.jit(lambda x: several(x, return_state=True))(prompt)
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert got.sharding.spec[1] == "seq"
    y, _ = jax.jit(one.step)(x[:, length], state)
    y_split, _ = jax.jit(several.step)(x[:, length], split_state)
    np.testing.assert_allclose(y_split, y, atol=1e-5)
