"""Aaren: softmax attention with a learned query as a prefix scan.

Feng et al., "Attention as an RNN", 2024. Symbols against the paper's:

=========  ==================================================================
here       paper
=========  ==================================================================
k, v       k_i, v_i (section 3.1)
q          q, the learned query token, the same for all positions (section 3.3)
score      s_i = dot(q, k_i); here times ``scale``, K**-0.5 by default, which
           the paper's host implementations apply and its text leaves out
m, u, w    m_A, u_A, w_A (section 3.2): maximum, normaliser, weighted values
merge      the operator on (m, u, w), proved associative in appendix B
y          o_i = a_i / c_i = w / u
chunked    block by block, appendix A
=========  ==================================================================

Where it is not causal, all positions get the same vector, the mean over the whole sequence: a
global pooling, since no query is their own. ``bidirectional_aaren`` gives each its own.

Departures: the identity is (m, u, w) = (-inf, 0, 0), since the paper's m_0 = 0 lets all
weights underflow when the scores are far below 0; Algorithm 1 as printed uses strides
2**1 ... 2**floor(log2 N) and is wrong, the scan here is ``jax.lax.associative_scan``.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from flax_linattn.ops.contract.call import Call
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.numerics import exp_difference, safe_divide, score_scale, scores
from flax_linattn.ops.contract.state import StateSizes
from flax_linattn.ops.engine import exponential
from flax_linattn.ops.engine.exponential import ExponentialState
from flax_linattn.ops.engine.exponential_scan import exponential_scan
from flax_linattn.ops.engine.streaming import StreamingMechanism
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible

AarenState = ExponentialState
"""The state of Aaren, with leaves m [B, H], u [B, H] and w [B, H, V]."""


@dataclasses.dataclass(frozen=True)
class LearnedQueryMechanism(StreamingMechanism):
    """What mechanisms share that score every token by one learned query [H, K].

    Attributes:
        scale: factor of the scores where a call gives none; None = K**-0.5.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=True, cross=False, learned_query=True, mergeable=True
    )
    parameters: ClassVar[tuple[str, ...]] = ("scale",)

    scale: float | None = None

    def prepare(
        self, q: Array, k: Array, v: Array, parameters: Parameters
    ) -> tuple[Array, Array, Array]:
        return q * self._scale(q, parameters), k, v

    def _score(self, query: Array | None, k: Array) -> Array:
        """s_i [..., H] of keys [..., H, K]; ``query`` [H, K] is scaled."""
        if query is None:
            raise ValueError(
                f"{self.name!r} scores every key by its learned query; pass query [H, K]."
            )
        return scores(query, k, "hk,...hk->...h")

    def _scale(self, q: Array, parameters: Parameters) -> Array:
        scale = score_scale(parameters.get("scale"), self.scale, q.shape[-1])
        return jnp.asarray(scale).astype(q.dtype)


@dataclasses.dataclass(frozen=True)
class Aaren(LearnedQueryMechanism):
    """Attention as a recurrent network (module docstring: symbols, departures).

    With ``is_causal=False`` it is a global pooling: the same vector at every position.

    Attributes:
        scale: factor of the scores where a call gives none; None = K**-0.5.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> aaren = ops.get_mechanism("aaren")
        >>> q, k = jnp.ones((4, 8)), jnp.ones((2, 10, 4, 8))
        >>> v = jax.random.normal(jax.random.key(0), (2, 10, 4, 16))
        >>> y, state = aaren.attend(q, k, v, is_causal=True, return_state=True)
        >>> y.shape, state.w.shape
        ((2, 10, 4, 16), (2, 4, 16))
        >>> y_next, state = aaren.step(q, k[:, 0], v[:, 0], state)
        >>> y_next.shape
        (2, 4, 16)
    """

    name: ClassVar[str] = "aaren"
    about: ClassVar[str] = (
        "softmax attention with a learned query, as a prefix scan (Feng et al., 2024)"
    )

    def _init_state(self, sizes: StateSizes) -> AarenState:
        heads = (sizes.batch_size, sizes.num_heads)
        return exponential.empty(heads, (*heads, sizes.value_dim), sizes.dtype)

    def lift(self, k: Array, v: Array, query: Array | None = None) -> AarenState:
        """The leaf (s_i, 1, v_i) of the scan (section 3.2); ``query`` [H, K] is scaled."""
        score = self._score(query, k)
        return AarenState(m=score, u=jnp.ones_like(score), w=v)

    def _merge(self, state_a: AarenState, state_b: AarenState) -> AarenState:
        """The paper's operator on (m, u, w) (section 3.2, appendix B)."""
        return state_a.merge(state_b)

    def read(self, q: Array | None, state: AarenState) -> Array:
        """o_i = w / u; the query has done its work in ``lift``."""
        return state.mean

    def _causal(self, call: Call, q: Array, tokens: dict[str, Array]) -> tuple[Outputs, AarenState]:
        rows, state = exponential_scan(
            self._score(q, tokens["k"]),
            tokens["v"],
            self._initial(call),
            mask=call.mask,
            starts=call.starts,
            form=call.form,
            chunk_size=self.chunk_size,
        )
        return rows.y, state

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        # Section 3.1: o_i = sum_j exp(s_j) v_j / sum_j exp(s_j) over the visible j.
        score = jnp.sum(q * self._scale(q, parameters) * k, axis=-1)  # [B, S, H]
        score = jnp.where(visible[..., None], score[:, None], -jnp.inf)  # [B, T, S, H]
        weight = exp_difference(score, jnp.max(score, axis=2, keepdims=True))
        total = jnp.sum(weight[..., None] * v[:, None], axis=2)
        return safe_divide(total, jnp.sum(weight, axis=2)[..., None])
