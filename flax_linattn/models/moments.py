"""Running means and standard deviations as a monoid: input normalization that streams."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float, Int

from flax_linattn.ops.contract.state import register_state
from flax_linattn.ops.engine import prefix
from flax_linattn.typing import Array, Mask

EPSILON = 1e-5
"""Added to variances, as in the Non-stationary Transformer (Liu et al., 2022)."""


@register_state
class MomentsState(NamedTuple):
    """Moments of the valid tokens so far; leaves [..., C] or [...].

    Attributes:
        num_tokens: Number of tokens, int32.
        weight: Total weight of the tokens; per channel if values may be missing.
        mean: Weighted mean.
        spread: Weighted sum of squared differences from the mean.
    """

    num_tokens: Int[Array, "..."]
    weight: Float[Array, "..."] | Float[Array, "... C"]
    mean: Float[Array, "... C"]
    spread: Float[Array, "... C"]


@dataclasses.dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of each channel over the tokens so far.

    Merged as Chan, Golub and LeVeque (1979) combine variances, which loses no digits if means are
    large. With ``memory`` older tokens have weight exp(-age / memory), so that the moments follow a
    drifting level over a stream of any length.

    Args:
        memory: Age in tokens at which a weight has decayed to 1/e; None weights all tokens equally.
        missing: Whether inputs are [..., 2 C], values followed by flags of missing ones (1; else
            0). Missing values have no weight, whatever their value, while all tokens age.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[[1.0], [3.0]]])
        >>> (mean, std), state = Moments()(x, Moments().init_state(1, 1))
        >>> mean.ravel().tolist(), std.ravel().round(3).tolist(), state.num_tokens.tolist()
        ([1.0, 2.0], [0.003000000026077032, 1.0], [2])
    """

    memory: float | None = None
    missing: bool = False

    def __call__(
        self,
        x: Float[Array, "B T N"],
        state: MomentsState,
        *,
        mask: Mask | None = None,
        starts: Array | None = None,
    ) -> tuple[tuple[Float[Array, "B T C"], Float[Array, "B T C"]], MomentsState]:
        """Computes the moments of every prefix.

        Args:
            x: Values float32 [B, T, C], 0 at masked positions; [B, T, 2 C] with ``missing``.
            state: State of the preceding tokens.
            mask: Boolean array of shape [B, T]; True marks valid tokens.
            starts: Bool [B, T], True = a packed segment begins here.

        Returns:
            (mean, standard deviation) after each token, and the state after the last one.
        """
        y, state = prefix.attend(
            prefix.scan_monoid(
                lift=self.lift,
                merge=self.merge,
                read=lambda _, state: jnp.concatenate(self.read(state), axis=-1),
                identity=self.init_state(x.shape[0], x.shape[2] // (1 + self.missing)),
            ),
            None,
            x,
            is_causal=True,
            mask=mask,
            starts=starts,
            initial=state,
            chunk_size=None,
        )
        mean, std = jnp.split(y, 2, axis=-1)
        return (mean, std), state

    def init_state(self, batch_size: int, num_channels: int) -> MomentsState:
        """Returns the state before the first token."""
        shape = (batch_size, num_channels)
        return MomentsState(
            jnp.zeros(batch_size, jnp.int32),
            jnp.zeros(shape if self.missing else batch_size, jnp.float32),
            jnp.zeros(shape, jnp.float32),  # an array each: a step reuses their memory
            jnp.zeros(shape, jnp.float32),
        )

    def lift(self, x: Float[Array, "... N"]) -> MomentsState:
        """Returns the states of single tokens."""
        count = jnp.ones(x.shape[:-1], jnp.int32)
        if self.missing:
            x, missing = jnp.split(x, 2, axis=-1)
            known = missing == 0
            x = jnp.where(known, x, 0)
            return MomentsState(count, known.astype(x.dtype), x, jnp.zeros_like(x))
        return MomentsState(count, jnp.ones(x.shape[:-1], x.dtype), x, jnp.zeros_like(x))

    def merge(self, a: MomentsState, b: MomentsState) -> MomentsState:
        """Merges the states of tokens a and of the tokens b that follow."""
        decay = jnp.ones_like(a.weight)
        if self.memory is not None:
            decay = jnp.exp(-b.num_tokens.astype(a.weight.dtype) / self.memory)
            decay = decay[..., None] if self.missing else decay
        earlier = a.weight * decay
        weight = earlier + b.weight
        fraction = b.weight / jnp.where(weight > 0, weight, 1.0)
        difference = b.mean - a.mean
        between = jnp.square(difference) * self._per_channel(earlier * fraction)
        return MomentsState(
            a.num_tokens + b.num_tokens,
            weight,
            a.mean + difference * self._per_channel(fraction),
            a.spread * self._per_channel(decay) + b.spread + between,
        )

    def read(self, state: MomentsState) -> tuple[Float[Array, "... C"], Float[Array, "... C"]]:
        """Returns mean and standard deviation; 0 and nearly 0 before the first token."""
        weight = self._per_channel(jnp.where(state.weight > 0, state.weight, 1.0))
        return state.mean, jnp.sqrt(state.spread / weight + EPSILON)

    def _per_channel(self, weight: Array) -> Array:
        return weight if self.missing else weight[..., None]
