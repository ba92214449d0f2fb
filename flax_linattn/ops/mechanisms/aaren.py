"""Aaren: softmax attention with a learned query as a prefix scan.

Feng et al., "Attention as an RNN", 2024. Symbols against the paper's:

=========  ==================================================================
here       paper
=========  ==================================================================
k, v       k_i, v_i (section 3.1)
q          q, the learned query token, the same for all positions (section 3.3)
score      s_i = dot(q, k_i); here times ``scale``, K**-0.5 by default, which
           the paper's host implementations apply and its text leaves out
m, u, w    m_A, u_A, w_A (section 3.2): maximum, normalizer, weighted values
merge      the operator on (m, u, w), proved associative in appendix B
y          o_i = a_i / c_i = w / u
chunked    block by block, appendix A
=========  ==================================================================

If it is not causal, all positions have the same output, the mean over the whole sequence: a global
pooling by one query. ``bidirectional_aaren`` has an output of its own at each position.

External queries may replace the learned one (figure 1a and section 3.1: attention for a query as a
many-to-one recurrent network): L queries [L, H, K], or [B, L, H, K] with L per sequence, such as
latents that read a stream. All attend to the same tokens. Outputs equal softmax
cross-attention, [B, L, H, V], from a state [B, L, H, ...] of constant size; causal outputs are
[B, T, L, H, V], one per query after each token.

Departures: the identity is (m, u, w) = (-inf, 0, 0), since with the paper's m_0 = 0 all weights
underflow when the scores are far below 0; Algorithm 1 as printed uses strides
2**1 ... 2**floor(log2 N), which is wrong, so the scan here is ``jax.lax.associative_scan``.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.call import Call
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.numerics import (
    ScoreScale,
    einsum,
    exp_difference,
    safe_divide,
    scores,
)
from flax_linattn.ops.contract.state import StateSizes
from flax_linattn.ops.engine import exponential, prefix
from flax_linattn.ops.engine.exponential import ExponentialState
from flax_linattn.ops.engine.exponential_scan import ScanOutputs, exponential_scan
from flax_linattn.ops.engine.forms import choose_form
from flax_linattn.ops.engine.streaming import StreamingMechanism
from flax_linattn.typing import Array, Keys, Outputs, Parameters, State, Values, Visible

AarenState = ExponentialState
"""The state of Aaren, with leaves m [B, H], u [B, H] and w [B, H, V]; [B, L, H, ...] of L given
queries."""


@dataclasses.dataclass(frozen=True)
class LearnedQueryMechanism(ScoreScale, StreamingMechanism):
    """Base class of mechanisms that score every token by one learned query or external queries.

    Attributes:
        scale: Factor of the scores if a call passes none; None means K**-0.5.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=True, cross=False, learned_query=True, latents=True, mergeable=True
    )
    parameters: ClassVar[tuple[str, ...]] = ("scale",)
    scan: ClassVar[str] = "exponential"

    scale: float | None = None

    def prepare(
        self, q: Array, k: Array, v: Array, parameters: Parameters
    ) -> tuple[Array, Array, Array]:
        return q * self._scale(q, parameters), k, v

    @abc.abstractmethod
    def _scan(
        self, score: Array, tokens: dict[str, Array], initial: State, **options: Any
    ) -> tuple[ScanOutputs, State]:
        """Computes causal means [B, T, H, V] for scores [B, T, H]; keys in ``tokens`` are not used.

        The remaining arguments and the results are as in ``exponential_scan``.
        """

    def _attend(self, call: Call) -> tuple[Outputs, State]:
        if call.q.ndim == 2 or call.is_causal:
            return super()._attend(call)
        # External queries have one output each, not one at every token.
        q, tokens = self._prepare(call)
        empty = self._call_identity(call)
        state = prefix.final_state(
            self._make_monoid(q, empty),
            prefix.Span(tokens, call.mask, None),
            self._initial_state(call),
            self._chunk_size(call, empty),
        )
        return self.read(None, state), state

    def _attend_causal(
        self, call: Call, q: Array, tokens: dict[str, Array]
    ) -> tuple[Outputs, State]:
        score = self._score(q, tokens["k"])
        own = {name: x for name, x in tokens.items() if name != "k"}
        initial = self._initial_state(call)
        options = {
            "mask": call.mask,
            "starts": call.starts,
            "form": call.form,
            "chunk_size": self.chunk_size,
        }
        if q.ndim == 2:
            outputs, state = self._scan(score, own, initial, **options)
            return outputs.y, state
        # Each head of each external query is a head of the scan.
        queries = q.shape[1]
        outputs, state = self._scan(
            _merge_axes(score, 2),
            {name: _merge_axes(broadcast_to_queries(x, 2, queries), 2) for name, x in own.items()},
            jax.tree.map(lambda x: _merge_axes(x, 1), initial),
            **options,
        )
        return _split_axis(outputs.y, 2, queries), jax.tree.map(
            lambda x: _split_axis(x, 1, queries), state
        )

    def _score(self, query: Array | None, k: Array) -> Array:
        """Computes s_i [..., H] or [..., L, H] of keys [..., H, K]; ``query`` is scaled."""
        if query is None:
            raise ValueError(
                f"{self.name!r} scores every key by its learned query; pass query [H, K]."
            )
        if query.ndim == 2:
            return scores(query, k, "hk,...hk->...h")
        return scores(query, k, "blhk,b...hk->b...lh")


