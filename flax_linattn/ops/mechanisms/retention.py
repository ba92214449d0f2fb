"""Retention: Sun et al., "Retentive Network", 2023.

    S_t = gamma_h S_{t-1} + k_t v_t^T,   y_t = scale q_t S_t,   gamma_h = 1 - 2**(-5 - h)

for heads h = 0, 1, ... (their equations 5 and 8): gated linear attention with one decay per head,
fixed as in the paper or learned. Departures: their rotation of queries and keys is
``RotaryPosition`` of a layer; their group normalization and output gate are not included; padding
does not decay.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn.ops.contract.capabilities import LearnedParameter
from flax_linattn.ops.mechanisms.gated_linear import DecayedSums
from flax_linattn.typing import Array, Parameters


@dataclasses.dataclass(frozen=True)
class Retention(DecayedSums):
    """Retention (module docstring: symbols, departures).

    Attributes:
        learned_decay: Whether layers learn ``decay_logit`` [H], with gamma = sigmoid(decay_logit);
            it starts at the paper's values. A call without ``decay_logit`` has the paper's decays.

    Example:
        >>> import jax
        >>> from flax_linattn import ops
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> ops.get_mechanism("retention").attend(q, k, v, is_causal=True).shape
        (2, 10, 4, 8)
        >>> learned = ops.get_mechanism("retention:learned_decay=True")
        >>> learned.attend(q, k, v, is_causal=True, decay_logit=jax.numpy.zeros(4)).shape
        (2, 10, 4, 8)
    """

    name: ClassVar[str] = "retention"
    about: ClassVar[str] = "linear attention with a fixed decay per head (Sun et al., 2023)"

    learned_decay: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        return ("scale", "decay_logit") if self.learned_decay else ("scale",)

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, LearnedParameter]:
        if not self.learned_decay:
            return {}
        return {"decay_logit": LearnedParameter((num_heads,), init_decay_logit)}

    def fixed_token_arguments(self, k: Array, parameters: Parameters) -> dict[str, Array]:
        return {"log_decay": self._log_decay(k, parameters)}

    def _log_decay(self, k: Array, parameters: Parameters) -> Array:
        heads, logit = k.shape[-2], parameters.get("decay_logit")
        if logit is None:
            log_gamma = jnp.asarray(np.log1p(-(2.0 ** (-5.0 - np.arange(heads)))), k.dtype)
        elif logit.shape != (heads,):
            raise ValueError(
                f"decay_logit must be one number per head, [H] = {(heads,)}, got {logit.shape}."
            )
        else:
            log_gamma = jax.nn.log_sigmoid(logit.astype(k.dtype))
        return jnp.broadcast_to(log_gamma, k.shape[:-1])

    def _channels(self, key_dim: int) -> int:
        return 1


def init_decay_logit(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Initializes to the paper's decays: sigmoid(log(2**(5 + h) - 1)) = 1 - 2**(-5 - h).

    Example:
        >>> import jax
        >>> decay = jax.nn.sigmoid(init_decay_logit(jax.random.key(0), (3,)))
        >>> (1 / (1 - decay)).round().astype(int).tolist()
        [32, 64, 128]
    """
    powers = 2.0 ** (5.0 + np.arange(shape[0]))
    return jnp.asarray(np.log(powers - 1), dtype)
