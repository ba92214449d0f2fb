"""Forgetting attention: softmax whose scores of earlier tokens decay with every token.

Lin et al., "Forgetting Transformer: Softmax Attention with a Forget Gate", 2025 (arXiv 2503.02130).
Symbols against the paper's:

=========  ==================================================================
here       paper
=========  ==================================================================
log_decay  log f_t of the forget gate f_t = sigmoid(w . x_t + b), one number per
           token and head (section 3)
fallen     d_ij, the sum of log f_l over j < l <= i
s_ij       scale q_i . k_j + d_ij (equation 5)
=========  ==================================================================

    y_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij)   over the visible j

Where every log_decay is 0 it is softmax attention. It is causal only, because d_ij is defined for
earlier tokens. ``forgetting_aaren`` is its counterpart with one learned query and a state of
constant size.

Departures: the paper's "Pro" layers also normalize outputs, queries and keys, gate the output and
mix keys and values with the previous token's; these layers are not included. Padding does
not decay scores. A single token lowers earlier scores by at most 100,000 (``MAX_DECAY``), which
also stands for -inf, so it forgets all earlier tokens. ``engine.gates`` defines how a layer
computes ``log_decay``, and its initial bias.

Memory: two floats per token and head in addition to the keys; no matrix of d_ij for all pairs. A
cache stores the log-decay of each slot.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.averages import softmax_by_head
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.numerics import scores
from flax_linattn.ops.contract.pair_inputs import PairInputs, weight_shape
from flax_linattn.ops.contract.token_arguments import TokenArgument
from flax_linattn.ops.engine.blocks import Offsets, WeightFunction
from flax_linattn.ops.engine.cache import Pairs, Slots
from flax_linattn.ops.engine.double_float import running_sum
from flax_linattn.ops.engine.gates import LOG_DECAY
from flax_linattn.ops.engine.scored import ScoredAttention
from flax_linattn.ops.mechanisms.forgetting_aaren import decay_between
from flax_linattn.ops.mechanisms.softmax import SOFTMAX
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible

MAX_DECAY = 1e5
"""Limit of the magnitude of log-decays, since running sums of -inf have no differences.

exp(-104) is 0 in float32 and exp(-746) in float64, so a token that has decayed by the limit has no
weight unless its score was higher by almost 100,000. A larger limit would cost digits of the sums:
after 1,000 such tokens a pair of float32 numbers (48 bits) is accurate to 1e-6."""


@dataclasses.dataclass(frozen=True)
class Forgetting(ScoredAttention):
    """Softmax attention with a forget gate and a key/value cache (module docstring: symbols).

    Attributes:
        scale: Factor of the scores if a call passes none; None means K**-0.5.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> forgetting = ops.get_mechanism("forgetting")
        >>> v = jnp.array([1.0, 1.0, 5.0]).reshape(1, 3, 1, 1)
        >>> halves = jnp.full((1, 3, 1), jnp.log(0.5))            # weights 1/4, 1/2, 1
        >>> y = forgetting.attend(0 * v, 0 * v, v, is_causal=True, log_decay=halves)
        >>> y.ravel().round(3).tolist()
        [1.0, 1.0, 3.2860002517700195]
    """

    name: ClassVar[str] = "forgetting"
    about: ClassVar[str] = (
        "softmax attention with a forget gate (per-token decay) (Lin et al., 2025)"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=False,
        noncausal=False,
        cross=False,
        pair_mask=True,
        bias=True,
        weight_dropout=True,
    )
    token_arguments: ClassVar[tuple[TokenArgument, ...]] = (LOG_DECAY,)
    weight_function: ClassVar[WeightFunction] = SOFTMAX

    scale: float | None = None

    def prepare_per_token(self, per_token: Parameters) -> Any:
        return running_sum(jnp.maximum(per_token["log_decay"], -MAX_DECAY))

    def offsets(self, pairs: Pairs) -> Offsets:
        return Offsets(pairs.per_query, pairs.per_key)

    def init_sums(self, q: Array, v: Array) -> tuple[Any, Array]:
        # The second part is the decay [B, H] since the block, which comes later in time.
        return super().init_sums(q, v), jnp.zeros(q.shape[:2], q.dtype)

    def update_sums(self, sums: Any, q: Array, slots: Slots) -> tuple[Any, Array]:  # type: ignore[override]
        rows, later = sums
        log_decay = jnp.maximum(slots.per_token["log_decay"], -MAX_DECAY)
        # Sums from the newest token back are the decays themselves: nothing cancels, and one float
        # is enough.
        decay = jax.lax.associative_scan(jnp.add, log_decay, axis=2, reverse=True)
        since = jnp.pad(decay[:, :, 1:], ((0, 0), (0, 0), (0, 1))) + later[..., None]
        later = later + jnp.sum(log_decay, axis=2)  # not decay[:, :, 0], which needs more memory
        return super().update_sums(rows, q, slots, since[:, :, None]), later

    def mean_of_sums(self, sums: Any, q: Array) -> Array:
        # NaN stands for an invalid argument, and reaches outputs even from the first token.
        y = super().mean_of_sums(sums[0], q)
        return jnp.where(jnp.isnan(sums[1])[..., None, None], jnp.nan, y)

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        scale = jnp.asarray(self._scale(q.shape[-1], parameters)).astype(q.dtype)
        log_decay = parameters["log_decay"].astype(q.dtype)
        per_pair = PairInputs.check(parameters, *weight_shape(q, k))
        pairs = per_pair.visible_pairs(visible)
        score = scores(q * scale, k) + jnp.moveaxis(decay_between(log_decay, visible), 3, 1)
        return softmax_by_head(score, v, pairs, per_pair)
