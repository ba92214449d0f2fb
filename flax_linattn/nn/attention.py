"""Multi-head self- and cross-attention around any mechanism, in parallel and by steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Unpack, cast, overload

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Int

from flax_linattn import ops
from flax_linattn.checks import OptionError, check_rate
from flax_linattn.nn.call import Call
from flax_linattn.nn.dropout import make_dropout, resolve_dropout_key
from flax_linattn.nn.linear import PositionLinear, check_options
from flax_linattn.nn.meshes import automatic
from flax_linattn.nn.position import QueryKeyPosition
from flax_linattn.nn.position_bias import PositionBias
from flax_linattn.nn.projected import AttentionOptions, ProjectedAttention, Projections
from flax_linattn.nn.short_convolution import ShortConvState, make_short_convolution
from flax_linattn.ops.contract.checks import check_pair_input
from flax_linattn.ops.contract.masks import Segments, find_packed_segments, zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.contract.state import register_state, unpack_state
from flax_linattn.typing import (
    Array,
    Features,
    FeaturesStep,
    Keys,
    Mask,
    Parameters,
    SegmentIds,
    SequenceOptions,
    State,
    Values,
)


class AttentionCallOptions(SequenceOptions, total=False):
    """Keyword options of a call of ``Attention``."""

    is_causal: bool | None
    positions: Int[Array, "B T"] | None
    context_mask: Mask | None
    pair_mask: Array | None
    bias: Array | None
    dropout_key: Array | None


@register_state
class Context(NamedTuple):
    """Keys and values of a context, projected once for many calls of cross-attention.

    Attributes:
        k: Keys of shape [B, S, G, K].
        v: Values of shape [B, S, G, V].
        mask: Boolean array of shape [B, S]; True marks valid tokens. None if all are valid.
        per_token: Per-token inputs of the mechanism, by name.
    """

    k: Keys
    v: Values
    mask: Mask | None
    per_token: Parameters


class Attention(ProjectedAttention):
    """Multi-head attention by any mechanism, in parallel over sequences or step by step.

    Some mechanisms change the parameters of the layer:

    - If ``mechanism.capabilities.learned_query`` (Aaren, section 3.3), the query is one learned
      token [C] of the layer, projected as inputs would be. W_q and its bias stay, as the paper's
      parameter count implies.
    - Learned parameters of a mechanism (``ops.Mechanism.learned_parameters``: TaylorShift's
      temperature, Linformer's projections) are in ``mechanism_parameters``, by name.
    - Per-token inputs of a mechanism (``token_arguments``: decays, gates) are linear maps of the
      inputs, ``token_projections`` by name, each with a bias and the mechanism's activation.
    - If ``capabilities.unit_vectors``, queries and keys are normalized to length 1.
    - If ``capabilities.shared_query_key``, ``key_projection`` gives queries and keys.

    Args:
        in_features: Number of features C of the inputs.
        num_heads: Number of attention heads H.
        mechanism: Name of the mechanism, as ``ops.get_mechanism`` takes it
            ("elementwise_series:order=2"), or the mechanism itself.
        num_kv_heads: Number of heads G of keys and values, a divisor of H. Each serves H / G query
            heads (grouped-query attention, or multi-query with G = 1), and per-token inputs, the
            mechanism's parameters and the state have G heads. Default: H.
        context_features: Number of features of the context, if the layer is for cross-attention to
            inputs of another width; default ``in_features``.
        qkv_features: Features of the queries over all heads, H * K; default ``in_features``. Keys
            and values have G * K.
        out_features: Number of features of the outputs; default ``in_features``.
        is_causal: Whether calls are causal by default. None: causal if the mechanism has no other
            form. With False the layer has no ``step``, which would compute another function.
        use_bias: Whether the four projections have a bias.
        normalize_qk: Normalization of queries and keys over the channels of each head, before
            ``position``: "layer" with a learned scale per channel and no bias (ViT-22B, Flax),
            "rms" with a learned scale per channel (Qwen3, Gemma 3), or "l2" to length 1, where
            ``scale`` of the mechanism should be larger ("softmax:scale=10"); None for none.
        output_norm: "rms" normalizes the outputs of each head over their channels, with a learned
            scale per channel that the heads share (Gated DeltaNet); None for none.
        output_gate: Activation of a gate, "sigmoid" (Qwen3-Next) or "silu" (GLA, RetNet), which is
            a linear map of ``x`` and multiplies the outputs, after ``output_norm`` and before the
            output projection; None for none.
        short_conv: Number of taps, at least 2, of a causal convolution of each channel of queries,
            keys and values over the last valid tokens, followed by SiLU, before the heads and
            ``normalize_qk`` (Gated DeltaNet, Kimi Linear). The state is then a ``ShortConvState``.
            Default: no convolution.
        position: Position encoding of queries and keys, such as ``RotaryPosition()``; None for
            none.
        position_bias: Bias of the scores by position, such as ``AlibiBias(num_heads)`` or
            ``RelativeBias(...)``, if ``mechanism.capabilities.bias``; None for none.
        weight_dropout_rate: Fraction of attention weights dropped during training, if
            ``mechanism.capabilities.weight_dropout``.
        dtype: Dtype of the computation; inferred from inputs and parameters if None.
        param_dtype: Dtype of the parameters.
        kernel_init: Initializer of the kernels; default ``UniformFanIn``, see ``ParameterOptions``.
        bias_init: Initializer of the biases; default ``UniformFanIn``.
        out_kernel_init: Initializer of the output projection's kernel; default ``kernel_init``.
        out_bias_init: Initializer of the output projection's bias; default ``bias_init``.
        query_init: Initializer of the learned query token (the paper names none).
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``attention.train()``.

    Raises:
        ValueError: If ``qkv_features`` is not a multiple of ``num_heads``, the mechanism is
            unknown or does not support ``is_causal``, ``num_kv_heads`` or another option, or
            ``position`` is given to a mechanism with a learned query, which has no position.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> attention = nn.Attention(32, 4, mechanism="aaren", is_causal=True, rngs=nnx.Rngs(0))
        >>> x = jax.random.normal(jax.random.key(1), (2, 10, 32))
        >>> y = attention(x)                                      # in parallel
        >>> state = attention.init_state(2)
        >>> for t in range(10):                                   # as a recurrent network
        ...     y_t, state = attention.step(x[:, t], state)
        >>> bool(jnp.allclose(y[:, -1], y_t, atol=1e-5))
        True
    """

    def __init__(
        self,
        in_features: int,
        num_heads: int,
        *,
        mechanism: str | ops.Mechanism = "softmax",
        num_kv_heads: int | None = None,
        context_features: int | None = None,
        is_causal: bool | None = None,
        output_gate: Literal["sigmoid", "silu"] | None = None,
        short_conv: int | None = None,
        position: QueryKeyPosition | None = None,
        position_bias: PositionBias | None = None,
        weight_dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
        **options: Unpack[AttentionOptions],
    ) -> None:
        check_options(self, AttentionOptions, options)
        super().__init__(
            in_features,
            num_heads,
            mechanism=mechanism,
            num_kv_heads=num_kv_heads,
            context_features=context_features,
            output_gate=output_gate,
            position=position,
            rngs=rngs,
            **options,
        )
        self.short_convolution = make_short_convolution(
            short_conv,
            self._qkv_projections,
            param_dtype=self.value_projection.param_dtype,
            rngs=rngs,
        )
        can = self.mechanism.capabilities
        if is_causal is not None and not (can.causal if is_causal else can.noncausal):
            raise ValueError(
                f"{self.mechanism.name!r} does not support is_causal={is_causal}; omit is_causal, "
                "or choose another mechanism."
            )
        self.is_causal = True if is_causal is None and not can.noncausal else is_causal
        check_pair_options(self.mechanism, position_bias is not None, weight_dropout_rate)
        if getattr(position_bias, "num_heads", num_heads) != num_heads:
            raise ValueError(
                f"expected a position_bias for {num_heads} heads, as the layer has; create it "
                "with the num_heads of the layer."
            )
        self.position_bias = position_bias
        self.weight_dropout = (
            make_dropout(weight_dropout_rate, rngs) if weight_dropout_rate else None
        )
        if self.context_features != in_features:
            self._check_cross()

    @overload
    def __call__(
        self,
        x: Features,
        context: Features | None = None,
        *,
        return_state: Literal[False] = False,
        **options: Unpack[AttentionCallOptions],
    ) -> Features: ...

    @overload
    def __call__(
        self,
        x: Features,
        context: Features | None = None,
        *,
        return_state: Literal[True],
        **options: Unpack[AttentionCallOptions],
    ) -> tuple[Features, State]: ...

    @automatic(2)
    def __call__(
        self,
        x: Features,
        context: Features | None = None,
        *,
        is_causal: bool | None = None,
        mask: Mask | None = None,
        context_mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        positions: Int[Array, "B T"] | None = None,
        state: State | None = None,
        return_state: bool = False,
        pair_mask: Array | None = None,
        bias: Array | None = None,
        dropout_key: Array | None = None,
        form: str = "auto",
    ) -> Features | tuple[Features, State]:
        """Attends over whole sequences, in parallel.

        Args:
            x: Inputs of shape [B, T, C], which give the queries.
            context: Inputs of shape [B, S, context_features] for keys and values
                (cross-attention); default ``x``.
            is_causal: Whether each position attends only to itself and earlier positions; default
                the layer's ``is_causal``, or False with a context.
            mask: Boolean array of shape [B, T]; True marks valid tokens of ``x``.
            context_mask: Boolean array of shape [B, S]; True marks valid tokens of ``context``.
            segment_ids: Integer array of shape [B, T]; ids of packed sequences.
            positions: Integer array of shape [B, T], for a layer with a ``position``; default the
                number of earlier valid tokens in this call.
            state: State returned by an earlier call, whose tokens precede these.
            return_state: Whether to return ``(y, state)`` instead of ``y``, for a causal call that
                later calls continue.
            pair_mask: Boolean array of shape [B or 1, H or 1, T, S]; False hides a key from a
                query; see ``ops.Mechanism.attend``.
            bias: Array of shape [B or 1, H or 1, T, S], added to the scores.
            dropout_key: Random key that enables dropout of the weights; without effect if
                ``weight_dropout_rate`` is 0.
            form: Form of the computation; see ``ops.Mechanism.attend``.

        Returns:
            Outputs y of shape [B, T, out_features], and the state if ``return_state``. At masked
            positions, y is the output projection's bias.

        Raises:
            ValueError: If shapes do not match, the mechanism does not support the combination, or
                ``return_state`` is set in a call that is not causal.
            TypeError: If x or context is not an array.
        """
        call = Call(
            mask=mask,
            segment_ids=segment_ids,
            positions=positions,
            state=state,
            dropout_key=self._resolve_dropout_key(dropout_key),
            pair_inputs=_drop_missing(pair_mask=pair_mask, bias=bias),
            is_causal=self._resolve_causal(is_causal, context),
            return_state=return_state,
            form=form,
        )
        projected = self._project_context(context, context_mask)
        if projected is not None:
            y, after = self._attend_across(x, projected, call)
        else:
            y, after = self._map(x, self._check_call(x, call))
        return (y, after) if return_state else y

    @automatic(1)
    def weights(
        self,
        x: Features,
        context: Features | None = None,
        *,
        is_causal: bool | None = None,
        mask: Mask | None = None,
        context_mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        positions: Int[Array, "B T"] | None = None,
        pair_mask: Array | None = None,
        bias: Array | None = None,
    ) -> Array:
        """Computes the attention weights of a call, for short sequences.

        The result is ``ops.weights`` of the queries, keys, biases and masks of the
        layer, without dropout. ``output_norm`` and ``output_gate`` apply to the outputs of the
        heads, so they do not change the weights. Arguments are as in ``__call__``.

        Returns:
            Weights of shape [B, H, T, S], or as ``ops.weights`` returns them for mechanisms whose
            channels have their own weights.

        Raises:
            ValueError: If a call rejects the arguments.
            TypeError: If x or context is not an array.

        Example:
            >>> import jax.numpy as jnp
            >>> from flax import nnx
            >>> from flax_linattn import nn
            >>> attention = nn.Attention(8, 2, is_causal=True, rngs=nnx.Rngs(0))
            >>> w = attention.weights(jnp.ones((1, 4, 8)))
            >>> w.shape, w[0, 0, 1].tolist()
            ((1, 2, 4, 4), [0.5, 0.5, 0.0, 0.0])
        """
        call = Call(
            mask=mask,
            segment_ids=segment_ids,
            positions=positions,
            pair_inputs=_drop_missing(pair_mask=pair_mask, bias=bias),
            is_causal=self._resolve_causal(is_causal, context),
        )
        projected = self._project_context(context, context_mask)
        if projected is not None:
            self._check_inputs("B, T", x=x)
            inputs = self._cross_projections(zero_padding(x, mask), projected, call)
        else:
            call = self._check_call(x, call)
            inputs, _ = self._self_projections(zero_padding(x, mask), call)
        wide = accumulation_dtype(inputs.k.dtype)  # in which calls compute the weights
        inputs = inputs._replace(q=inputs.q.astype(wide), k=inputs.k.astype(wide))
        return ops.weights(self.mechanism, **self._weight_arguments(inputs))

    def _project_context(self, context: Features | None, mask: Mask | None) -> Context | None:
        """Projects the context of a call, if there is one."""
        if context is not None:
            return self.project(context, mask)
        if mask is not None:
            raise ValueError(
                "context_mask marks tokens of context, but there is no context; pass "
                "context, or use mask."
            )
        return None

    def _resolve_causal(self, is_causal: bool | None, context: Features | None) -> bool:
        """Returns whether a call is causal; the layer's default is for self-attention."""
        default = self.is_causal if context is None else False
        return bool(default if is_causal is None else is_causal)

    def _resolve_dropout_key(self, key: Array | None) -> Array | None:
        """Returns the key of dropout of the weights; None if the layer has no such dropout."""
        if self.weight_dropout is None:
            return None
        return resolve_dropout_key(self.weight_dropout, key)

    def _check_call(self, x: Features, call: Call) -> Call:
        """Validates inputs x [B, T, C], and adds positions to the call where the layer needs them.

        Raises:
            ValueError: If the shape is wrong, positions are missing or not supported, or
                ``return_state`` is set in a call that is not causal.
            TypeError: If x is not an array.
        """
        _check_state_wanted(call)
        self._check_self()
        self._check_inputs("B, T", x=x)
        self._check_positions(call.positions)
        if self.position is not None and call.positions is None:
            if call.state is not None:
                raise ValueError(_POSITIONS)
            call = call.with_positions(x)
        return call

    def _map(self, x: Features, call: Call) -> tuple[Features, State | None]:
        """Self-attention of a validated call: outputs [B, T, out_features], and the state."""
        # In a block, too, which makes something of the zeros at padding. So gradients of queries,
        # keys and values are added up before they meet that of the residual, padded or not.
        x = zero_padding(x, call.mask)
        inputs, window = self._self_projections(x, call)
        y, after = self._attend(inputs)
        return self._project_out(y, x), after if window is None else ShortConvState(window, after)

    def _self_projections(self, x: Features, call: Call) -> tuple[Projections, Array | None]:
        """Projects inputs of a validated call; returns the short convolution's window, too."""
        parts = [projection(x) for projection in self._qkv_projections]
        window = None
        if self.short_convolution is not None:
            before, state = _convolution_state(call.state)
            call = call.replace(state=state)
            parts, window = self.short_convolution.map(
                parts, before, call.mask, _packed_segments(call, state)
            )
        q, k, v = self._split(x, parts, call.positions)
        call = call.replace(pair_inputs=self._pair_inputs(k, call))
        return Projections(q, k, v, self._token_arguments(x), call.mask, call), window

    @property
    def _qkv_projections(self) -> list[nnx.Linear]:
        """Projections of each token: to a query, unless it is learned or the key; key; value."""
        keys_and_values = [self.key_projection, self.value_projection]
        if self.query is not None or self.query_projection is None:
            return keys_and_values
        return [self.query_projection, *keys_and_values]

    def _split(
        self, x: Array, parts: Sequence[Array], positions: Array | None
    ) -> tuple[Array, Array, Array]:
        """Splits outputs of ``_qkv_projections`` into heads, normalized and with positions."""
        *queries, k, v = parts
        k = self._split_keys(k)
        q = self._split_queries(queries[0]) if queries else self._queries(x, k)
        if self.position is not None and positions is not None:
            q, k = self.position(q, positions), self.position(k, positions)
        return q, k, self._split_heads(v)

    def _pair_inputs(self, k: Array, call: Call) -> dict[str, Array]:
        """Returns the inputs per pair of a call, with the layer's own bias and dropout."""
        inputs = dict(call.pair_inputs or {})
        # With a position bias the mechanism is a cache, see check_pair_options.
        if self.position_bias is not None and isinstance(self.mechanism, ops.CacheMechanism):
            positions = self.mechanism.pair_positions(k, call.state, call.mask, call.segment_ids)
            inputs["bias"] = _add_bias(self.position_bias(*positions), inputs.get("bias"))
        if self.weight_dropout is not None and call.dropout_key is not None:
            inputs["dropout_key"] = call.dropout_key
            inputs["dropout_rate"] = jnp.asarray(self.weight_dropout.rate)
        return inputs

    def _step_inputs(
        self, state: State, pair_mask: Array | None, bias: Array | None
    ) -> dict[str, Array]:
        """Returns the inputs per pair of a step from a state of the mechanism."""
        if self.position_bias is not None:
            cache = unpack_state(state)[0]
            own = self.position_bias(cache.next_position[:, None], cache.next_slots[None])
            bias = _add_bias(own[:, :, 0], bias)
        return _drop_missing(pair_mask=pair_mask, bias=bias)

    def _attend_across(
        self, x: Features, context: Context, call: Call
    ) -> tuple[Features, State | None]:
        self._check_inputs("B, T", x=x)
        x = zero_padding(x, call.mask)
        y, state = self._attend(self._cross_projections(x, context, call))
        return self._project_out(y, x), state

    def _cross_projections(self, x: Features, context: Context, call: Call) -> Projections:
        """Projects x, which is 0 at padding, to queries; ``call.mask`` marks its valid tokens."""
        _check_state_wanted(call)
        self._check_positions(call.positions)
        k, v, mask, per_token = context
        real = jnp.ones(x.shape[:2], bool) if call.mask is None else call.mask
        q = self._queries(x, k)
        call = call.replace(mask=mask, pair_inputs=self._pair_inputs(k, call))
        return Projections(q, k, v, per_token, real, call)

    @automatic(1)
    def project(self, context: Features, mask: Mask | None = None) -> Context:
        """Projects a context to keys and values, once for many calls of ``attend_to``.

        Args:
            context: Inputs of shape [B, S, context_features].
            mask: Boolean array of shape [B, S]; True marks valid tokens.

        Raises:
            ValueError: If the layer or its mechanism has no cross-attention, or the shape is wrong.
            TypeError: If the context is not an array.
        """
        self._check_cross()
        self._check_inputs("B, S", self.context_features, context=context)
        context = zero_padding(context, mask)
        return Context(*self._keys_and_values(context), mask, self._token_arguments(context))

    @automatic(2)
    def attend_to(
        self,
        x: Features,
        context: Context,
        *,
        mask: Mask | None = None,
        dropout_key: Array | None = None,
    ) -> Features:
        """Cross-attention from x to a context that ``project`` returned.

        Args:
            x: Inputs of shape [B, T, C].
            context: Result of ``project``.
            mask: Boolean array of shape [B, T]; True marks valid tokens of ``x``.
            dropout_key: Random key that enables dropout of the weights, as in ``__call__``.

        Returns:
            Outputs of shape [B, T, out_features], equal to the outputs of ``__call__`` with the
            context.
        """
        call = Call(mask=mask, dropout_key=self._resolve_dropout_key(dropout_key))
        return self._attend_across(x, context, call)[0]

    def _check_cross(self) -> None:
        """Raises a ValueError that names what has no meaning between two sequences."""
        if not self.mechanism.capabilities.cross:
            raise ValueError(
                f"{self.mechanism.name!r} does not support cross-attention; omit context."
            )
        reasons = {
            "position": "positions of two sequences are not comparable",
            "position_bias": "positions of two sequences are not comparable",
            "short_convolution": "it convolves queries, keys and values of one sequence",
        }
        for attribute, reason in reasons.items():
            if getattr(self, attribute) is not None:
                option = "short_conv" if attribute == "short_convolution" else attribute
                raise ValueError(
                    f"{option} cannot be used with a context, because {reason}; create the layer "
                    f"for cross-attention without {option}."
                )

    def _check_self(self) -> None:
        if self.context_features != self.in_features:
            raise ValueError(
                f"this layer projects keys and values from {self.context_features} features "
                f"(context_features), but queries from {self.in_features}; pass context."
            )

    @property
    def streams(self) -> bool:
        of_itself = self.context_features == self.in_features
        return super().streams and of_itself and self.is_causal is not False

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike | None = None
    ) -> State:
        self._check_step()
        state = super().init_state(batch_size, max_length, dtype=dtype)
        if self.short_convolution is None:
            return state
        window = self.short_convolution.init_state(batch_size, self._compute_dtype(dtype))
        return ShortConvState(window, state)

    @automatic(1)
    def step(
        self,
        x: FeaturesStep,
        state: State,
        *,
        mask: Array | None = None,
        positions: Int[Array, "B"] | None = None,
        pair_mask: Array | None = None,
        bias: Array | None = None,
    ) -> tuple[FeaturesStep, State]:
        """Processes one token per row, as a recurrent network.

        Args:
            x: Inputs of shape [B, C].
            state: State from ``init_state``, ``__call__`` or ``step``.
            mask: Boolean array of shape [B]; where False, the row's state is unchanged.
            positions: Integer array of shape [B], for a layer with a ``position``.
            pair_mask: Boolean array of shape [B or 1, H or 1, L] over the slots of the returned
                cache; see ``ops.Mechanism.step``.
            bias: Array of shape [B or 1, H or 1, L], added to the scores.

        Returns:
            Outputs of shape [B, out_features], and the new state.

        Raises:
            ValueError: If shapes do not match, positions are missing, each position has its own
                weights, or the layer was made with ``is_causal=False``.
        """
        self._check_step()
        if isinstance(self.key_projection, PositionLinear):
            raise ValueError(
                "this layer has separate weights for each position, so it needs whole "
                "windows and has no step; compute whole windows instead."
            )
        self._check_inputs("B", x=x)
        x = zero_padding(x, mask)
        self._check_positions(positions)
        if self.position is not None and positions is None:
            raise ValueError(_POSITIONS)
        parts = [projection(x) for projection in self._qkv_projections]
        window = None
        if self.short_convolution is not None:
            window, state = _convolution_state(state)
            parts, window = self.short_convolution.step(parts, cast(Array, window), mask)
        inputs = self._step_inputs(state, pair_mask, bias)
        y, after = self._attend_step(*self._split(x, parts, positions), x, state, mask, inputs)
        return self._project_out(y, x), after if window is None else ShortConvState(window, after)

    def _check_step(self) -> None:
        if self.context_features != self.in_features:
            raise ValueError(
                "a layer for a context of another width (context_features) has no state and no "
                "step; use project and attend_to."
            )
        if self.is_causal is False:
            raise ValueError(
                "this layer was made with is_causal=False, so its outputs depend on later tokens, "
                "which a step does not have; make it with is_causal=True."
            )

    def _check_positions(self, positions: Array | None) -> None:
        if self.position is None and positions is not None:
            raise ValueError(
                "this layer does not use positions; create it with position, such as "
                "RotaryPosition(), or omit positions."
            )


