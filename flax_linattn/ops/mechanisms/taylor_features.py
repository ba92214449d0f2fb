"""Linear attention with the Taylor features of order 2 of the exponential.

The weight of key j for query i is 1 + x + x^2 / 2, x = scale q_i . k_j. With the default scale it
is the linear attention of Based (Arora et al., "Simple linear attention language models balance the
recall-throughput tradeoff", 2024, arXiv 2402.18668), whose model also has sliding windows and
convolutions. It is TaylorShift without its normalization, one of the feature maps that Zhang et
al., "The Hedgehog & the Porcupine", 2024, study, and what the element-wise attention paper calls
"Hedgehog" (its equation 20), unlike the learned feature map of that name. Departures: features are
the d (d + 1) / 2 distinct products of coordinates; keys are clipped to 7e10, so that their squares
fit float32.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from flax_linattn.ops.contract.averages import average_by_token
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.numerics import ScoreScale
from flax_linattn.ops.engine.features import clip_key, clip_query, quadratic_features
from flax_linattn.ops.engine.polynomial_kernel import PolynomialMechanism
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible


@dataclasses.dataclass(frozen=True)
class TaylorFeatures(ScoreScale, PolynomialMechanism):
    """Taylor feature linear attention of order 2 (module docstring).

    Attributes:
        scale: Factor of the scores if a call passes none; None means K**-0.5.

    Example:
        >>> import jax
        >>> from flax_linattn import ops
        >>> taylor = ops.get_mechanism("taylor_features")
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> taylor.attend(q, k, v, is_causal=True).shape
        (2, 10, 4, 8)
    """

    name: ClassVar[str] = "taylor_features"
    about: ClassVar[str] = (
        "linear attention with Taylor features of order 2, as in Based (Arora et al., 2024)"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(constant_memory=True, mergeable=True)
    parameters: ClassVar[tuple[str, ...]] = ("scale",)
    polynomial: ClassVar[tuple[float, ...]] = (0.5, 1.0, 1.0)

    scale: float | None = None

    def prepare(
        self, q: Array, k: Array, v: Array, parameters: Parameters
    ) -> tuple[Array, Array, Array]:
        return q * self._scale(q, parameters), clip_key(k), v

    def query_features(self, q: Array) -> Array:
        q, unit = clip_query(q)
        return quadratic_features(q, (0.5, 1.0, 1.0), unit)

    def key_features(self, k: Array) -> Array:
        return quadratic_features(k)

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        x = jnp.sum(q[:, :, None] * k[:, None], axis=-1) * self._scale(q, parameters)
        weight = jnp.where(visible[..., None], 1 + x + x**2 / 2, jnp.zeros_like(x))
        return average_by_token(weight, v)
