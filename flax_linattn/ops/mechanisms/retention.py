"""Retention: Sun et al., "Retentive Network", 2023.

    S_t = gamma_h S_{t-1} + k_t v_t^T,   y_t = scale q_t S_t,   gamma_h = 1 - 2**(-5 - h)

for heads h = 0, 1, ... (their equations 5 and 8): gated linear attention with one fixed decay per
head. Departures: their rotation of queries and keys is ``RotaryPosition`` of a layer; their group
normalization and output gate are not included; padding does not decay.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from flax_linattn.ops.mechanisms.gated_linear import DecayedSums
from flax_linattn.typing import Array, Parameters


@dataclasses.dataclass(frozen=True)
class Retention(DecayedSums):
    """Retention (module docstring: symbols, departures).

    Example:
        >>> import jax
        >>> from flax_linattn import ops
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> ops.get_mechanism("retention").attend(q, k, v, is_causal=True).shape
        (2, 10, 4, 8)
    """

    name: ClassVar[str] = "retention"
    about: ClassVar[str] = "linear attention with a fixed decay per head (Sun et al., 2023)"

    def fixed_token_arguments(self, k: Array, parameters: Parameters) -> dict[str, Array]:
        return {"log_decay": self._log_decay(k, parameters)}

    def _log_decay(self, k: Array, parameters: Parameters) -> Array:
        log_gamma = np.log1p(-(2.0 ** (-5.0 - np.arange(k.shape[-2]))))
        return jnp.broadcast_to(jnp.asarray(log_gamma, k.dtype), k.shape[:-1])

    def _channels(self, key_dim: int) -> int:
        return 1
