"""Element-wise attention (EA) and its Taylor form, EA-series.

"Element-wise Attention Is All You Need", 2025. Symbols against the paper's:

==============  ============================================================
here            paper
==============  ============================================================
q, k, v         q_i, k_j, v_j; every channel attends by itself, the heads
                only split the channels
score           o_ijc = -(q_ic - k_jc)^2 (equation 1)
y               y_i (equation 2); for the series equations 5, 6 and 14-16
order           t of EA-t, the highest exponent of the polynomial
terms           t of figure 2, the number of terms: exponents 0 ... t - 1
s, z            s_i, z_i (equations 8, 9, 12, 13), see SeriesState
==============  ============================================================

Departures: none in ``elementwise``. In ``elementwise_series``, the paper's text names EA-2 and
EA-6 after the highest exponent, which is even so that the polynomial is positive, while its
figure 2 and equations 7-11 stop one exponent earlier; here ``order`` is the highest exponent,
and ``terms`` reproduces the listing. e^(-k^2) underflows in float32 beyond |k| = 10, where the
paper's sums are 0/0: here they are relative to the smallest |k| so far.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from flax_linattn.ops.channelwise import ChannelwiseSoftmax
from flax_linattn.ops.mechanism import Capabilities
from flax_linattn.ops.numerics import accumulation_dtype, exp_difference, safe_divide
from flax_linattn.ops.streaming import StreamingMechanism
from flax_linattn.typing import Array, Keys, Outputs, Queries, Values, Visible


@dataclasses.dataclass(frozen=True)
class Elementwise(ChannelwiseSoftmax):
    """Element-wise attention, exact (module docstring: symbols).

    Attributes:
        chunk_size: queries a block, and keys a block within it.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> elementwise = ops.get_mechanism("elementwise")
        >>> q = jnp.zeros((1, 1, 1, 2))                           # one query, two channels
        >>> k = jnp.array([[0.0, 0.0], [0.0, 30.0]])[None, :, None]
        >>> v = jnp.array([[1.0, 1.0], [3.0, 3.0]])[None, :, None]
        >>> elementwise.attend(q, k, v).ravel().tolist()          # near keys only
        [2.0, 1.0]
    """

    name: ClassVar[str] = "elementwise"
    capabilities: ClassVar[Capabilities] = Capabilities(constant_memory=False, channelwise=True)

    def scores(self, q: Array, k: Array, positions: None = None) -> Array:
        return -jnp.square(q - k)  # equation 1

    def _reference(self, q: Queries, k: Keys, v: Values, visible: Visible) -> Outputs:
        score = -((q[:, :, None] - k[:, None]) ** 2)  # [B, T, S, H, K]
        score = jnp.where(visible[..., None, None], score, -jnp.inf)
        weight = exp_difference(score, jnp.max(score, axis=2, keepdims=True))
        return safe_divide(jnp.sum(weight * v[:, None], axis=2), jnp.sum(weight, axis=2))


class SeriesState(NamedTuple):
    """Sums over the tokens taken in (equations 8 and 9), kept in the range of float32.

    With a the smallest ``|k_j|`` of the channel and r = max(1, a), for n = 0 ... order:

    Attributes:
        smallest: a [B, H, K], inf when empty.
        s: sum of (k_j / r)^n exp(a^2 - k_j^2) v_j [B, order + 1, H, K].
        z: sum of (k_j / r)^n exp(a^2 - k_j^2) [B, order + 1, H, K].
    """

    smallest: Float[Array, "B H K"]
    s: Float[Array, "B N H K"]
    z: Float[Array, "B N H K"]


@dataclasses.dataclass(frozen=True)
class ElementwiseSeries(StreamingMechanism):
    """EA-series: element-wise attention with a Taylor polynomial for e^(2qk).

    Attributes:
        order: highest exponent of the polynomial; EA-2 and EA-6 are order 2 and 6. An even
            order has positive weights; an odd one does not. Where 2qk is far below 0 the terms
            cancel, the more digits the higher the order: in float32 outputs are right to 1e-5
            up to order 6, to 1e-4 at order 12 and to 1e-2 at order 20.
        terms: number of terms, order + 1, for parity with the paper's listing (its figure 2
            with t = 6 is ``terms=6``, order 5, not positive). Give it instead of ``order``.
        allow_odd_order: take an odd ``order`` in spite of its negative weights.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> exact, series = ops.get_mechanism("elementwise"), ops.get_mechanism(
        ...     "elementwise_series", order=6)
        >>> q, k, v = 0.3 * jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> bool(jnp.allclose(series.attend(q, k, v), exact.attend(q, k, v), atol=1e-3))
        True
        >>> series.init_state(2, 4, 8, 8).s.shape                 # order + 1 terms
        (2, 7, 4, 8)
        >>> ops.get_mechanism("elementwise_series", order=3)
        Traceback (most recent call last):
        ...
        ValueError: order 3 is odd: its polynomial is negative far below 0, and so are weights; \
