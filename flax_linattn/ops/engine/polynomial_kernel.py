"""Kernel mechanisms whose weights are polynomials of q . k, so that they need no features.

At order 2 a head of d channels has about d^2 / 2 features (TaylorShift: 2,145 for 64 channels).
Sequences below ``speed_crossover`` take less time by the weights of all pairs of tokens.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.call import Call
from flax_linattn.ops.contract.masks import Visibility, visibility
from flax_linattn.ops.contract.numerics import einsum
from flax_linattn.ops.engine.blocks import attend_in_blocks
from flax_linattn.ops.engine.features import clip_query, clip_score_query
from flax_linattn.ops.engine.kernel import KernelMechanism
from flax_linattn.ops.engine.polynomials import homogeneous_polynomial, polynomial_weights
from flax_linattn.ops.engine.prefix import Span, final_state
from flax_linattn.typing import Array, Outputs, State, Visible


def speed_crossover(num_features: int, key_dim: int, *, is_causal: bool = False) -> int:
    """Estimated sequence length from which features are faster than weights of pairs on a CPU.

    The formula fits TaylorShift; for other polynomials it was not measured. Few features take
    longer than their number of multiplications suggests, at most 3 times as long. The result is
    0.8 to 1.3 times TaylorShift's measured crossover: 145, 570, 1,250 and 3,300 tokens for heads
    of 8, 16, 32 and 64 channels at order 2, forward and with gradients, and 1,300 and 6,000 tokens
    for 8 and 16 channels at order 4, forward (later with gradients). Causal forms of order 2
    crossed at 1.7 to 2.2 times as many tokens.

    Args:
        num_features: Number of features of a key, F.
        key_dim: Channels of a key d, at least 1.
        is_causal: Whether attention is causal; then only half of the pairs are computed.

    Returns:
        F (d + 1) / d times 1 + 27 / sqrt(F), at most times 3; 1.8 times as many tokens if causal.
        Rounded up.

    Example:
        >>> [speed_crossover((d + 1) * (d + 2) // 2, d) for d in (8, 16, 32, 64)]
        [152, 488, 1239, 3449]
        >>> speed_crossover(2145, 64, is_causal=True)
        6208
    """
    length = num_features * (key_dim + 1) / key_dim * min(3, 1 + 27 / math.sqrt(num_features))
    return math.ceil(1.8 * length if is_causal else length)


@dataclasses.dataclass(frozen=True)
class PolynomialMechanism(KernelMechanism):
    """Base class of mechanisms whose weights are a polynomial of q . k.

    "auto" computes the weights of pairs in blocks ("direct", not with an initial state) or features
    ("efficient"). TaylorShift alone also has these two as values of ``form``.
    """

    features_first: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def polynomial(self) -> tuple[float, ...]:
        """Coefficients of the polynomial, that of the highest power first."""

    def kernel(self, q: Array, k: Array) -> Array:
        q, unit = clip_query(q, len(self.polynomial) - 1)
        return homogeneous_polynomial(self.polynomial, einsum("bhtk,bhsk->bhts", q, k), unit)

    def _attend(self, call: Call) -> tuple[Outputs, State]:
        form, is_direct = call.form, call.form == "direct"
        if form == "auto":
            is_direct = call.k.shape[1] < self._crossover(call)
        # Only features can continue a state, whose tokens are sums of features.
        if is_direct and call.state is None:
            return self._direct(call)
        form = "auto" if form in ("direct", "efficient") else form
        return super()._attend(dataclasses.replace(call, form=form))

    def _crossover(self, call: Call) -> float:
        """Returns the number of tokens from which ``auto`` takes the efficient form."""
        key = jax.ShapeDtypeStruct(call.k.shape[-1:], call.k.dtype)
        (num_features,) = jax.eval_shape(self.key_features, key).shape
        return speed_crossover(num_features, *key.shape, is_causal=call.is_causal)

    def _direct(self, call: Call) -> tuple[Outputs, State]:
        """Computes the weights in blocks; makes the state only if it is returned."""
        q, tokens = self._prepare(call)
        segment_index = None if call.segments is None else call.segments.index
        visible_pairs = Visibility(call.is_causal, 0, call.mask, segment_index, segment_index)
        weight_function = polynomial_weights(self.polynomial)
        bounded, k, v = clip_score_query(q), tokens["k"], tokens["v"]
        y = attend_in_blocks(weight_function, bounded, k, v, 1.0, visible_pairs, self.chunk_size)
        count = jnp.sum(visibility_of_call(call), axis=2, dtype=y.dtype)[..., None]
        y = self.finish(y, jnp.ones_like(y[..., 0]), count, q.shape[-1])
        if not call.return_state:
            return y, None  # not even an empty state, which may be too large
        monoid = self._make_monoid(q, self._identity_state(call.k, call.v))
        span = Span(tokens, call.mask, call.starts)
        return y, final_state(monoid, span, self._initial_state(call), self.chunk_size)


def visibility_of_call(call: Call) -> Visible:
    """Returns the visibility matrix [B or 1, T, S]; XLA fuses it into sums and never stores it."""
    lengths = call.num_queries, call.k.shape[1]
    return visibility(*lengths, is_causal=call.is_causal, mask=call.mask, segments=call.segments)