def _drop_missing(**arrays: Array | None) -> dict[str, Array]:
    """Returns the arrays that were passed, by name."""
    return {name: x for name, x in arrays.items() if x is not None}


def _add_bias(own: Array, bias: Array | None) -> Array:
    """Adds the bias of a call to that of the layer."""
    return own if bias is None else own + bias.astype(own.dtype)


def check_pair_options(
    mechanism: ops.Mechanism, has_position_bias: bool, weight_dropout_rate: float
) -> None:
    """Checks that a mechanism supports a bias of positions and dropout of the weights.

    Args:
        mechanism: The mechanism.
        has_position_bias: Whether the layer has a bias of positions.
        weight_dropout_rate: Fraction of attention weights dropped during training.

    Raises:
        OptionError: If the mechanism does not support an option, or the rate is not in [0, 1).
    """
    check_rate(weight_dropout_rate=weight_dropout_rate)
    name, can = mechanism.name, mechanism.capabilities
    if weight_dropout_rate:
        check_pair_input(name, can, "dropout_rate", "weight_dropout_rate")
    if not has_position_bias:
        return
    check_pair_input(name, can, "bias", "position_bias")
    if not isinstance(mechanism, ops.CacheMechanism) or mechanism.sinks:
        raise OptionError(
            f"position_bias needs the distances of all visible tokens, which {name!r} "
            "with sinks does not store; omit position_bias or sinks.",
            "position_bias",
            "mechanism",
        )


def _convolution_state(state: State | None) -> tuple[Array | None, State | None]:
    """Splits the state of a layer with a short convolution: its window, and the mechanism's."""
    if state is None:
        return None, None
    if not isinstance(state, ShortConvState):
        raise ValueError(
            f"a layer with short_conv needs a ShortConvState, got {type(state).__name__}; pass the "
            "state from init_state, a call or step of this layer."
        )
    return state.window, state.attention


def _packed_segments(call: Call, state: State | None) -> Segments | None:
    """Boundaries of the packed sequences of a call that goes on from a mechanism's state."""
    if call.segments is not None:
        return call.segments
    return find_packed_segments(call.segment_ids, call.mask, unpack_state(state)[1])


def _check_state_wanted(call: Call) -> None:
    if call.return_state and not call.is_causal:
        raise ValueError(
            "return_state=True needs is_causal=True: step computes causal outputs, so it cannot "
            "continue a call that is not causal; pass is_causal=True, or omit return_state."
        )


_POSITIONS = (
    "a layer with positions needs the positions of later tokens: pass positions, the number of "
    "earlier tokens for each token."
)
