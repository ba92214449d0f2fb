"""Transformer block, after Time-Series-Library's encoder layer and min-DT's block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Unpack, overload

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Int

from flax_linattn import ops
from flax_linattn.checks import OptionError, check_choice, check_positive, check_rate
from flax_linattn.nn.attention import Attention
from flax_linattn.nn.call import Call
from flax_linattn.nn.drop_path import apply_drop_path
from flax_linattn.nn.dropout import apply_dropout, make_dropout, resolve_dropout_key, split_key
from flax_linattn.nn.feed_forward import FeedForward
from flax_linattn.nn.layer_scale import LayerScale
from flax_linattn.nn.linear import ParameterOptions, check_options
from flax_linattn.nn.meshes import automatic
from flax_linattn.nn.norm import NORM_TYPES, Norm, make_norm
from flax_linattn.nn.position import QueryKeyPosition
from flax_linattn.nn.position_bias import PositionBias
from flax_linattn.nn.projected import QKNorm
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.typing import (
    Array,
    Features,
    FeaturesStep,
    Mask,
    SegmentIds,
    SequenceOptions,
    State,
)

NORMS = ("pre", "post", "sandwich")


class BlockCallOptions(SequenceOptions, total=False):
    """Keyword options of a call of ``TransformerBlock``."""

    is_causal: bool | None
    positions: Int[Array, "B T"] | None
    dropout_key: Array | None


class TransformerBlock(nnx.Module):
    """Attention and feed-forward layer with residuals and norms.

    Post: x = LN(x + attention(x)); x = LN(x + feed_forward(x)). Pre: x = x + attention(LN(x)); x =
    x + feed_forward(LN(x)). Sandwich, as in Gemma 2: x = x + LN(attention(LN(x))); x = x +
    LN(feed_forward(LN(x))). Parallel, as in GPT-J and PaLM: x = x + attention(LN(x)) +
    feed_forward(LN(x)), with one norm.

    With width 512 and hidden width 2048 the default has the 3,152,384 parameters of the Aaren
    paper's transformer (section 4.5), and 3,152,896 with Aaren. Departure from usual blocks:
    ``dropout_rate`` drops outputs of the attention instead of its weights, which a scan never
    forms; see ``weight_dropout_rate``.

    A residual branch may be scaled (``layer_scale``) and, in training, dropped for whole rows
    (``drop_path_rate``), in this order and after its dropout, as in timm's vision transformers.

    Args:
        features: Number of features C.
        num_heads: Number of attention heads H.
        num_kv_heads: Number of heads of keys and values, as in ``Attention``.
        hidden_features: Width of the feed-forward layer; default 4 C.
        mechanism: Name of the attention mechanism, or the mechanism itself.
        is_causal: Whether calls are causal by default, as in ``Attention``.
        norm: Place of the norms, "pre", "post" or "sandwich".
        norm_type: "layer" for ``LayerNorm``, or "rms" for ``RMSNorm``.
        activation: Activation of the feed-forward layer; see ``FeedForward``.
        is_parallel: Whether attention and feed-forward layer read the same normalized input; needs
            ``norm="pre"``.
        use_bias: Whether linear layers have a bias.
        residual_scale: Factor of both branches before they join the residual.
        dropout_rate: Fraction of features dropped during training.
        position: Position encoding of queries and keys, as in ``Attention``.
        normalize_qk: Normalization of queries and keys, as in ``Attention``.
        output_norm: Normalization of the outputs of each head, as in ``Attention``.
        output_gate: Gate of the attention's outputs, as in ``Attention``.
        short_conv: Taps of the convolution of queries, keys and values, as in ``Attention``.
        position_bias: Bias of the scores by position, as in ``Attention``.
        weight_dropout_rate: Fraction of attention weights dropped during training, as in
            ``Attention``.
        drop_path_rate: Probability that a row skips a branch during training, independently for
            each branch; see ``apply_drop_path``.
        layer_scale: Initial value of the learned factors of both branches, see ``LayerScale``; None
            for no factors.
        dtype: Dtype of the computation; inferred from inputs and parameters if None.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **parameters: Dtype and initializers of the parameters; see ``ParameterOptions``.

    Raises:
        ValueError: If the norm, activation or mechanism is unknown, ``num_heads`` does not divide
            C, a rate or scale is out of range, or ``is_parallel`` is set without ``norm="pre"``.

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
        num_kv_heads: int | None = None,
        hidden_features: int | None = None,
        mechanism: str | ops.Mechanism = "softmax",
        is_causal: bool | None = None,
        norm: Literal["pre", "post", "sandwich"] = "post",
        norm_type: Literal["layer", "rms"] = "layer",
        activation: str = "gelu",
        is_parallel: bool = False,
        use_bias: bool = True,
        residual_scale: float = 1.0,
        dropout_rate: float = 0.0,
        position: QueryKeyPosition | None = None,
        normalize_qk: QKNorm | None = None,
        output_norm: Literal["rms"] | None = None,
        output_gate: Literal["sigmoid", "silu"] | None = None,
        short_conv: int | None = None,
        position_bias: PositionBias | None = None,
        weight_dropout_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        layer_scale: float | None = None,
        dtype: DTypeLike | None = None,
        rngs: nnx.Rngs,
        **parameters: Unpack[ParameterOptions],
    ) -> None:
        check_options(self, ParameterOptions, parameters)
        check_norm(norm)
        check_rate(drop_path_rate=drop_path_rate)
        check_positive(residual_scale=residual_scale)
        if is_parallel and norm != "pre":
            raise OptionError(
                f"a parallel block is normalized before its branches, got norm={norm!r}; pass "
                'norm="pre".',
                "norm",
            )
        self.norm: Literal["pre", "post", "sandwich"] = norm
        self.is_parallel, self.residual_scale = is_parallel, residual_scale
        self.drop_path_rate, self.weight_dropout_rate = drop_path_rate, weight_dropout_rate
        self.attention = Attention(
            features,
            num_heads,
            mechanism=mechanism,
            num_kv_heads=num_kv_heads,
            is_causal=is_causal,
            use_bias=use_bias,
            position=position,
            normalize_qk=normalize_qk,
            output_norm=output_norm,
            output_gate=output_gate,
            short_conv=short_conv,
            position_bias=position_bias,
            weight_dropout_rate=weight_dropout_rate,
            dtype=dtype,
            rngs=rngs,
            **parameters,
        )
        self.feed_forward = FeedForward(
            features,
            4 * features if hidden_features is None else hidden_features,
            activation=activation,
            dropout_rate=dropout_rate,
            use_bias=use_bias,
            dtype=dtype,
            rngs=rngs,
            **parameters,
        )
        param_dtype = self.attention.value_projection.param_dtype
        norms: dict[str, Any] = {"param_dtype": param_dtype, "rngs": rngs}
        self.attention_norm = make_norm(norm_type, features, **norms)
        self.feed_forward_norm = None if is_parallel else make_norm(norm_type, features, **norms)
        self.attention_out_norm, self.feed_forward_out_norm = (
            make_norm(norm_type, features, **norms) if norm == "sandwich" else None
            for _ in range(2)
        )
        self.dropout = make_dropout(dropout_rate, rngs)
        self.attention_scale, self.feed_forward_scale = (
            None
            if layer_scale is None
            else LayerScale(features, layer_scale, param_dtype=param_dtype, rngs=rngs)
            for _ in range(2)
        )

    @overload
    def __call__(
        self,
        x: Features,
        *,
        return_state: Literal[False] = False,
        **options: Unpack[BlockCallOptions],
    ) -> Features: ...

    @overload
    def __call__(
        self, x: Features, *, return_state: Literal[True], **options: Unpack[BlockCallOptions]
    ) -> tuple[Features, State]: ...

    @automatic(2)
    def __call__(
        self,
        x: Features,
        *,
        is_causal: bool | None = None,
        mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        positions: Int[Array, "B T"] | None = None,
        state: State | None = None,
        return_state: bool = False,
        dropout_key: Array | None = None,
        form: str = "auto",
    ) -> Features | tuple[Features, State]:
        """Maps x [B, T, C] to y [B, T, C], and the state if ``return_state``; see ``Attention``.

        Dropout and drop path are enabled by ``dropout_key`` or, after ``block.train()``, by the
        block's own keys, if it was made with a stream "dropout". Outputs at masked positions are
        undefined.

        Raises:
            ValueError: If an argument is invalid (see ``Attention``), or the block is in training
                mode and there is no key.
        """
        call = Call(
            mask=mask,
            segment_ids=segment_ids,
            positions=positions,
            state=state,
            dropout_key=resolve_dropout_key(
                self.dropout, dropout_key, self.drop_path_rate, self.weight_dropout_rate
            ),
            is_causal=self.attention._resolve_causal(is_causal, None),
            return_state=return_state,
            form=form,
        )
        call = self.attention._check_call(x, call)
        y, after = self._map(zero_padding(x, mask), call)
        return (y, after) if return_state else y

    def _map(self, x: Features, call: Call) -> tuple[Features, State | None]:
        """Maps inputs that are 0 at padding to outputs and the state, which may be None.

        Dropout is enabled only by the key of the call.
        """

        def attend(x: Features, key: Array | None) -> tuple[Features, State | None]:
            return self.attention._map(x, call.replace(dropout_key=key))

        return self._sublayers(x, attend, call.dropout_key)

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike | None = None
    ) -> State:
        """Returns the state before the first token; see ``Attention.init_state``."""
        return self.attention.init_state(batch_size, max_length, dtype=dtype)

    @automatic(1)
    def step(
        self,
        x: FeaturesStep,
        state: State,
        *,
        mask: Array | None = None,
        positions: Int[Array, "B"] | None = None,
    ) -> tuple[FeaturesStep, State]:
        """Processes one token per row, without dropout: x [B, C] -> y [B, C] and the new state."""
        return self._sublayers(
            x, lambda x, _: self.attention.step(x, state, mask=mask, positions=positions), None
        )

    def _sublayers(
        self,
        x: Array,
        attend: Callable[[Array, Array | None], tuple[Array, State]],
        dropout_key: Array | None,
    ) -> tuple[Array, State]:
        """Applies the block around either form of its attention, which is given a dropout key."""
        # Split only as many keys as needed, so that the two keys of stored runs do not change.
        count = 5 if self.weight_dropout_rate else 4 if self.drop_path_rate else 2
        keys = split_key(dropout_key, count) + [None] * (5 - count)
        drop_attention, drop_feed_forward, drop_weights = keys[2:]

        state: State = None

        def attention(x: Array) -> Array:
            nonlocal state
            y, state = attend(x, drop_weights)
            y = apply_dropout(self.dropout, y, keys[0]).astype(x.dtype)
            return self._branch(y, self.attention_out_norm, self.attention_scale, drop_attention)

        def feed_forward(x: Array) -> Array:
            y = self.feed_forward.map(x, keys[1]).astype(x.dtype)
            return self._branch(
                y, self.feed_forward_out_norm, self.feed_forward_scale, drop_feed_forward
            )

        if self.feed_forward_norm is None:
            normalized = self.attention_norm(x)
            y = x + attention(normalized)
            return y + feed_forward(normalized), state
        x = residual(x, attention, self.attention_norm, self.norm)
        return residual(x, feed_forward, self.feed_forward_norm, self.norm), state

    def _branch(
        self, y: Array, norm: Norm | None, scale: LayerScale | None, key: Array | None
    ) -> Array:
        """Makes a sublayer's output what joins the residual: normalized, scaled, dropped."""
        y = y if norm is None else norm(y)
        y = y if scale is None else scale(y)
        y = y if self.residual_scale == 1.0 else y * jnp.asarray(self.residual_scale, y.dtype)
        return apply_drop_path(y, self.drop_path_rate, key)


def check_norm(norm: str, places: tuple[str, ...] = NORMS) -> None:
    """Checks that ``norm`` names a place of the norms.

    Raises:
        ValueError: If it is not. For a type of norm, the message names ``norm_type``.
    """
    if norm in NORM_TYPES:
        raise OptionError(
            f"norm must be one of {', '.join(places)} (where norms are applied), got {norm!r}, "
            f"which is a type of norm; pass norm_type={norm!r} instead.",
            "norm",
        )
    check_choice(places, norm=norm)


def residual(x: Array, sublayer: Callable[[Array], Array], norm: Norm, place: str) -> Array:
    """Applies a sublayer with its residual, normalized after it ("post") or before it."""
    if place == "post":
        return norm(x + sublayer(x).astype(x.dtype))
    return x + sublayer(norm(x)).astype(x.dtype)