take 2 or 4, or allow_odd_order=True.
    """

    name: ClassVar[str] = "elementwise_series"
    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=True, channelwise=True, mergeable=True
    )

    order: int = 6
    terms: int | None = None
    allow_odd_order: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.terms is not None:
            if self.terms < 1:
                raise ValueError(f"terms must be at least 1, got {self.terms}.")
            if self.order not in (type(self).order, self.terms - 1):
                raise ValueError(
                    f"give order (the highest exponent) or terms (order + 1), not both; got "
                    f"order={self.order} and terms={self.terms}."
                )
            for name, value in (("order", self.terms - 1), ("terms", None)):
                object.__setattr__(self, name, value)
            object.__setattr__(self, "allow_odd_order", True)
            return
        if self.order < 0:
            raise ValueError(f"order must be at least 0, got {self.order}.")
        if self.order % 2 and not self.allow_odd_order:
            raise ValueError(
                f"order {self.order} is odd: its polynomial is negative far below 0, and so are "
                f"weights; take {self.order - 1} or {self.order + 1}, or allow_odd_order=True."
            )

    def init_state(
        self,
        batch_size: int,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        max_length: int | None = None,
        *,
        dtype: Any = jnp.float32,
    ) -> SeriesState:
        dtype = accumulation_dtype(dtype)
        sums = (batch_size, self.order + 1, num_heads, key_dim)
        return SeriesState(
            smallest=jnp.full((batch_size, num_heads, key_dim), jnp.inf, dtype),
            s=jnp.zeros(sums, dtype),
            z=jnp.zeros(sums, dtype),
        )

    def lift(self, k: Array, v: Array, query: Array | None = None) -> SeriesState:
        """Equations 10, 12 and 13: K_i e^(-k_i^2) with the shift of the token itself."""
        # The shift cancels from the output: a constant, to gradients as well.
        smallest = jax.lax.stop_gradient(jnp.abs(k))
        weight = jnp.exp((smallest - k) * (smallest + k))  # 1, with the gradient of e^(-k^2)
        z = powers(k / _unit(smallest), self.order) * jnp.expand_dims(weight, -3)
        return SeriesState(smallest, z * jnp.expand_dims(v, -3), z)

    def _merge(self, state_a: SeriesState, state_b: SeriesState) -> SeriesState:
        """Sums add up, relative to the smaller of the two shifts."""
        smallest = jnp.minimum(state_a.smallest, state_b.smallest)
        a = self._shift(state_a.smallest, smallest)
        b = self._shift(state_b.smallest, smallest)
        return SeriesState(smallest, a * state_a.s + b * state_b.s, a * state_a.z + b * state_b.z)

    def _shift(self, old: Array, new: Array) -> Array:
        """(r_old / r_new)^n exp(new^2 - old^2) [..., order + 1, H, K]; 0 of an empty sum."""
        old, new = jax.lax.stop_gradient((old, new))
        empty = jnp.isinf(old)
        old, new = (jnp.where(empty, jnp.zeros_like(x), x) for x in (old, new))
        exponent = jnp.arange(self.order + 1, dtype=old.dtype)[:, None, None]
        growth = exponent * jnp.expand_dims(jnp.log(_unit(old) / _unit(new)), -3)
        factor = jnp.exp(jnp.expand_dims((new - old) * (new + old), -3) + growth)
        return jnp.where(jnp.expand_dims(empty, -3), jnp.zeros_like(factor), factor)

    def read(self, q: Array | None, state: SeriesState) -> Array:
        """Equations 14-16: sums over n of (2 q r)^n / n! times s and z."""
        if q is None:
            raise ValueError(f"{self.name!r} reads its state by a query, got none.")
        smallest = jax.lax.stop_gradient(state.smallest)
        unit = jnp.where(jnp.isinf(smallest), jnp.ones_like(smallest), _unit(smallest))
        term = scaled_exponential_terms(2 * q * unit, self.order)
        return safe_divide(jnp.sum(term * state.s, axis=-3), jnp.sum(term * state.z, axis=-3))

    def _reference(self, q: Queries, k: Keys, v: Values, visible: Visible) -> Outputs:
        x = 2 * q[:, :, None] * k[:, None]  # [B, T, S, H, K]
        term = polynomial = jnp.ones_like(x)
        for n in range(1, self.order + 1):
            term = term * x / n
            polynomial = polynomial + term
        seen = visible[..., None, None]
        score = jnp.where(seen, -(k[:, None] ** 2), -jnp.inf)
        shift = jax.lax.stop_gradient(jnp.max(score, axis=2, keepdims=True))
        weight = exp_difference(score, shift) * polynomial
        return safe_divide(jnp.sum(weight * v[:, None], axis=2), jnp.sum(weight, axis=2))


def powers(x: Array, order: int) -> Array:
    """x^0 ... x^order on a new axis before the last two, by products: 0^0 = 1.

    Example:
        >>> import jax.numpy as jnp
        >>> powers(jnp.array([[0.0, 2.0]]), 3)[:, 0].tolist()
        [[1.0, 1.0], [0.0, 2.0], [0.0, 4.0], [0.0, 8.0]]
    """
    terms = [jnp.ones_like(x)]
    for _ in range(order):
        terms.append(terms[-1] * x)
    return jnp.stack(terms, axis=-3)


def scaled_exponential_terms(x: Array, order: int) -> Array:
    """x^n / n! for n = 0 ... order, axis as in ``powers``, times a factor common to all n.

    The factor is 1 unless the last term would come near the largest number of the dtype; it is a
    constant to ``jax.grad``. For ratios, from which it cancels.

    Example:
        >>> import jax.numpy as jnp
        >>> scaled_exponential_terms(jnp.array([[2.0]]), 3).ravel().tolist()
        [1.0, 2.0, 2.0, 1.3333333730697632]
    """
    room = 1e15 if x.dtype == jnp.float32 else 1e100
    largest = (room * math.factorial(order)) ** (1 / max(order, 1))
    size = jax.lax.stop_gradient(jnp.abs(x))
    factor = largest / jnp.maximum(size, largest)  # at most 1
    x = x * factor
    rising, falling = [jnp.ones_like(x)], [jnp.ones_like(x)]
    for n in range(1, order + 1):
        rising.append(rising[-1] * x / n)
        falling.append(falling[-1] * factor)
    return jnp.stack([a * b for a, b in zip(rising, reversed(falling), strict=True)], axis=-3)


def _unit(smallest: Array) -> Array:
    """r = max(1, a), the unit in which keys are measured."""
    return jnp.maximum(smallest, jnp.ones_like(smallest))
