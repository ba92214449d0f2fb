"""Softmax attention (Vaswani et al., 2017), the baseline.

Symbols: scores s_ij = scale * q_i . k_j, outputs y_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij) over
the visible j. ``pair_inputs`` adds a mask, a bias and dropout of the weights. Departure: none.

With a ``window`` of W a token attends to itself and to the W - 1 valid tokens of its segment before
it: the sliding window of Beltagy et al., "Longformer: The Long-Document Transformer", 2020 (arXiv
2004.05150, section 3.1), on one side, without dilation, global tokens or selected heads. Its
parallel form computes only blocks within the band, O(T W), and its state is a ring of W tokens.
With ``sinks`` of N the first N tokens of a segment stay visible: the attention sinks of Xiao et
al., "Efficient Streaming Language Models with Attention Sinks", 2023 (arXiv 2309.17453), as fixed
slots of the state. Departure: positions, if a layer has any, are those in the text, not in the
cache.

``soft_cap`` limits the scores to (-cap, cap) by cap tanh(s / cap), as in Gemma 2 (2024, arXiv
2408.00118, section 2), before a bias.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from flax_linattn.checks import check_integers, check_positive
from flax_linattn.ops.contract.averages import softmax_by_head
from flax_linattn.ops.contract.call import Call
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.checks import check_state_like
from flax_linattn.ops.contract.masks import Visibility, zero_padding
from flax_linattn.ops.contract.numerics import (
    accumulation_dtype,
    exp_difference,
    scores,
)
from flax_linattn.ops.contract.pair_inputs import PairInputs, weight_shape
from flax_linattn.ops.contract.state import StateSizes
from flax_linattn.ops.engine.blocks import WeightFunction
from flax_linattn.ops.engine.cache import Pairs
from flax_linattn.ops.engine.scored import ScoredAttention
from flax_linattn.ops.engine.window import WindowCache, compact_tokens
from flax_linattn.typing import Array, Keys, Outputs, Parameters, State, Values, Visible

MIN_BLOCK_TOKENS = 64
"""Minimum number of queries, and of keys, per block of windowed attention."""

SOFTMAX = WeightFunction(
    masked_score=-math.inf,
    initial_level=-math.inf,
    level=partial(jnp.max, axis=-1),
    weight=exp_difference,
    slope=exp_difference,
    rescale=exp_difference,
)
"""Weights e^s, relative to the maximum of their row."""


@dataclasses.dataclass(frozen=True)
class SoftmaxAttention(ScoredAttention):
    """Softmax attention with a preallocated key/value cache.

    Attributes:
        scale: Factor of the scores if a call passes none; None means K**-0.5.
        implementation: Implementation of ``form="parallel"``: None for this library's own, "cudnn"
            for the fused kernel of ``jax.nn.dot_product_attention`` on NVIDIA GPUs (half precision
            only), "xla" for its unfused computation, for short sequences.
        window: Number of tokens W that a token attends to, itself included; causal only. None means
            all. The state then has a constant size.
        sinks: Number N of first tokens of a segment that stay visible outside the window.
        soft_cap: Limit of the scores, s -> soft_cap tanh(s / soft_cap), before a bias; None means
            none.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> softmax = ops.get_mechanism("softmax")
        >>> x = jax.random.normal(jax.random.key(0), (2, 10, 4, 8))
        >>> state = softmax.init_state(2, 4, 8, 8, max_length=16)
        >>> y, state = softmax.attend(x, x, x, is_causal=True, initial_state=state,
        ...                           return_state=True)
        >>> y_next, state = softmax.step(x[:, 0], x[:, 0], x[:, 0], state)
        >>> y_next.shape, state.length.tolist()
        ((2, 4, 8), [11, 11])
        >>> last = ops.get_mechanism("softmax:window=4")          # an endless stream
        >>> last.attend(x, x, x, is_causal=True, return_state=True)[1].key.shape
        (2, 4, 4, 8)
    """

    name: ClassVar[str] = "softmax"
    about: ClassVar[str] = (
        "softmax attention with a preallocated key/value cache; the baseline (Vaswani et al., 2017)"
    )

    scale: float | None = None
    implementation: Literal["xla", "cudnn"] | None = None
    window: int | None = None  # type: ignore[misc]  # of an instance
    sinks: int = 0  # type: ignore[misc]
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(1, window=self.window)
        check_integers(0, sinks=self.sinks)
        if self.soft_cap is not None:
            check_positive(soft_cap=self.soft_cap)
        if self.sinks and self.window is None:
            raise ValueError(
                f"sinks={self.sinks} keeps first tokens visible outside a window; pass window, too."
            )
        for what, value in (("window", self.window), ("soft_cap", self.soft_cap)):
            if value is not None and self.implementation is not None:
                raise ValueError(
                    f"implementation={self.implementation!r} does not support a {what}; omit one."
                )
        if self.implementation not in (None, "xla", "cudnn"):
            raise ValueError(
                f"implementation must be None, 'xla' or 'cudnn', got {self.implementation!r}."
            )

    @property
    def weight_function(self) -> WeightFunction:
        return SOFTMAX._replace(cap=self.soft_cap)

    @property
    def capabilities(self) -> Capabilities:
        if self.window is None:
            return Capabilities(
                constant_memory=False, pair_mask=True, bias=True, weight_dropout=True
            )
        return dataclasses.replace(
            SoftmaxAttention().capabilities, constant_memory=True, noncausal=False, cross=False
        )

    def _init_state(self, sizes: StateSizes) -> Any:
        if self.window is None:
            return super()._init_state(sizes)
        slots = super()._init_state(sizes._replace(max_length=self.sinks + self.window))
        end = jnp.zeros_like(slots.length)
        return WindowCache(slots.key, slots.value, slots.length, end, self.sinks)

    def _check_state(self, state: Any, q: Array, k: Array, v: Array) -> None:
        if self.window is None:
            return super()._check_state(state, q, k, v)
        sizes = (k.shape[0], k.shape[-2], k.shape[-1], v.shape[-1])
        make = partial(self.init_state, *sizes, dtype=v.dtype)
        check_state_like(self.name, state, jax.eval_shape(make))

    def _attend(self, call: Call) -> tuple[Outputs, State]:
        if self.window is None or call.mask is None:
            return super()._attend(call)
        # Their shapes are checked before they are reordered.
        cached = 0 if call.state is None else call.state.capacity
        batch, heads, queries, keys = weight_shape(call.q, call.k)
        PairInputs.check(call.parameters, batch, heads, queries, cached + keys, cached=cached)
        gathered, put_back = compact_tokens(call)
        y, state = super()._attend(gathered)
        return zero_padding(put_back(y), call.mask), state

    def attend_block(self, pairs: Pairs, visible: Visible | None) -> Outputs:
        q, k, v = pairs[:3]
        # jax.nn.dot_product_attention computes float64 in float32, and is NaN for scores of 1e21.
        if self.implementation is None or pairs.per_pair.is_given or q.dtype == jnp.float64:
            return super().attend_block(pairs, visible)
        if self.implementation == "xla":
            # It rounds the weights of half precision and has no float16 on CPUs.
            dtype = accumulation_dtype(q.dtype)
            q, k, v = q.astype(dtype), k.astype(dtype), v.astype(dtype)
        factor = self._scale(q.shape[-1], pairs.parameters)
        if not isinstance(factor, float):  # the fused kernel wants a static factor
            q, factor = q * jnp.asarray(factor, q.dtype), 1.0
        width = max(k.shape[-1], v.shape[-1])  # it also wants K = V: zeros change nothing
        try:
            y = jax.nn.dot_product_attention(
                _widen(q, width),
                _widen(k, width),
                _widen(v, width),
                mask=None if visible is None else visible[:, None],
                scale=factor,
                is_causal=visible is None,
                implementation=self.implementation,
            )
        except RuntimeError as error:
            raise ValueError(
                f"implementation={self.implementation!r} does not run here: {error} Omit it."
            ) from error
        return y[..., : v.shape[-1]]

    def _attend_chunked(self, pairs: Pairs, visibility: Visibility) -> Array:
        if self.implementation == "cudnn":  # the fused kernel has its own blocks
            return self._attend_query_blocks(pairs, visibility, None)
        if self.window is not None and self.window < self.chunk_size:
            # Most scores of larger blocks would be masked.
            size = min(self.chunk_size, max(MIN_BLOCK_TOKENS, self.window))
            return dataclasses.replace(self, chunk_size=size, window=None, sinks=0)._attend_chunked(
                pairs, visibility
            )
        return super()._attend_chunked(pairs, visibility)

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        scale = jnp.asarray(self._scale(q.shape[-1], parameters)).astype(q.dtype)
        score = scores(q * scale, k)
        if self.soft_cap is not None:
            score = self.soft_cap * jnp.tanh(score / self.soft_cap)
        if self.window is not None:
            own = jnp.diagonal(visible, axis1=1, axis2=2)[..., None]
            since = jnp.cumsum(visible[..., ::-1], axis=2, dtype=jnp.int32)[..., ::-1]
            number = jnp.cumsum(visible, axis=2, dtype=jnp.int32)
            visible = visible & own & ((since <= self.window) | (number <= self.sinks))
        per_pair = PairInputs.check(parameters, *weight_shape(q, k))
        return softmax_by_head(score, v, per_pair.visible_pairs(visible), per_pair)


def _widen(x: Array, width: int) -> Array:
    return jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, width - x.shape[-1]),))
