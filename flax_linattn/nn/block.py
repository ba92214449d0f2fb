"""The transformer block, after Time-Series-Library's encoder layer and min-DT's block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
from flax import nnx
from jax.typing import DTypeLike

from flax_linattn import ops
from flax_linattn.nn.attention import Attention
from flax_linattn.nn.linear import linear
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, SegmentIds, State

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
}
"""Activations by name; GELU is the exact one, as in PyTorch."""

LAYER_NORM_EPSILON = 1e-5
"""PyTorch's default, which all host repositories of the papers use."""


class FeedForward(nnx.Module):
    """Two linear layers with an activation between, dropout after each.

    Args:
        features: C.
        hidden_features: width between the layers.
        activation: "gelu" or "relu".
        dropout_rate: share of features dropped in training.
        dtype: dtype of the computation.
        rngs: holds the stream "params".

    Raises:
        ValueError: the activation is unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> nn.FeedForward(8, 32, rngs=nnx.Rngs(0))(jnp.ones((2, 5, 8))).shape
        (2, 5, 8)
    """

    def __init__(
        self,
        features: int,
        hidden_features: int,
        *,
        activation: str = "gelu",
        dropout_rate: float = 0.0,
        dtype: DTypeLike | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"unknown activation {activation!r}; choose one of: {', '.join(ACTIVATIONS)}."
            )
        self.activation = activation
        self.expand = linear(features, hidden_features, dtype=dtype, rngs=rngs)
        self.contract = linear(hidden_features, features, dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(self, x: Array, *, dropout_key: Array | None = None) -> Array:
        """Maps x [..., C] -> [..., C]; dropout only with a key."""
        key, key_out = split_key(dropout_key, 2)
        x = ACTIVATIONS[self.activation](self.expand(x))
        x = apply_dropout(self.dropout, x, key)
        return apply_dropout(self.dropout, self.contract(x), key_out)


class TransformerBlock(nnx.Module):
    """Attention and feed-forward with residuals, normalised before (pre) or after (post).

    Post: x = LN(x + attention(x)); x = LN(x + feed_forward(x)). Pre: x = x +
    attention(LN(x)); x = x + feed_forward(LN(x)). With width 512 and hidden 2048 it has the
    3,152,384 parameters of the Aaren paper's transformer (section 4.5) and 3,152,896 with
    Aaren. Departure from the hosts: no dropout on attention weights, which a scan never
    forms; the attention's output has it.

    Args:
        features: C.
        num_heads: H.
        hidden_features: width of the feed-forward layer, default 4 C.
        mechanism: a name or a mechanism.
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
        >>> block = nn.TransformerBlock(16, 4, mechanism="aaren", rngs=nnx.Rngs(0))
        >>> block(jnp.ones((2, 5, 16)), is_causal=True).shape
        (2, 5, 16)
    """

    def __init__(
        self,
        features: int,
        num_heads: int,
        *,
        hidden_features: int | None = None,
        mechanism: str | ops.Mechanism = "softmax",
        norm: Literal["pre", "post"] = "pre",
        activation: str = "gelu",
        dropout_rate: float = 0.0,
        dtype: DTypeLike | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        if norm not in ("pre", "post"):
            raise ValueError(f"norm must be 'pre' or 'post', got {norm!r}.")
        self.norm = norm
        self.attention = Attention(features, num_heads, mechanism=mechanism, dtype=dtype, rngs=rngs)
        self.feed_forward = FeedForward(
            features,
            4 * features if hidden_features is None else hidden_features,
            activation=activation,
            dropout_rate=dropout_rate,
            dtype=dtype,
            rngs=rngs,
        )
        self.attention_norm = LayerNorm(features, rngs=rngs)
        self.feed_forward_norm = LayerNorm(features, rngs=rngs)
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(
        self,
        x: Features,
        *,
        is_causal: bool = False,
        mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        state: State | None = None,
        return_state: bool = False,
        dropout_key: Array | None = None,
        form: str = "auto",
    ) -> Any:
        """Maps x [B, T, C] -> y [B, T, C], and the state if asked for; see ``Attention``.

        Dropout acts only when ``dropout_key`` is given. Outputs at masked positions mean nothing.
        """
        x = zero_padding(x, mask)

        def attend(x: Array) -> tuple[Array, State]:
            y = self.attention(
                x,
                is_causal=is_causal,
                mask=mask,
                segment_ids=segment_ids,
                state=state,
                return_state=return_state,
                form=form,
            )
            return y if return_state else (y, None)

        y, state = self._sublayers(x, attend, dropout_key)
        return (y, state) if return_state else y

    def init_state(self, batch_size: int, max_length: int | None = None) -> State:
        """The state before the first token; see ``Attention.init_state``."""
        return self.attention.init_state(batch_size, max_length)

    def step(
        self, x: FeaturesStep, state: State, *, mask: Array | None = None
    ) -> tuple[FeaturesStep, State]:
        """Takes in one token a row: x [B, C] -> y [B, C] and the new state."""
        return self._sublayers(x, lambda x: self.attention.step(x, state, mask=mask), None)

    def _sublayers(
        self, x: Array, attend: Callable[[Array], tuple[Array, State]], dropout_key: Array | None
    ) -> tuple[Array, State]:
        """The block around either form of its attention."""
        key_attention, key_feed_forward = split_key(dropout_key, 2)
        if self.norm == "pre":
            y, state = attend(self.attention_norm(x))
            x = x + apply_dropout(self.dropout, y, key_attention).astype(x.dtype)
            y = self.feed_forward(self.feed_forward_norm(x), dropout_key=key_feed_forward)
            return x + y.astype(x.dtype), state
        y, state = attend(x)
        x = self.attention_norm(x + apply_dropout(self.dropout, y, key_attention).astype(x.dtype))
        y = self.feed_forward(x, dropout_key=key_feed_forward)
        return self.feed_forward_norm(x + y.astype(x.dtype)), state


class LayerNorm(nnx.LayerNorm):
    """Layer normalisation with PyTorch's epsilon, in the accumulation dtype of its input.

    Args:
        features: C.
        rngs: holds the stream "params".

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> norm = LayerNorm(8, rngs=nnx.Rngs(0))
        >>> norm.epsilon, norm(jnp.ones((2, 8), jnp.bfloat16)).dtype
        (1e-05, dtype(bfloat16))
    """

    def __init__(self, features: int, *, rngs: nnx.Rngs) -> None:
        # Flax's fast variance E[x^2] - E[x]^2 loses all digits where the mean is large.
        super().__init__(features, epsilon=LAYER_NORM_EPSILON, use_fast_variance=False, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        """Normalises x [..., C] over C, in its dtype; ``mask`` as in ``nnx.LayerNorm``."""
        # nnx.LayerNorm mixes bfloat16 and float32, which strict dtype promotion refuses.
        return super().__call__(x.astype(accumulation_dtype(x.dtype)), mask=mask).astype(x.dtype)


def split_key(key: Array | None, count: int) -> list[Array | None]:
    """Splits a dropout key; no key gives no keys.

    Example:
        >>> split_key(None, 2)
        [None, None]
    """
    return [None] * count if key is None else list(jax.random.split(key, count))


def apply_dropout(dropout: nnx.Dropout, x: Array, key: Array | None) -> Array:
    """Dropout with an explicit key; none without one, so that no module holds random state."""
    return dropout(x, deterministic=key is None, rngs=key)
