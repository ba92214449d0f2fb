"""Backbone of all models: an embedding, transformer blocks, and a final norm."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Int

from flax_linattn import nn, ops
from flax_linattn.checks import OptionError, check_choice
from flax_linattn.models.embedding import Embedding, ObservationEmbedding
from flax_linattn.models.layers import Layers, sized
from flax_linattn.models.sequence_model import SequenceModel, check_state
from flax_linattn.nn.call import Call
from flax_linattn.nn.dropout import apply_dropout, make_dropout, resolve_dropout_key, split_key
from flax_linattn.ops.contract.checks import no_state_message
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array, Features, FeaturesStep, State

REMAT: dict[str, Any] = {
    "dots": jax.checkpoint_policies.dots_saveable,
    "blocks": jax.checkpoint_policies.nothing_saveable,
}
"""Policies of ``jax.checkpoint`` for a block, by the value of ``remat`` other than "none"."""


@register_state
class BackboneState(NamedTuple):
    """State that a backbone carries from call to call.

    Attributes:
        position: Number of tokens of the current segment so far, int32 [B].
        window: State of the embedding.
        layers: States of the blocks.
        segment_id: Integer array of shape [B], the segment in which the last call ended; None if
            not packed.
    """

    position: Int[Array, "B"]
    window: State
    layers: tuple[State, ...]
    segment_id: Array | None = None


class Backbone(SequenceModel):
    """Maps observations to features: an embedding, N transformer blocks and a final LayerNorm.

    After Time-Series-Library's Transformer encoder (convolution over values plus positions,
    dropout, post-LN layers, final norm). Positions count valid tokens only, so padding changes
    nothing, wherever it is. The embedding and rotary layers receive these positions, in ``step`` as
    well.

    Args:
        embedding: An :class:`Embedding`; or a number of channels, to build an
            :class:`ObservationEmbedding`.
        layers: Options of the blocks; or their width C, short for ``Layers(C)``. Default
            ``Layers()``.
        is_causal: Whether each position attends only to itself and earlier positions; required to
            stream.
        max_length: Maximum number of tokens of a sequence; needed for learned positions, as the
            default size of caches, and by mechanisms that learn something for each position.
        final_norm: Whether to normalize the last layer's output.
        class_token: Whether to prepend a learned class token, for heads that classify its features.
            It attends to all observations, and all observations attend to it. It is the first token
            of the output, [B, 1 + T, C]; it has no position (rotary layers do not rotate it), and
            no mask hides it. Requires ``is_causal=False``, whole, unpacked sequences, and layers
            without ``short_conv`` and ``position_bias``.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **options: Options of ``layers`` by name (num_layers, num_heads, mechanism, ...); dtype and
            initializers of the parameters (``nn.ParameterOptions``); and, if ``embedding`` is a
            number of channels, options of the new embedding (kernel_size, embedding_padding,
            position).

    Attributes:
        layers: Options of the blocks.
        mechanisms: Mechanism of each layer.

    Raises:
        ValueError: If an option is unknown, out of range, or not supported by this embedding.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> layers = models.Layers(features=16, num_layers=2, num_heads=4, mechanism="aaren")
        >>> tokens = models.TokenEmbedding(11, 16, rngs=nnx.Rngs(0))
        >>> backbone = models.Backbone(tokens, layers, rngs=nnx.Rngs(1))
        >>> backbone(jnp.array([[1, 2, 3]])).shape
        (1, 3, 16)
        >>> backbone = models.Backbone(3, 16, num_layers=2, num_heads=4, rngs=nnx.Rngs(0))
        >>> backbone(jnp.ones((2, 5, 3))).shape
        (2, 5, 16)
    """

    state_type = BackboneState
    output_axes = 2

    def __init__(
        self,
        embedding: Embedding | int,
        layers: Layers | int | None = None,
        *,
        is_causal: bool = True,
        max_length: int | None = None,
        final_norm: bool = True,
        class_token: bool = False,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        if isinstance(layers, (int, np.integer)):
            options = {"features": int(layers), **options}
            layers = None
        layers, options = (layers or Layers()).take(options)
        embedding_options, parameters = split_embedding_options(options)
        if class_token and is_causal:
            raise OptionError(
                "a class token comes first and attends to the whole sequence, which a causal model "
                "does not allow; make the model with is_causal=False, or without a class token.",
                "class_token",
                causal=False,
            )
        for name in ("short_conv", "position_bias"):
            if class_token and getattr(layers, name) is not None:
                raise OptionError(
                    f"a class token has no position, which {name} needs; remove {name}, or make "
                    "the model without a class token.",
                    name,
                    "class_token",
                )
        # A mechanism that learns something for each position has the class token's, too.
        slots = max_length + 1 if class_token and max_length is not None else max_length
        mechanisms = tuple(sized(m, slots) for m in layers.mechanisms)
        for mechanism in mechanisms:
            _check_direction(mechanism, is_causal)
        # Its name puts it behind the blocks: variables are ordered by name, and the norm of
        # gradients is summed in that order.
        self.input_embedding = resolve_embedding(
            embedding, layers, max_length, embedding_options, parameters, rngs
        )
        self.is_causal = is_causal
        self.layers = layers
        self.mechanisms = mechanisms
        self.max_length = max_length
        self.blocks = nnx.List(
            layers.block(mechanism, rngs, is_causal=is_causal, drop_path_rate=rate, **parameters)
            for mechanism, rate in zip(mechanisms, layers.drop_path_rates, strict=True)
        )
        self.param_dtype = parameters.get("param_dtype", jnp.float32)
        self.final_norm = (
            nn.make_norm(layers.norm_type, layers.features, param_dtype=self.param_dtype, rngs=rngs)
            if final_norm
            else None
        )
        self.dropout = make_dropout(layers.dropout_rate, rngs)
        shape = (layers.features,)
        self.class_token = (
            nnx.Param(CLASS_TOKEN_INIT(rngs.params(), shape, self.param_dtype))
            if class_token
            else None
        )

    @property
    def options(self) -> dict[str, Any]:
        return {
            "embedding": self.input_embedding,
            "layers": self.layers,
            "is_causal": self.is_causal,
            "max_length": self.max_length,
            "final_norm": self.final_norm is not None,
            "class_token": self.class_token is not None,
            "param_dtype": self.param_dtype,
        }

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self.input_embedding.observation_shape

    @property
    def streams(self) -> bool:
        return (
            self.is_causal
            and self.input_embedding.streams
            and all(block.attention.streams for block in self.blocks)
        )

    @property
    def num_positions(self) -> int | None:
        return self.input_embedding.max_length

    @property
    def constant_memory(self) -> bool:
        """Whether the state's size does not depend on the number of tokens."""
        return all(m.capabilities.constant_memory for m in self.mechanisms)

    def _map(self, x: Array, call: Call) -> tuple[Features, BackboneState | None]:
        """Maps observations to features [B, T, C], or [B, 1 + T, C] with a class token first."""
        state: BackboneState | None = call.state
        if state is not None:
            check_state(state, BackboneState, len(self.blocks))
        call = call.with_positions(x, state)
        rates = self.layers.other_dropout_rates
        key = resolve_dropout_key(self.dropout, call.dropout_key, *rates)
        keys = split_key(key, len(self.blocks) + 1)
        h, window = self.input_embedding(
            x,
            positions=cast(Array, call.positions),
            mask=call.mask,
            segments=call.segments,
            state=None if state is None else state.window,
        )
        block_call = call.replace(is_causal=self.is_causal)
        if self.class_token is not None:
            h, block_call = self._prepend_class_token(h, block_call)
        if not self.layers.rotary:
            block_call = block_call.replace(positions=None)
        h = zero_padding(apply_dropout(self.dropout, h, keys[0]), block_call.mask)
        before = [None] * len(self.blocks) if state is None else state.layers
        h, layers = self._map_blocks(h, block_call, before, keys[1:])
        h = self._apply_final_norm(h)
        if not call.return_state:
            return h, None
        return h, BackboneState(
            cast(Array, call.num_tokens), window, layers, call.last_segment(state)
        )

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> BackboneState:
        self._check_streams()
        max_length = self.max_length if max_length is None else max_length
        return BackboneState(
            position=jnp.zeros(batch_size, jnp.int32),
            window=self.input_embedding.init_state(batch_size, dtype=dtype),
            layers=tuple(
                block.init_state(batch_size, max_length, dtype=dtype) for block in self.blocks
            ),
        )

    def _map_step(
        self, x: Array, state: BackboneState, mask: Array | None
    ) -> tuple[FeaturesStep, BackboneState]:
        """Maps one observation per row to features [B, C] and the new state."""
        check_state(state, BackboneState, len(self.blocks))
        h, window = self.input_embedding.step(x, state.window, positions=state.position, mask=mask)
        positions = state.position if self.layers.rotary else None
        layers = []
        for block, layer in zip(self.blocks, state.layers, strict=True):
            h, layer = block.step(h, layer, mask=mask, positions=positions)
            layers.append(layer)
        new = jnp.ones(x.shape[0], jnp.int32) if mask is None else mask.astype(jnp.int32)
        return self._apply_final_norm(h), BackboneState(
            state.position + new, window, tuple(layers), state.segment_id
        )

    def _apply_final_norm(self, h: Array) -> Array:
        return h if self.final_norm is None else self.final_norm(h)

    def _map_blocks(
        self,
        h: Features,
        call: Call,
        states: Sequence[State | None],
        keys: Sequence[Array | None],
    ) -> tuple[Features, tuple[State | None, ...]]:
        """Applies all blocks, each with its state and dropout key; returns the states after them.

        With ``scan_layers`` the program holds one period of the blocks, and scans over all periods,
        whose parameters it stacks.
        """

        def apply(h: Features, now: Any) -> tuple[Features, tuple[State | None, ...]]:
            after = []
            for block, state, key in zip(*now, strict=True):
                h, state = self._map_block(block, h, call.replace(state=state, dropout_key=key))
                after.append(state)
            return h, tuple(after)

        period = self.layers.scan_period
        if not self.layers.scan_layers or period == len(self.blocks):
            return apply(h, (self.blocks, states, keys))
        graphdefs, variables = zip(*map(nnx.split, self.blocks), strict=True)
        if graphdefs != len(self.blocks) // period * graphdefs[:period]:
            raise ValueError(
                "scan_layers needs blocks that differ in their parameters only, but an attribute "
                "of a block was changed; make the model without scan_layers."
            )

        def body(h: Features, now: Any) -> tuple[Features, tuple[State | None, ...]]:
            variables, *others = now
            return apply(h, (map(nnx.merge, graphdefs[:period], variables), *others))

        periods = [
            tuple(list(each[i : i + period]) for each in (variables, states, keys))
            for i in range(0, len(self.blocks), period)
        ]
        h, after = jax.lax.scan(body, h, jax.tree.map(lambda *leaves: jnp.stack(leaves), *periods))
        return h, tuple(
            jax.tree.map(itemgetter(i), state) for i in range(len(periods)) for state in after
        )

    def _map_block(
        self, block: nn.TransformerBlock, h: Features, call: Call
    ) -> tuple[Features, State | None]:
        """Applies a block; ``remat`` selects what is stored for its gradient."""
        if self.layers.remat == "none":
            return block._map(h, call)
        graphdef, variables = nnx.split(block)

        def run(variables: nnx.State, h: Features, call: Call) -> tuple[Features, State | None]:
            return nnx.merge(graphdef, variables)._map(h, call)

        return jax.checkpoint(run, policy=REMAT[self.layers.remat])(variables, h, call)

    def _prepend_class_token(self, h: Features, call: Call) -> tuple[Features, Call]:
        """Prepends the class token to the features, and to the call."""
        batch, _, features = h.shape
        token = jnp.broadcast_to(cast(Any, self.class_token)[...], (batch, 1, features))
        positions, mask = cast(Array, call.positions), call.mask
        return _prepend(token, h), call.replace(
            positions=_prepend(jnp.zeros((batch, 1)), positions),
            mask=None if mask is None else _prepend(jnp.ones((batch, 1)), mask),
        )

    def _check_packs(self) -> None:
        """Raises ValueError if there is a class token, since each row has only one."""
        if self.class_token is not None:
            raise ValueError(
                "packed sequences would share the one class token of their row; pass each sequence "
                "in its own row, or make the model without a class token."
            )

    def _check_streams(self) -> None:
        """Raises ValueError that names the part of the model that has no state."""
        if self.class_token is not None:
            raise ValueError(
                "a class token attends to the whole sequence, so this model has no state and "
                "cannot stream; make it without a class token and with is_causal=True."
            )
        for mechanism in self.mechanisms:
            if not mechanism.capabilities.recurrent:
                raise ValueError(no_state_message(mechanism.name))
        if not all(block.attention.streams for block in self.blocks):
            for block in self.blocks:
                block.attention.init_state(1)  # raises if heads are too large to have a state
            raise ValueError(
                "each position of these layers has its own weights, so they cannot stream; step "
                "the WindowModel around them, whose state is the window."
            )
        if not self.streams:
            reason = "is not causal" if not self.is_causal else "has a non-causal embedding"
            raise ValueError(
                f"this model {reason}, so it depends on later observations and cannot stream; make "
                "it with is_causal=True and, on observations, embedding_padding='causal'."
            )


