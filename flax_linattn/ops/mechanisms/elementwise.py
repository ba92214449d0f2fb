"""Element-wise attention (EA) and its Taylor form, EA-series.

"Element-wise Attention Is All You Need", 2025. Symbols against the paper's:

==============  ============================================================
here            paper
==============  ============================================================
q, k, v         q_i, k_j, v_j; every channel attends independently, and
                heads only group the channels
score           -|q_ic - k_jc|; the paper's o_ijc is -score^2 (equation 1)
y               y_i (equation 2); for the series equations 5, 6 and 14-16
order           t of EA-t, the highest exponent of the polynomial
terms           t of figure 2, the number of terms: exponents 0 ... t - 1
s, z            s_i, z_i (equations 8, 9, 12, 13), see SeriesState
==============  ============================================================

Departures: in ``elementwise``, weights are relative to the weight of the nearest key, as
e^((a - d) (a + d)) for distances a and d: at large distances the difference of rounded or infinite
squares would be far off. Distances are clipped to a 32nd of the dtype's maximum (1e37 in float32).

In ``elementwise_series``, the paper's text names EA-2 and EA-6 after the highest exponent, which is
even so that the polynomial is positive, while its figure 2 and equations 7-11 stop one exponent
earlier; here ``order`` is the highest exponent, and ``terms`` reproduces the listing. e^(-k^2)
underflows in float32 beyond |k| = 10, where the paper's sums are 0/0: here they are relative to the
smallest |k| so far.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flax_linattn.checks import check_integers
from flax_linattn.ops.contract.averages import average_by_channel
from flax_linattn.ops.contract.call import Call
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.numerics import exp_difference
from flax_linattn.ops.contract.pair_inputs import PairInputs, weight_shape
from flax_linattn.ops.contract.state import StateSizes
from flax_linattn.ops.engine import prefix, series
from flax_linattn.ops.engine.channelwise import ChannelwiseSoftmax
from flax_linattn.ops.engine.forms import even_chunk_size
from flax_linattn.ops.engine.series import SeriesState
from flax_linattn.ops.engine.series_scan import series_scan
from flax_linattn.ops.engine.streaming import StreamingMechanism
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible


def max_distance(dtype: DTypeLike) -> float:
    """Returns the limit to which distances are clipped, so that twice a distance is finite.

    Example:
        >>> import jax.numpy as jnp
        >>> f"{max_distance(jnp.float32):.3g}"
        '1.06e+37'
    """
    return float(jnp.finfo(dtype).max) / 32


@dataclasses.dataclass(frozen=True)
class Elementwise(ChannelwiseSoftmax):
    """Element-wise attention, exact (module docstring: symbols).

    Attributes:
        chunk_size: Maximum number of queries, and of keys, per block in the chunked form.

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
    about: ClassVar[str] = (
        "exact element-wise attention: every channel weights tokens by distance "
        "(Element-wise Attention Is All You Need, 2025)"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=False, channelwise=True, pair_mask=True
    )

    def scores(self, q: Array, k: Array, bias: Array | None) -> Array:
        # Negative distances instead of scores: ``relative_weight`` squares them.
        return -jnp.minimum(jnp.abs(q - k), max_distance(q.dtype))

    def relative_weight(self, score: Array, maximum: Array) -> Array:
        # e^(a^2 - d^2) for scores -d and -a: exactly 1 where they are equal, never more. Invisible
        # keys, -inf, are clipped to twice the maximum distance: an infinite factor would make the
        # gradient NaN.
        score = jnp.maximum(score, -2 * max_distance(score.dtype))
        nearest = jnp.maximum(maximum, -max_distance(maximum.dtype))
        return jnp.exp((nearest - score) * (nearest + score))

    def log_weight(self, q: Array, k: Array, bias: Array | None) -> Array:
        # The true scores -d^2, not the distances of ``scores``.
        limit = max_distance(q.dtype)
        return -(jnp.clip(q - k, -limit, limit) ** 2)

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        distance = jnp.abs(q[:, :, None] - k[:, None])  # [B, T, S, H, K]
        per_pair = PairInputs.check(parameters, *weight_shape(q, k))
        attended = jnp.moveaxis(per_pair.visible_pairs(visible), 1, 3)[..., None]
        nearest = jax.lax.stop_gradient(
            jnp.min(
                jnp.where(attended, distance, max_distance(distance.dtype)), axis=2, keepdims=True
            )
        )
        distance = jnp.where(attended, distance, nearest)
        # Equations 1 and 2, over the weight of the nearest: e^(-d^2) = e^(-a^2) e^(a^2 - d^2).
        weight = jnp.exp((nearest - distance) * (nearest + distance))
        return average_by_channel(jnp.where(attended, weight, 0), v)


