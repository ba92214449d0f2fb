"""Random feature attention: Peng et al., 2021, without its gate.

The weight of key j for query i is phi(q_i) . phi(k_j) with q and k of length 1 and phi(x) = [sin(W
x), cos(W x)] / sqrt(M), W = Gaussian rows times ``feature_scale`` (their sigma), one number for
each head and channel. Departure from the code that the TaylorShift experiments ran: it sampled W
separately for q and for k, whose features are then unrelated; here they share one sample. Weights
can be negative, and where their sum nearly vanishes the output is large.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.checks import MAX_SEED, check_integers
from flax_linattn.ops.contract.averages import average_by_token
from flax_linattn.ops.contract.capabilities import Capabilities, LearnedParameter
from flax_linattn.ops.contract.numerics import einsum
from flax_linattn.ops.engine.features import l2_normalize
from flax_linattn.ops.engine.kernel import KernelMechanism
from flax_linattn.ops.engine.random_features import gaussian
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible


@dataclasses.dataclass(frozen=True)
class RandomFeatureAttention(KernelMechanism):
    """Random feature attention (module docstring: symbols, departures).

    Attributes:
        num_features: Number of rows of W, M.
        seed: Seed of W.

    Example:
        >>> import jax
        >>> from flax_linattn import ops
        >>> rfa = ops.get_mechanism("rfa")
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> y, state = rfa.attend(q, k, v, is_causal=True, return_state=True)
        >>> y.shape, state.value.shape                       # sines and cosines
        ((2, 10, 4, 8), (2, 4, 128, 8))
    """

    name: ClassVar[str] = "rfa"
    about: ClassVar[str] = "linear attention with random Fourier features (Peng et al., 2021)"
    capabilities: ClassVar[Capabilities] = Capabilities(constant_memory=True, mergeable=True)
    parameters: ClassVar[tuple[str, ...]] = ("feature_scale",)

    num_features: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(1, num_features=self.num_features)
        check_integers(0, MAX_SEED, seed=self.seed)

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, LearnedParameter]:
        return {"feature_scale": LearnedParameter((num_heads, key_dim), jax.nn.initializers.ones)}

    def prepare(
        self, q: Array, k: Array, v: Array, parameters: Parameters
    ) -> tuple[Array, Array, Array]:
        q, k = l2_normalize(q), l2_normalize(k)
        feature_scale = parameters.get("feature_scale")
        if feature_scale is None:
            return q, k, v
        if feature_scale.shape != q.shape[-2:]:
            raise ValueError(
                f"feature_scale must have shape [H, K] = {q.shape[-2:]}, got {feature_scale.shape}."
            )
        scale = feature_scale.astype(q.dtype)
        return q * scale, k * scale, v

    def query_features(self, q: Array) -> Array:
        return self._waves(q)

    def key_features(self, k: Array) -> Array:
        return self._waves(k)

    def _waves(self, x: Array) -> Array:
        w = jnp.asarray(gaussian(self.num_features, x.shape[-1], self.seed), x.dtype)
        angle = einsum("...k,mk->...m", x, w)
        waves = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
        return waves * self.num_features**-0.5

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        q, k, v = self.prepare(q, k, v, parameters)
        w = jnp.asarray(gaussian(self.num_features, q.shape[-1], self.seed), q.dtype)
        difference = q[:, :, None] - k[:, None]  # sin a sin b + cos a cos b = cos(a - b)
        weight = jnp.mean(jnp.cos(einsum("btshk,mk->btshm", difference, w)), axis=-1)
        weight = jnp.where(visible[..., None], weight, jnp.zeros_like(weight))
        return average_by_token(weight, v)
