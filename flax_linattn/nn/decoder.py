"""Decoder block: causal self-attention, cross-attention to a memory, and a feed-forward layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Unpack

from flax import nnx
from jax.typing import DTypeLike

from flax_linattn import ops
from flax_linattn.nn.attention import Attention, Context
from flax_linattn.nn.block import check_norm, residual
from flax_linattn.nn.call import Call
from flax_linattn.nn.dropout import apply_dropout, make_dropout, resolve_dropout_key, split_key
from flax_linattn.nn.feed_forward import FeedForward
from flax_linattn.nn.linear import ParameterOptions, check_options
from flax_linattn.nn.meshes import automatic
from flax_linattn.nn.norm import make_norm
from flax_linattn.nn.position_bias import PositionBias
from flax_linattn.nn.projected import QKNorm, resolve_mechanism
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, State


@register_state
class DecoderState(NamedTuple):
    """State that a decoder block carries from step to step.

    Attributes:
        attention: State of the self-attention.
        context: Keys and values of the memory, projected once.
    """

    attention: State
    context: Context


class DecoderBlock(nnx.Module):
    """Causal self-attention, cross-attention to a memory and feed-forward layer, with residuals.

    After Time-Series-Library's decoder layer (post-norm) and its pre-norm variant. If the mechanism
    has no cross-attention, softmax attention serves for it.

    Args:
        features: Number of features C.
        num_heads: Number of attention heads H.
        num_kv_heads: Number of heads of keys and values, as in ``Attention``.
        hidden_features: Width of the feed-forward layer; default 4 C.
        mechanism: Name of a mechanism with a causal form, or the mechanism itself.
        norm: Place of the norms, "pre" or "post".
        norm_type: "layer" for ``LayerNorm``, or "rms" for ``RMSNorm``.
        activation: Activation of the feed-forward layer; see ``FeedForward``.
        use_bias: Whether linear layers have a bias.
        dropout_rate: Fraction of features dropped during training.
        normalize_qk: Normalization of queries and keys, as in ``Attention``.
        output_norm: Normalization of the outputs of each head, as in ``Attention``.
        output_gate: Gate of the outputs of both attention layers, as in ``Attention``.
        short_conv: Taps of the convolution of queries, keys and values of the self-attention, as in
            ``Attention``. Cross-attention has none, because memory and inputs are two sequences.
        position_bias: Bias of the scores of the self-attention by position, as in ``Attention``.
            Cross-attention has none, as in T5.
        weight_dropout_rate: Fraction of attention weights dropped during training, as in
            ``Attention``.
        dtype: Dtype of the computation; inferred from inputs and parameters if None.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **parameters: Dtype and initializers of the parameters; see ``ParameterOptions``.

    Raises:
        ValueError: If the norm, activation or mechanism is unknown, or ``num_heads`` does not
            divide C.

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
        num_kv_heads: int | None = None,
        hidden_features: int | None = None,
        mechanism: str | ops.Mechanism = "softmax",
        norm: Literal["pre", "post"] = "post",
        norm_type: Literal["layer", "rms"] = "layer",
        activation: str = "gelu",
        use_bias: bool = True,
        dropout_rate: float = 0.0,
        normalize_qk: QKNorm | None = None,
        output_norm: Literal["rms"] | None = None,
        output_gate: Literal["sigmoid", "silu"] | None = None,
        short_conv: int | None = None,
        position_bias: PositionBias | None = None,
        weight_dropout_rate: float = 0.0,
        dtype: DTypeLike | None = None,
        rngs: nnx.Rngs,
        **parameters: Unpack[ParameterOptions],
    ) -> None:
        check_options(self, ParameterOptions, parameters)
        check_norm(norm, ("pre", "post"))
        mechanism = resolve_mechanism(mechanism)
        cross = mechanism if mechanism.capabilities.cross else ops.get_mechanism("softmax")
        self.norm: Literal["pre", "post"] = norm
        options: Any = {"use_bias": use_bias, "dtype": dtype, "rngs": rngs, **parameters}
        both: Any = {
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "normalize_qk": normalize_qk,
            "output_norm": output_norm,
            "output_gate": output_gate,
            "weight_dropout_rate": weight_dropout_rate,
            **options,
        }
        self.weight_dropout_rate = weight_dropout_rate
        self.attention = Attention(
            features,
            mechanism=mechanism,
            short_conv=short_conv,
            position_bias=position_bias,
            **both,
        )
        self.cross_attention = Attention(features, mechanism=cross, **both)
        self.feed_forward = FeedForward(
            features,
            4 * features if hidden_features is None else hidden_features,
            activation=activation,
            dropout_rate=dropout_rate,
            **options,
        )
        param_dtype = self.attention.value_projection.param_dtype
        self.norms = nnx.List(
            make_norm(norm_type, features, param_dtype=param_dtype, rngs=rngs) for _ in range(3)
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
        """Maps x [B, T, C], with cross-attention to memory [B, S, C], to outputs [B, T, C].

        Args:
            x: Inputs of shape [B, T, C].
            memory: Inputs of shape [B, S, C] for the cross-attention.
            memory_mask: Boolean array of shape [B, S]; True marks valid tokens of ``memory``.
            dropout_key: Random key that enables dropout; see ``TransformerBlock``.
        """
        key = resolve_dropout_key(self.dropout, dropout_key, self.weight_dropout_rate)
        # Split five keys only if needed, so that the three keys of stored runs do not change.
        keys = [*split_key(key, 5 if self.weight_dropout_rate else 3), None, None]
        context = self.cross_attention.project(memory, memory_mask)
        return self._residuals(
            x,
            lambda x: apply_dropout(self.dropout, self._attend(x, None, keys[3])[0], keys[0]),
            lambda x: apply_dropout(self.dropout, self._read(x, context, keys[4]), keys[1]),
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
        """Projects the memory, once, and returns the state before the first token.

        Args:
            memory: Inputs of shape [B, S, C] for the cross-attention.
            max_length: Maximum number of tokens, needed by mechanisms with a cache.
            memory_mask: Boolean array of shape [B, S]; True marks valid tokens of ``memory``.
        """
        return DecoderState(
            self.attention.init_state(memory.shape[0], max_length, dtype=memory.dtype),
            self.cross_attention.project(memory, memory_mask),
        )

    @automatic(2)
    def prefill(self, x: Features, state: DecoderState) -> tuple[Features, DecoderState]:
        """Processes many tokens in parallel: x [B, T, C] -> outputs [B, T, C] and the new state."""
        attention = state.attention

        def attend(x: Array) -> Array:
            nonlocal attention
            y, attention = self._attend(x, attention, None)
            return y

        y = self._residuals(
            x,
            attend,
            lambda x: self._read(x, state.context, None),
            lambda x: self.feed_forward.map(x, None),
        )
        return y, DecoderState(attention, state.context)

    @automatic(1)
    def step(
        self, x: FeaturesStep, state: DecoderState, *, mask: Array | None = None
    ) -> tuple[FeaturesStep, DecoderState]:
        """Processes one token per row, without dropout: x [B, C] -> y [B, C] and the new state.

        Where ``mask``, Boolean [B], is False, the row's state is unchanged.
        """
        attention = state.attention

        def attend(x: Array) -> Array:
            nonlocal attention
            y, attention = self.attention.step(x, attention, mask=mask)
            return y

        y = self._residuals(
            x,
            attend,
            lambda x: self._read(x[:, None], state.context, None)[:, 0],
            lambda x: self.feed_forward.map(x, None),
        )
        return y, DecoderState(attention, state.context)

    def _attend(self, x: Features, state: State, key: Array | None) -> tuple[Features, State]:
        """Self-attention after a state, which is returned only if one is given."""
        call = Call(is_causal=True, state=state, return_state=state is not None, dropout_key=key)
        return self.attention._map(x, self.attention._check_call(x, call))

    def _read(self, x: Features, context: Context, key: Array | None) -> Features:
        """Cross-attention to the projected memory; only the key enables dropout."""
        return self.cross_attention._attend_across(x, context, Call(dropout_key=key))[0]

    def _residuals(self, x: Array, *sublayers: Callable[[Array], Array]) -> Array:
        """Applies the sublayers in order, each with its norm and residual."""
        for norm, sublayer in zip(self.norms, sublayers, strict=True):
            x = residual(x, sublayer, norm, self.norm)
        return x
