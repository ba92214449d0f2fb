"""Linear attention: Katharopoulos et al., "Transformers are RNNs", 2020.

The weight of key j for query i is phi(q_i) . phi(k_j), phi(x) = elu(x) + 1 (their equations 7
and 18-20; equation 18 of the element-wise attention paper). ``KernelState.value`` is their s_i,
``KernelState.normalizer`` their z_i. Departure: none.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.averages import average_by_token
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.engine.kernel import KernelMechanism
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible


@dataclasses.dataclass(frozen=True)
class LinearAttention(KernelMechanism):
    """Linear attention with the feature map elu(x) + 1 (module docstring: symbols).

    Example:
        >>> import jax
        >>> from flax_linattn import ops
        >>> linear = ops.get_mechanism("linear")
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> y, state = linear.attend(q, k, v, is_causal=True, return_state=True)
        >>> y.shape, state.value.shape
        ((2, 10, 4, 8), (2, 4, 8, 8))
    """

    name: ClassVar[str] = "linear"
    about: ClassVar[str] = (
        "linear attention with the feature map elu(x) + 1 (Katharopoulos et al., 2020)"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(constant_memory=True, mergeable=True)

    def query_features(self, q: Array) -> Array:
        # A common factor cancels: queries far below 0 in all channels do not underflow.
        max_coordinate = jax.lax.stop_gradient(jnp.max(q, axis=-1, keepdims=True))
        return elu_plus_one(q - jnp.minimum(max_coordinate, jnp.zeros_like(max_coordinate)))

    def key_features(self, k: Array) -> Array:
        return elu_plus_one(k)

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        def features(x: Array) -> Array:
            return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))

        q, k = features(q), features(k)
        weight = jnp.sum(q[:, :, None] * k[:, None], axis=-1)  # [B, T, S, H]
        weight = jnp.where(visible[..., None], weight, jnp.zeros_like(weight))
        return average_by_token(weight, v)


def elu_plus_one(x: Array) -> Array:
    """Computes elu(x) + 1 as e^x for negative x, which the sum would round away.

    Example:
        >>> import jax.numpy as jnp
        >>> float(elu_plus_one(jnp.array(-30.0))) > 0
        True
    """
    # Not jnp.minimum: at 0, where queries are shifted to, it halves the gradient.
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, jnp.zeros_like(x), x)))
