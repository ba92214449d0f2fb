"""Attention weights of a mechanism as an array, for inspection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn.ops.contract.mechanism import Mechanism
from flax_linattn.typing import Array, Keys, Latents, LearnedQuery, Mask, Queries, SegmentIds


def weights(
    mechanism: Mechanism,
    q: Queries | LearnedQuery | None,
    k: Keys,
    *,
    latents: Latents | None = None,
    is_causal: bool = False,
    mask: Mask | None = None,
    query_mask: Array | None = None,
    segment_ids: SegmentIds | None = None,
    **parameters: Any,
) -> Array:
    """Computes the dense attention weights, for short sequences.

    Every mechanism's output is linear in the values, y_t = sum_s w_ts v_s. The weights are its
    reference applied to one-hot values, so they include everything that the mechanism does:
    TaylorShift's factor sqrt(N / K), AFT's gate, Nystromformer's negative weights.

    Args:
        mechanism: Result of ``get_mechanism``.
        q: Queries of shape [B, T, H, K]; the learned query [H, K]; None with ``latents``.
        k: Keys of shape [B, S, H, K], or [B, S, G, K] as in ``attend``.
        latents: External queries of shape [L, H, K] or [B, L, H, K], as in ``attend``.
        is_causal: Whether attention is causal, as in ``attend``.
        mask: Boolean array of shape [B, S]; True marks valid tokens.
        query_mask: Boolean array of shape [B, T]; True marks positions whose weights are wanted.
        segment_ids: Integer array of shape [B, T].
        **parameters: The mechanism's own arguments and per-token inputs.

    Returns:
        Weights of shape [B, H, T, S]; [B, H, K, T, S] if ``capabilities.channelwise``, and [B, H,
        V, T, S] if a per-token input has one number per value channel. For latents [B, H, L, S], or
        [B, H, T, L, S] after each token if ``is_causal``.

    Raises:
        ValueError: If ``attend`` rejects the arguments.
        TypeError: If ``attend`` rejects the arguments.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> q, k = jax.random.normal(jax.random.key(0), (2, 1, 3, 2, 4))
        >>> w = ops.weights(ops.get_mechanism("expressive"), q, k, is_causal=True)
        >>> w.shape, w[0, 0, 0].tolist()
        ((1, 2, 3, 3), [1.0, 0.0, 0.0])
        >>> bool(jnp.allclose(w.sum(axis=-1), 1))
        True
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"mechanism must be a result of ops.get_mechanism, got {type(mechanism).__name__}."
        )
    batch, source, heads, _ = k.shape
    channels = _num_value_channels(mechanism, k, parameters)

    def column(one_hot: Array) -> Array:
        shape = (batch, source, heads, channels or 1)
        return mechanism.reference(
            q,
            k,
            jnp.broadcast_to(one_hot[None, :, None, None], shape),
            latents=latents,
            is_causal=is_causal,
            mask=mask,
            query_mask=query_mask,
            segment_ids=segment_ids,
            **parameters,
        )

    w = jax.vmap(column, out_axes=-1)(jnp.eye(source, dtype=k.dtype))  # [B, ..., H, V, S]
    w = jnp.moveaxis(w, (-3, -2), (1, 2))
    return w[:, :, 0] if channels is None else w


def _num_value_channels(mechanism: Mechanism, k: Keys, parameters: Mapping[str, Any]) -> int | None:
    """Returns the number of value channels with their own weights; None if all share them."""
    if mechanism.capabilities.channelwise:
        return k.shape[-1]
    for argument in mechanism.token_arguments:
        value = parameters.get(argument.name)
        shape = () if value is None else np.shape(value)
        if "V" in argument.axes and len(shape) == 2 + len(argument.axes):
            return int(shape[2 + argument.axes.index("V")])
    return None  # the mechanism rejects missing inputs and wrong shapes
