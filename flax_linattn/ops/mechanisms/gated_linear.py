"""Gated linear attention: Yang et al., "Gated Linear Attention Transformers", 2024.

The state forgets by a vector of decays for every token:

    S_t = diag(exp(a_t)) S_{t-1} + k_t v_t^T,   y_t = scale q_t S_t

=========  ==================================================================
here       paper
=========  ==================================================================
log_decay  a_t = log alpha_t (equation 3, section 4.1)
value      S_t
y          o_t (equation 3), times ``scale``, K**-0.5 as in its code
chunked    section 4.2; for the products within a chunk see ``engine.decays``
=========  ==================================================================

There is no denominator, so outputs grow with the number of tokens remembered.

Departures: the paper's gates have low rank, alpha = sigmoid(x W1 W2 + b)^(1/16), and its layers
normalize and gate the outputs. Here a layer has one full matrix for the gates and the power 1/16,
and outputs follow the formula. The paper divides by decays within sub-chunks; here no exponent is
above 0.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.numerics import einsum
from flax_linattn.ops.contract.recurrences import reference_recurrence
from flax_linattn.ops.contract.state import StateSizes, register_state
from flax_linattn.ops.contract.token_arguments import TokenArgument
from flax_linattn.ops.engine import decays
from flax_linattn.ops.engine.decays import by_head
from flax_linattn.ops.engine.gated import GatedMechanism
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible


@register_state
class GatedLinearState(NamedTuple):
    """Decay of a span, and the state that it adds.

    Attributes:
        log_decay: Sum of the log-decays [B, H, K], or [B, H, 1] for one decay per head. None if the
            state is not mergeable.
        value: State S of shape [B, H, K, V].
    """

    log_decay: Float[Array, "B H K"]
    value: Float[Array, "B H K V"]


@dataclasses.dataclass(frozen=True)
class DecayedSums(GatedMechanism):
    """Base class for S_t = diag(exp(a_t)) S_{t-1} + k_t v_t^T; subclasses define a_t."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=True, noncausal=False, cross=False, mergeable=True
    )
    merge_field: ClassVar[str] = "log_decay"

    def _channels(self, key_dim: int) -> int:
        """Returns the number of log-decays per head."""
        return key_dim

    def _init_state(self, sizes: StateSizes) -> GatedLinearState:
        rows = (sizes.batch_size, sizes.num_heads)
        return GatedLinearState(
            log_decay=jnp.zeros((*rows, self._channels(sizes.key_dim)), sizes.dtype),
            value=jnp.zeros((*rows, sizes.key_dim, sizes.value_dim), sizes.dtype),
        )

    def _merge(self, state_a: GatedLinearState, state_b: GatedLinearState) -> GatedLinearState:
        left = jnp.exp(state_b.log_decay)[..., None] * state_a.value
        log_decay = decays.add_to_total(state_a.log_decay, state_b.log_decay)
        return GatedLinearState(log_decay, left + state_b.value)

    def chunk_state(self, tokens: dict[str, Array], before: GatedLinearState) -> GatedLinearState:
        k, v, a = map(by_head, (tokens["k"], tokens["v"], tokens["log_decay"]))
        added = einsum("bhck,bhcv->bhkv", k * jnp.exp(decays.exclusive_suffix_sums(a)), v)
        decay = jnp.sum(a, axis=2)
        value = jnp.exp(decay)[..., None] * before.value + added
        return GatedLinearState(decays.add_to_total(before.log_decay, decay), value)

    def chunk_outputs(self, q: Array, tokens: dict[str, Array], before: GatedLinearState) -> Array:
        q, k, v, a = map(by_head, (q, tokens["k"], tokens["v"], tokens["log_decay"]))
        within = einsum("bhij,bhjv->bihv", decays.decayed_products(q, k, a), v)
        return within + einsum("bhck,bhkv->bchv", q * jnp.exp(decays.prefix_sums(a)), before.value)

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        q, k, v = self.prepare(q, k, v, parameters)
        a = self._log_decay(k, parameters).astype(k.dtype)
        a = a.reshape(*k.shape[:3], -1)

        def token(state: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
            q, k, v, a = now
            state = jnp.exp(a)[..., None] * state + k[..., None] * v[..., None, :]
            return state, jnp.sum(q[..., None] * state, axis=-2)

        batch, _, heads, key_dim = k.shape
        nothing = jnp.zeros((batch, heads, key_dim, v.shape[-1]), v.dtype)
        return reference_recurrence(token, nothing, (q, k, v, a), visible)

    def _log_decay(self, k: Array, parameters: Parameters) -> Array:
        return parameters["log_decay"]


def gla_gate(x: Array) -> Array:
    """Computes log sigmoid(x) / 16: the paper's temperature, which starts with long memories."""
    return jax.nn.log_sigmoid(x) / 16


@dataclasses.dataclass(frozen=True)
class GatedLinearAttention(DecayedSums):
    """Gated linear attention (module docstring: symbols, departures).

    Example:
        >>> import jax
        >>> from flax_linattn import ops
        >>> gated = ops.get_mechanism("gated_linear")
        >>> q, k, v, x = jax.random.normal(jax.random.key(0), (4, 2, 10, 4, 8))
        >>> log_decay = jax.nn.log_sigmoid(x)                     # [B, T, H, K], at most 0
        >>> y, state = gated.attend(q, k, v, is_causal=True, log_decay=log_decay,
        ...                         return_state=True)
        >>> y.shape, state.value.shape
        ((2, 10, 4, 8), (2, 4, 8, 8))
        >>> y_next, state = gated.step(q[:, 0], k[:, 0], v[:, 0], state,
        ...                            log_decay=log_decay[:, 0])
    """

    name: ClassVar[str] = "gated_linear"
    about: ClassVar[str] = "linear attention with a decay per token and channel (Yang et al., 2024)"
    parameters: ClassVar[tuple[str, ...]] = ("scale",)
    token_arguments: ClassVar[tuple[TokenArgument, ...]] = (
        TokenArgument("log_decay", "HK", high=0.0, activation=gla_gate),
    )
