"""The decoder block: attention to itself, to a memory, and a feed-forward layer."""

from __future__ import annotations

from typing import Any, Literal

from flax import nnx
from jax.typing import DTypeLike

from flax_linattn import ops
from flax_linattn.nn.attention import Attention, resolve_mechanism
from flax_linattn.nn.block import FeedForward, LayerNorm, apply_dropout, split_key
from flax_linattn.typing import Array, Features


class DecoderBlock(nnx.Module):
    """Causal self-attention, cross-attention to a memory and feed-forward, with residuals.

    After Time-Series-Library's decoder layer (post) and its pre-norm twin. Where the mechanism
    offers no cross-attention, that is softmax attention.

    Args:
        features: C.
        num_heads: H.
        hidden_features: width of the feed-forward layer, default 4 C.
        mechanism: a name or a mechanism, with a causal form.
        norm: "pre" or "post".
        activation: "gelu" or "relu".
        dropout_rate: share of features dropped in training.
        dtype: dtype of the computation.
        rngs: holds the stream "params".

    Raises:
        ValueError: an unknown norm, activation or mechanism, or heads that do not divide C.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> block = nn.DecoderBlock(16, 4, mechanism="aaren", rngs=nnx.Rngs(0))
        >>> block(jnp.ones((2, 5, 16)), jnp.ones((2, 9, 16))).shape
        (2, 5, 16)
    """

    def __init__(
        self,
        features: int,
        num_heads: int,
        *,
        hidden_features: int | None = None,
        mechanism: str | ops.Mechanism = "softmax",
        norm: Literal["pre", "post"] = "post",
        activation: str = "gelu",
        dropout_rate: float = 0.0,
        dtype: DTypeLike | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        if norm not in ("pre", "post"):
            raise ValueError(f"norm must be 'pre' or 'post', got {norm!r}.")
        mechanism = resolve_mechanism(mechanism)
        cross = mechanism if mechanism.capabilities.cross else ops.get_mechanism("softmax")
        options: dict[str, Any] = {"dtype": dtype, "rngs": rngs}
        self.norm = norm
        self.attention = Attention(features, num_heads, mechanism=mechanism, **options)
        self.cross_attention = Attention(features, num_heads, mechanism=cross, **options)
        self.feed_forward = FeedForward(
            features,
            4 * features if hidden_features is None else hidden_features,
            activation=activation,
            dropout_rate=dropout_rate,
            **options,
        )
        self.norms = nnx.List(LayerNorm(features, rngs=rngs) for _ in range(3))
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(
        self, x: Features, memory: Features, *, dropout_key: Array | None = None
    ) -> Features:
        """Maps x [B, T, C], with memory [B, S, C] to look at, -> y [B, T, C]."""
        keys = split_key(dropout_key, 3)
        sublayers = (
            lambda x: apply_dropout(self.dropout, self.attention(x, is_causal=True), keys[0]),
            lambda x: apply_dropout(self.dropout, self.cross_attention(x, memory), keys[1]),
            lambda x: self.feed_forward(x, dropout_key=keys[2]),
        )
        for norm, sublayer in zip(self.norms, sublayers, strict=True):
            if self.norm == "pre":
                x = x + sublayer(norm(x)).astype(x.dtype)
            else:
                x = norm(x + sublayer(x).astype(x.dtype))
        return x