@dataclasses.dataclass(frozen=True)
class Aaren(LearnedQueryMechanism):
    """Attention as a recurrent network (module docstring: symbols, departures).

    With ``is_causal=False`` it is a global pooling: the same vector at every position.

    Attributes:
        scale: Factor of the scores if a call passes none; None means K**-0.5.

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
        >>> latents = jax.random.normal(jax.random.key(1), (5, 4, 8))   # L = 5
        >>> aaren.attend(None, k, v, latents=latents).shape
        (2, 5, 4, 16)
        >>> state = aaren.init_state(2, 4, 8, 16, num_latents=5)
        >>> y, state = aaren.step(None, k[:, 0], v[:, 0], state, latents=latents)
        >>> y.shape
        (2, 5, 4, 16)
    """

    name: ClassVar[str] = "aaren"
    about: ClassVar[str] = (
        "softmax attention with a learned query, computed as a prefix scan (Feng et al., 2024)"
    )

    def _init_state(self, sizes: StateSizes) -> AarenState:
        return exponential.empty_state(sizes.rows, (*sizes.rows, sizes.value_dim), sizes.dtype)

    def lift(self, k: Array, v: Array, query: Array | None = None) -> AarenState:
        # The leaf (s_i, 1, v_i) of the scan (section 3.2); the query is scaled.
        score = self._score(query, k)
        v = v if score.ndim < v.ndim else broadcast_to_queries(v, v.ndim - 2, score.shape[-2])
        return AarenState(m=score, u=jnp.ones_like(score), w=v)

    def _merge(self, state_a: AarenState, state_b: AarenState) -> AarenState:
        return state_a.merge(state_b)  # the operator on (m, u, w) of section 3.2, appendix B

    def read(self, q: Array | None, state: AarenState) -> Array:
        return state.mean  # o_i = w / u: the query was applied in lift

    def _make_monoid(self, q: Array, identity: AarenState) -> prefix.Monoid:
        def reduce(tokens: dict[str, Array], keep: Array | None) -> AarenState:
            """Reduces a block of appendix A by matrix products."""
            score = self._score(q, tokens["k"])
            if keep is not None:
                keep = keep.reshape(keep.shape + (1,) * (score.ndim - keep.ndim))
                score = jnp.where(keep, score, -jnp.inf)
            m = jnp.max(score, axis=1)
            weight = exp_difference(score, m[:, None])
            w = einsum("bs...h,bshv->b...hv", weight, tokens["v"])
            return AarenState(m, jnp.sum(weight, axis=1), w)

        return super()._make_monoid(q, identity)._replace(reduce=reduce)

    def _chunk_size(self, call: Call, identity: AarenState) -> int | None:
        if call.form != "auto" or call.q.ndim == 2 or call.is_causal:
            return super()._chunk_size(call, identity)
        (batch, length, heads), queries = call.k.shape[:3], call.num_queries
        form = choose_form("given", queries, length, batch * heads)
        return None if form == "parallel" else self.chunk_size

    def _scan(
        self, score: Array, tokens: dict[str, Array], initial: AarenState, **options: Any
    ) -> tuple[ScanOutputs, AarenState]:
        return exponential_scan(score, tokens["v"], initial, **options)

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        # Section 3.1: o_i = sum_j exp(s_j) v_j / sum_j exp(s_j) over the visible j.
        score = jnp.sum(q * self._scale(q, parameters) * k, axis=-1)  # [B, S, H]
        score = jnp.where(visible[..., None], score[:, None], -jnp.inf)  # [B, T, S, H]
        weight = exp_difference(score, jnp.max(score, axis=2, keepdims=True))
        total = jnp.sum(weight[..., None] * v[:, None], axis=2)
        return safe_divide(total, jnp.sum(weight, axis=2)[..., None])


def broadcast_to_queries(x: Array, axis: int, queries: int) -> Array:
    """Repeats per-token arrays for each of L queries, along a new axis ``axis``."""
    x = jnp.expand_dims(x, axis)
    return jnp.broadcast_to(x, (*x.shape[:axis], queries, *x.shape[axis + 1 :]))


def _merge_axes(x: Array, axis: int) -> Array:
    """Merges the query and head axes: [..., L, H, ...] to [..., L * H, ...]."""
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def _split_axis(x: Array, axis: int, queries: int) -> Array:
    """Splits the query and head axes: [..., L * H, ...] to [..., L, H, ...]."""
    return x.reshape(*x.shape[:axis], queries, x.shape[axis] // queries, *x.shape[axis + 1 :])
