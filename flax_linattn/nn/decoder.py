"""The decoder block: attention to itself, to a memory, and a feed-forward layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Unpack

from flax import nnx
from jax.typing import DTypeLike

from flax_linattn import ops
from flax_linattn.checks import choice
from flax_linattn.nn.attention import Attention, Context
from flax_linattn.nn.block import NORMS, residual
from flax_linattn.nn.dropout import apply_dropout, make_dropout, resolve_dropout_key, split_key
from flax_linattn.nn.feed_forward import FeedForward
from flax_linattn.nn.linear import ParameterOptions
from flax_linattn.nn.meshes import automatic
from flax_linattn.nn.norm import LayerNorm
from flax_linattn.nn.projected import resolve_mechanism
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, State


@register_state
class DecoderState(NamedTuple):
    """What a decoder block carries from step to step.

    Attributes:
        attention: of the attention to itself.
        context: the memory's keys and values, projected once.
    """

    attention: State
    context: Context


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
        activation: "gelu", "relu" or "tanh".
        dropout_rate: share of features dropped in training.
        dtype: dtype of the computation.
        rngs: holds the stream "params", and perhaps "dropout".
        **parameters: how the parameters are made, see ``ParameterOptions``.

    Raises:
        ValueError: an unknown norm, activation or mechanism, or heads that do not divide C.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> block = nn.DecoderBlock(16, 4, mechanism="aaren", rngs=nnx.Rngs(0))
        >>> x, memory = jnp.ones((2, 5, 16)), jnp.ones((2, 9, 16))
        >>> y = block(x, memory)                                  # in parallel
        >>> state = block.init_state(memory)
        >>> for t in range(5):                                    # as a recurrent network
        ...     y_t, state = block.step(x[:, t], state)
        >>> bool(jnp.allclose(y[:, -1], y_t, atol=1e-5))
        True
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
        **parameters: Unpack[ParameterOptions],
    ) -> None:
        choice(NORMS, norm=norm)
        mechanism = resolve_mechanism(mechanism)
        cross = mechanism if mechanism.capabilities.cross else ops.get_mechanism("softmax")
        self.norm: Literal["pre", "post"] = norm
        self.attention = Attention(
            features, num_heads, mechanism=mechanism, dtype=dtype, rngs=rngs, **parameters
        )
        self.cross_attention = Attention(
            features, num_heads, mechanism=cross, dtype=dtype, rngs=rngs, **parameters
        )
        self.feed_forward = FeedForward(
            features,
            4 * features if hidden_features is None else hidden_features,
            activation=activation,
            dropout_rate=dropout_rate,
            dtype=dtype,
            rngs=rngs,
            **parameters,
        )
        param_dtype = self.attention.value_projection.param_dtype
        self.norms = nnx.List(
            LayerNorm(features, param_dtype=param_dtype, rngs=rngs) for _ in range(3)
        )
        self.dropout = make_dropout(dropout_rate, rngs)

    @automatic(2)
    def __call__(
        self,
        x: Features,
        memory: Features,
        *,
        memory_mask: Mask | None = None,
        dropout_key: Array | None = None,
    ) -> Features:
        """Maps x [B, T, C], with memory [B, S, C] to look at, -> y [B, T, C].

        Args:
            x: [B, T, C].
            memory: [B, S, C].
            memory_mask: bool [B, S], True = a real token.
            dropout_key: see ``TransformerBlock``.
        """
        keys = split_key(resolve_dropout_key(self.dropout, dropout_key), 3)
        return self._residuals(
            x,
            lambda x: apply_dropout(self.dropout, self.attention(x, is_causal=True), keys[0]),
            lambda x: apply_dropout(
                self.dropout,
                self.cross_attention(x, memory, context_mask=memory_mask),
                keys[1],
            ),
            lambda x: self.feed_forward.map(x, keys[2]),
        )

    @automatic(1)
    def init_state(
        self,
        memory: Features,
        max_length: int | None = None,
        *,
        memory_mask: Mask | None = None,
    ) -> DecoderState:
        """The state before the first token: the memory is projected here, once.

        Args:
            memory: [B, S, C].
            max_length: most tokens, for mechanisms with a cache.
            memory_mask: bool [B, S], True = a real token.
        """
        return DecoderState(
            self.attention.init_state(memory.shape[0], max_length, dtype=memory.dtype),
            self.cross_attention.project(memory, memory_mask),
        )

    @automatic(2)
    def prefill(self, x: Features, state: DecoderState) -> tuple[Features, DecoderState]:
        """Takes in many tokens in parallel: x [B, T, C] -> y [B, T, C] and the new state."""
        attention = state.attention

        def attend(x: Array) -> Array:
            nonlocal attention
            y, attention = self.attention(x, is_causal=True, state=attention, return_state=True)
            return y

        y = self._residuals(
            x,
            attend,
            lambda x: self.cross_attention.attend_to(x, state.context),
            lambda x: self.feed_forward.map(x, None),
        )
        return y, DecoderState(attention, state.context)

    @automatic(1)
    def step(
        self, x: FeaturesStep, state: DecoderState, *, mask: Array | None = None
    ) -> tuple[FeaturesStep, DecoderState]:
        """Takes in one token a row, without dropout: x [B, C] -> y [B, C] and the new state.

        ``mask`` bool [B]: where False the state stays as it is.
        """
        attention = state.attention

        def attend(x: Array) -> Array:
            nonlocal attention
            y, attention = self.attention.step(x, attention, mask=mask)
            return y

        y = self._residuals(
            x,
            attend,
            lambda x: self.cross_attention.attend_to(x[:, None], state.context)[:, 0],
            lambda x: self.feed_forward.map(x, None),
        )
        return y, DecoderState(attention, state.context)

    def _residuals(self, x: Array, *sublayers: Callable[[Array], Array]) -> Array:
        """The sublayers one after another, each with its norm."""
        for norm, sublayer in zip(self.norms, sublayers, strict=True):
            x = residual(x, sublayer, norm, self.norm)
        return x
