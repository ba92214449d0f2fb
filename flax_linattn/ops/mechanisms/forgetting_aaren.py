"""Aaren with a forget gate: ours, after Feng et al., 2024, and Lin et al., 2025.

Aaren's softmax over an endless past changes less and less with every token. Here every token l
lowers all earlier scores by a log-decay a_l <= 0:

    s_ij = scale q . k_j + sum of a_l over j < l <= i,   y_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij)

with the learned query q of Aaren. Where all a_l are 0 it is Aaren. The states (decay, m, u, w) of
spans are still a monoid: merging adds the later decay to the earlier maximum, which
``engine.exponential`` stores as two numbers, the original score and its decay.

If it is not causal, all positions have the output of the last one, as in ``aaren``.

=========  ==================================================================
here       Lin et al., "Forgetting Transformer", 2025
=========  ==================================================================
log_decay  log f_t of the forget gate (section 3)
s_ij       q_i . k_j + d_ij (equation 5), q_i the same for all i
=========  ==================================================================
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp

from flax_linattn.ops.contract.averages import average_by_token
from flax_linattn.ops.contract.numerics import exp_difference
from flax_linattn.ops.contract.state import StateSizes
from flax_linattn.ops.contract.token_arguments import TokenArgument
from flax_linattn.ops.engine import exponential
from flax_linattn.ops.engine.exponential import ForgettingState
from flax_linattn.ops.engine.exponential_scan import ScanOutputs, forgetting_scan
from flax_linattn.ops.engine.gates import LOG_DECAY
from flax_linattn.ops.mechanisms.aaren import LearnedQueryMechanism, broadcast_to_queries
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible


@dataclasses.dataclass(frozen=True)
class ForgettingAaren(LearnedQueryMechanism):
    """Aaren with a forget gate, by which earlier scores decay (module docstring: symbols).

    Attributes:
        scale: Factor of the scores if a call passes none; None means K**-0.5.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> aaren = ops.get_mechanism("forgetting_aaren")
        >>> v = jnp.array([1.0, 1.0, 5.0]).reshape(1, 3, 1, 1)
        >>> halves = jnp.full((1, 3, 1), jnp.log(0.5))            # weights 1/4, 1/2, 1
        >>> y = aaren.attend(jnp.ones((1, 1)), 0 * v, v, is_causal=True, log_decay=halves)
        >>> [round(each, 3) for each in y.ravel().tolist()]
        [1.0, 1.0, 3.286]
    """

    name: ClassVar[str] = "forgetting_aaren"
    about: ClassVar[str] = (
        "Aaren with a forget gate (per-token decay) (ours, after Lin et al., 2025)"
    )
    token_arguments: ClassVar[tuple[TokenArgument, ...]] = (LOG_DECAY,)
    merge_field: ClassVar[str] = "log_decay"

    def _init_state(self, sizes: StateSizes) -> ForgettingState:
        return exponential.empty_forgetting_state(
            sizes.rows, (*sizes.rows, sizes.value_dim), sizes.dtype
        )

    def lift(
        self,
        k: Array,
        v: Array,
        query: Array | None = None,
        log_decay: Array | None = None,
    ) -> ForgettingState:
        score = self._score(query, k)
        if score.ndim == v.ndim:  # of external queries
            v = broadcast_to_queries(v, v.ndim - 2, score.shape[-2])
            if log_decay is not None:
                log_decay = broadcast_to_queries(log_decay, log_decay.ndim - 1, score.shape[-2])
        lost = jnp.zeros_like(score) if log_decay is None else log_decay
        return ForgettingState(lost, score, jnp.zeros_like(score), jnp.ones_like(score), v)

    def read(self, q: Array | None, state: ForgettingState) -> Array:
        return state.sums.mean

    def _scan(
        self, score: Array, tokens: dict[str, Array], initial: ForgettingState, **options: Any
    ) -> tuple[ScanOutputs, ForgettingState]:
        return forgetting_scan(score, tokens["v"], tokens["log_decay"], initial, **options)

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        score = jnp.sum(q * self._scale(q, parameters) * k, axis=-1)  # [B, S, H]
        log_decay = parameters["log_decay"].astype(score.dtype)
        score = score[:, None] + decay_between(log_decay, visible)
        score = jnp.where(visible[..., None], score, -jnp.inf)
        return average_by_token(exp_difference(score, jnp.max(score, axis=2, keepdims=True)), v)


def decay_between(log_decay: Array, visible: Visible) -> Array:
    """Sums a_l [B, S, H] over the visible tokens after j for each query, giving [B, T, S, H]."""
    index = jnp.arange(log_decay.shape[1])
    later = visible[:, :, None] & (index > index[:, None])[None, None]  # [B, T, S, L]
    sums = jnp.where(later[..., None], log_decay[:, None, None], jnp.zeros((), log_decay.dtype))
    return jnp.sum(sums, axis=3)
