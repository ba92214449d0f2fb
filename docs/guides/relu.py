"""Linear attention with the features relu, and a run of it on the ladder: python relu.py."""

import dataclasses

import jax
import jax.numpy as jnp

from flax_linattn import ops, tasks


@dataclasses.dataclass(frozen=True)
class ReluAttention(ops.KernelMechanism):
    """Linear attention whose features are relu(q) and relu(k)."""

    name = "relu"
    about = "linear attention with the features relu"
    capabilities = ops.Capabilities(constant_memory=True, mergeable=True)

    def query_features(self, q):
        return jax.nn.relu(q)

    def key_features(self, k):
        return jax.nn.relu(k)

    def _reference(self, q, k, v, visible, parameters):
        weight = jnp.einsum("bthk,bshk->btsh", jax.nn.relu(q), jax.nn.relu(k))
        weight = jnp.where(visible[..., None], weight, 0)
        total = weight.sum(axis=2)[..., None]
        return jnp.einsum("btsh,bshv->bthv", weight, v) / jnp.where(total > 0, total, 1)


ops.register_mechanism("relu", ReluAttention)

if __name__ == "__main__":
    SyntheticConfig = tasks.get_task("synthetic").Config
    config = SyntheticConfig.of(mechanism="relu", context=32, epochs=2500, runs=16)
    print(tasks.train("synthetic", config, "runs/relu"))
