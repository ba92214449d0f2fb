"""Expressive attention: weights from the squared dot product.

Gros, "Reorganizing attention-space geometry with expressive attention", 2024 (arXiv
2407.18601). Symbols against the paper's:

=========  ==================================================================
here       paper
=========  ==================================================================
z          scale q_i . k_j
scale      beta, the factor of the scores, which the paper sets to 1
weight     z^2 / (1 + z^2), normalized by its sum over the visible j
           (equation 2)
=========  ==================================================================

``expressive`` is the paper's. ``expressive_quadratic`` omits the denominator: weight z^2, whose
features are the products of coordinates, so a state of K (K + 1) / 2 (V + 1) numbers per head
replaces the past. With |z| far below 1 the two agree up to a relative O(z^2); with |z| above 1
``expressive`` saturates (all large scores have equal weight), and z^2 does not. The output of
``expressive_quadratic`` does not depend on ``scale``, which cancels.

The kernel z^2 is published: it is ReBased's without its learned affine map and normalization
(Aksenov et al., "Linear Transformers with Learnable Kernel Functions are Better In-Context Models",
2024, arXiv 2402.10644), and symmetric power attention with p = 2 (Buckman, Gelada and Zhang,
"Symmetric Power Transformers", 2024). Ours is its use as the streaming form of expressive
attention, with masks, packing, states and exact gradients. Keys are clipped to 7e10, so that their
squares fit float32.

Departures: a row whose weights are all 0 (a zero query, a first token orthogonal to itself) gives 0
instead of 0/0. The mask acts on the weights, after the nonlinearity: before it, a score of minus
infinity would have the maximum weight.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from flax_linattn.ops.contract.averages import average_by_head
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.numerics import ScoreScale, einsum
from flax_linattn.ops.contract.pair_inputs import PairInputs, weight_shape
from flax_linattn.ops.engine.blocks import WeightFunction
from flax_linattn.ops.engine.features import clip_key, normalize_by_max, symmetric_square
from flax_linattn.ops.engine.polynomial_kernel import PolynomialMechanism
from flax_linattn.ops.engine.scored import ScoredAttention
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible

MAX_SCORE = 1e9
"""Scores are clipped here: z^2 stays finite in float32, and z^2 / (1 + z^2) is 1 to rounding."""


def _scores(q: Array, k: Array, scale: float | Array) -> Array:
    return einsum("bthk,bshk->bhts", q, k) * jnp.asarray(scale).astype(q.dtype)


def _level(z: Array) -> Array:
    return jnp.minimum(jnp.max(jnp.abs(z), axis=-1), 1)


def _weight(z: Array, level: Array) -> Array:
    # A common factor of a row cancels: squares of tiny scores do not underflow.
    z = jnp.clip(z, -MAX_SCORE, MAX_SCORE)
    return jnp.square(z / _divisor(level)) / (1 + z * z)


def _slope(z: Array, level: Array) -> Array:
    z, level = jnp.clip(z, -MAX_SCORE, MAX_SCORE), _divisor(level)
    return 2 * (z / level) / jnp.square(1 + z * z) / level


def _divisor(level: Array) -> Array:
    return jnp.where(level == 0, jnp.ones_like(level), level)


def _rescale(old: Array, new: Array) -> Array:
    return jnp.square(old / _divisor(new))


RATIONAL = WeightFunction(
    masked_score=0, initial_level=0, level=_level, weight=_weight, slope=_slope, rescale=_rescale
)
"""z^2 / (1 + z^2), relative to the square of the row's maximum |z| where that is below 1."""


@dataclasses.dataclass(frozen=True)
class Expressive(ScoredAttention):
    """Expressive attention, weight z^2 / (1 + z^2) (module docstring: symbols, departures).

    Attributes:
        scale: Factor of the scores if a call passes none; the paper's beta.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> expressive = ops.get_mechanism("expressive")
        >>> q = jnp.array([[1.0, 0.0]])[None, :, None]            # one query
        >>> k = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])[None, :, None]
        >>> v = jnp.array([[1.0], [2.0], [9.0]])[None, :, None]
        >>> expressive.attend(q, k, v).ravel().tolist()           # parallel, antiparallel alike
        [1.5]
    """

    name: ClassVar[str] = "expressive"
    about: ClassVar[str] = "expressive attention: weights from the squared dot product (Gros, 2024)"
    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=False, pair_mask=True, bias=True, weight_dropout=True
    )
    weight_function: ClassVar[WeightFunction] = RATIONAL

    scale: float = 1.0

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        per_pair = PairInputs.check(parameters, *weight_shape(q, k))
        pairs = per_pair.visible_pairs(visible)
        z = per_pair.add_bias(_scores(q, k, self._scale(q.shape[-1], parameters)), pairs)
        weight = z**2 / (1 + z**2)  # equation 2
        weight = jnp.where(pairs, weight, jnp.zeros_like(weight))
        return per_pair.poison(average_by_head(weight, v, per_pair.drop), pairs)


@dataclasses.dataclass(frozen=True)
class ExpressiveQuadratic(ScoreScale, PolynomialMechanism):
    """Squared dot product as the weight, in linear time (module docstring).

    Attributes:
        scale: Factor of the scores, which cancels unless it is 0.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> quadratic, expressive = map(ops.get_mechanism, ("expressive_quadratic", "expressive"))
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> small = expressive.attend(q, k, v, scale=1e-3)       # z far below 1: they agree
        >>> bool(jnp.allclose(quadratic.attend(q, k, v), small, atol=1e-3))
        True
        >>> quadratic.init_state(2, 4, 8, 8).value.shape         # 8 * 9 / 2 features
        (2, 4, 36, 8)
    """

    name: ClassVar[str] = "expressive_quadratic"
    about: ClassVar[str] = (
        "expressive attention without its denominator, as linear attention with the squared "
        "kernel of ReBased (after Aksenov et al., 2024)"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(constant_memory=True, mergeable=True)
    parameters: ClassVar[tuple[str, ...]] = ("scale",)
    polynomial: ClassVar[tuple[float, ...]] = (1.0, 0.0, 0.0)

    scale: float = 1.0

    def prepare(
        self, q: Array, k: Array, v: Array, parameters: Parameters
    ) -> tuple[Array, Array, Array]:
        # The length of a query cancels: long ones do not overflow, short ones do not underflow.
        return normalize_by_max(q * self._scale(q, parameters)), clip_key(k), v

    def query_features(self, q: Array) -> Array:
        return symmetric_square(q)

    def key_features(self, k: Array) -> Array:
        return symmetric_square(k)

    def kernel(self, q: Array, k: Array) -> Array:
        return jnp.square(einsum("bhtk,bhsk->bhts", q, k))

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        weight = _scores(q, k, self._scale(q, parameters)) ** 2
        weight = jnp.where(visible[:, None], weight, jnp.zeros_like(weight))
        return average_by_head(weight, v)