@dataclasses.dataclass(frozen=True)
class ElementwiseSeries(StreamingMechanism):
    """EA-series: element-wise attention with a Taylor polynomial for e^(2qk).

    Attributes:
        order: Highest exponent of the polynomial; EA-2 and EA-6 are order 2 and 6. An even order
            has positive weights, an odd one does not. Where 2qk is far below 0 the terms cancel,
            more so at higher orders: in float32 outputs have an error of 1e-5 up to order 6, of
            1e-4 at order 12 and of 1e-2 at order 20.
        terms: Number of terms, order + 1, as in the paper's listing (its figure 2 with t = 6 is
            ``terms=6``: order 5, not positive). Pass it instead of ``order``.
        allow_odd_order: Whether to accept an odd ``order`` in spite of its negative weights.

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
    about: ClassVar[str] = (
        "Taylor series of element-wise attention, EA-2 and EA-6 "
        "(Element-wise Attention Is All You Need, 2025)"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=True, channelwise=True, mergeable=True
    )
    scan: ClassVar[str] = "series"

    order: int = 6
    terms: int | None = None
    allow_odd_order: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.terms is not None:
            check_integers(1, terms=self.terms)
            if self.order not in (type(self).order, self.terms - 1):
                raise ValueError(
                    f"pass either order (the highest exponent) or terms (order + 1), not both; got "
                    f"order={self.order} and terms={self.terms}."
                )
            for name, value in (("order", self.terms - 1), ("terms", None)):
                object.__setattr__(self, name, value)
            object.__setattr__(self, "allow_odd_order", True)
            return
        check_integers(0, order=self.order)
        if self.order % 2 and not self.allow_odd_order:
            raise ValueError(
                f"order {self.order} is odd: its polynomial is negative far below 0, and so are "
                f"weights; take {self.order - 1} or {self.order + 1}, or allow_odd_order=True."
            )

    def _init_state(self, sizes: StateSizes) -> SeriesState:
        batch, channels = sizes.batch_size, (sizes.num_heads, sizes.key_dim)
        sums = (batch, self.order + 1, *channels)
        return SeriesState(
            min_magnitude=jnp.full((batch, *channels), jnp.inf, sizes.dtype),
            s=jnp.zeros(sums, sizes.dtype),
            z=jnp.zeros(sums, sizes.dtype),
        )

    def lift(self, k: Array, v: Array, query: Array | None = None) -> SeriesState:
        # Equations 10, 12 and 13: K_i e^(-k_i^2), relative to the token's own |k|. That shift
        # cancels from the output and is a constant to gradients.
        min_magnitude = jax.lax.stop_gradient(jnp.abs(k))
        z = series.geometric_terms(
            series.relative_weight(k, min_magnitude), k / series.key_unit(min_magnitude), self.order
        )  # a weight of 1, with the gradient of e^(-k^2)
        return SeriesState(min_magnitude, series.stack([x * v for x in z]), series.stack(z))

    def _merge(self, state_a: SeriesState, state_b: SeriesState) -> SeriesState:
        return series.merge(state_a, state_b)

    def read(self, q: Array | None, state: SeriesState) -> Array:
        return series.read(self._require_query(q), state)  # equations 14-16

    def _make_monoid(self, q: Array, identity: SeriesState) -> prefix.Monoid:
        def reduce(tokens: dict[str, Array], keep: Array | None) -> SeriesState:
            return series.total(tokens["k"], tokens["v"], keep, self.order)

        return super()._make_monoid(q, identity)._replace(reduce=reduce)

    def _chunk_size(self, call: Call, identity: SeriesState) -> int | None:
        size, length = super()._chunk_size(call, identity), call.k.shape[1]
        if call.form != "auto" or call.is_causal or size is not None or length < 2:
            return size
        # In one chunk XLA on a CPU recomputes the sums for every query that reads them, and layers
        # took 6 times as long to train. It does not fuse across a loop.
        return even_chunk_size(length, -(-length // 2))

    def _attend_causal(
        self, call: Call, q: Array, tokens: dict[str, Array]
    ) -> tuple[Outputs, SeriesState]:
        return series_scan(
            q,
            tokens["k"],
            tokens["v"],
            self._initial_state(call),
            mask=call.mask,
            starts=call.starts,
            form=call.form,
            chunk_size=self.chunk_size,
        )

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        x = 2 * q[:, :, None] * k[:, None]  # [B, T, S, H, K]
        term = polynomial = jnp.ones_like(x)
        for n in range(1, self.order + 1):
            term = term * x / n
            polynomial = polynomial + term
        attended = visible[..., None, None]
        score = jnp.where(attended, -(k[:, None] ** 2), -jnp.inf)
        shift = jax.lax.stop_gradient(jnp.max(score, axis=2, keepdims=True))
        weight = exp_difference(score, shift) * polynomial
        return average_by_channel(weight, v)