CLASS_TOKEN_INIT = nnx.initializers.normal(1e-6)
"""Initializer of class tokens, as in timm's vision transformers."""


EMBEDDING_OPTIONS = {
    "kernel_size": "kernel_size",
    "embedding_padding": "padding",
    "position": "position",
}
"""Options of ``ObservationEmbedding`` by the names that ``Backbone`` gives them."""


def resolve_embedding(
    embedding: Embedding | int,
    layers: Layers,
    max_length: int | None,
    embedding_options: Mapping[str, Any],
    parameters: nn.ParameterOptions,
    rngs: nnx.Rngs,
) -> Embedding:
    """Returns the given embedding, or a new one of observations with this number of channels.

    ``embedding_options`` and ``parameters`` are the results of ``split_embedding_options``.
    """
    if isinstance(embedding, (int, np.integer)):
        made: Embedding = ObservationEmbedding(
            int(embedding),
            layers.features,
            max_length=max_length,
            dtype=layers.compute_dtype,
            param_dtype=parameters.get("param_dtype", jnp.float32),
            kernel_init=parameters.get("kernel_init"),
            rngs=rngs,
            **{EMBEDDING_OPTIONS[name]: value for name, value in embedding_options.items()},
        )
    elif embedding_options:
        raise OptionError(
            f"{', '.join(embedding_options)}: options of the embedding, which was already made; "
            "pass them to the embedding instead.",
            *embedding_options,
        )
    elif not isinstance(embedding, Embedding):
        raise TypeError(
            "expected a number of channels, or an embedding with features, observation_shape, "
            f"max_length, streams, init_state and step, got {type(embedding).__name__}."
        )
    else:
        made = embedding
    if made.features != layers.features:
        raise OptionError(
            f"the embedding has {made.features} features, but the layers have {layers.features}; "
            "make them equal.",
            "features",
        )
    return made


def split_embedding_options(
    options: Mapping[str, Any],
) -> tuple[dict[str, Any], nn.ParameterOptions]:
    """Splits options into options of an ``ObservationEmbedding`` and parameter options."""
    parameter_names = nn.ParameterOptions.__annotations__
    names = [*(field.name for field in dataclasses.fields(Layers)), *EMBEDDING_OPTIONS]
    for name in options:
        check_choice([*names, *parameter_names], option=name)
    embedding = {name: value for name, value in options.items() if name in EMBEDDING_OPTIONS}
    parameters = {name: value for name, value in options.items() if name in parameter_names}
    return embedding, cast(nn.ParameterOptions, parameters)


def _prepend(first: Array, others: Array) -> Array:
    """Concatenates entries of the class token and entries of the observations, along time."""
    return jnp.concatenate([first.astype(others.dtype), others], axis=1)


def _check_direction(mechanism: ops.Mechanism, is_causal: bool) -> None:
    can = mechanism.capabilities
    if not (can.causal if is_causal else can.noncausal):
        raise OptionError(
            f"{mechanism.name!r} does not support is_causal={is_causal}; make the model with "
            f"is_causal={not is_causal} or with another mechanism.",
            "mechanism",
            causal=not is_causal,
        )
