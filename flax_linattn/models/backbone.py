"""The backbone that all models share: an embedding, transformer blocks, a final norm."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Unpack, cast, overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Int

from flax_linattn import nn, ops
from flax_linattn.checks import OptionError, array, choice
from flax_linattn.models.embedding import Embedding, ObservationEmbedding
from flax_linattn.models.layers import REMAT, Layers, sized
from flax_linattn.nn.dropout import apply_dropout, dropout_key_of, make_dropout, split_key
from flax_linattn.nn.meshes import automatic
from flax_linattn.ops.contract.checks import no_state
from flax_linattn.ops.contract.masks import packed_runs
from flax_linattn.ops.contract.state import exportable
from flax_linattn.typing import (
    Array,
    Features,
    FeaturesStep,
    Mask,
    SegmentIds,
    SequenceOptions,
    State,
)


@exportable
class BackboneState(NamedTuple):
    """What a backbone carries from call to call.

    Attributes:
        position: int32 [B], number of tokens of the current segment taken in.
        window: the embedding's state.
        layers: the blocks' states.
        segment_id: int [B], the segment in which the last call ended; None if not packed.
    """

    position: Int[Array, "B"]
    window: State
    layers: tuple[State, ...]
    segment_id: Array | None = None


class BackboneOptions(SequenceOptions, total=False):
    """Options of a call of ``Backbone``, see there."""

    dropout_key: Array | None


class Backbone(nnx.Module):
    """Observations to features: embedding, N blocks, a final LayerNorm unless it is left out.

    After Time-Series-Library's Transformer encoder (convolution over values plus positions,
    dropout, post-LN layers, final norm). Positions count real tokens only, so padding
    anywhere changes nothing; the embedding is told them, and rotary layers, in ``step`` too.

    Args:
        embedding: an :class:`Embedding`; or a number of channels, for an
            :class:`ObservationEmbedding`.
        layers: the blocks; or their width, for ``Layers(features)``. Default ``Layers()``.
        is_causal: each position sees itself and the past; needed to stream.
        max_length: most tokens of a sequence; needed for learned positions, as the default
            size of caches, and by mechanisms that learn something for each position.
        final_norm: whether the last layer's output is normalised.
        class_token: put a learned vector before the observations, which sees all of them and which
            they see, for heads that classify by it. It comes first in what is returned, [B, 1 + T,
            C]; it is no observation, so it has no position (rotary layers leave it unturned) and no
            mask hides it. Needs ``is_causal=False``, and sequences that come whole and unpacked.
        rngs: holds the stream "params", and perhaps "dropout".
        **options: options of ``layers`` by name (num_layers, num_heads, mechanism, ...); how
            parameters are made (``nn.ParameterOptions``); and with a number of channels, those of
            its embedding (kernel_size, embedding_padding, position).

    Attributes:
        layers: the blocks' options.
        mechanisms: of each layer.

    Raises:
        ValueError: an option that is unknown, out of range, or not for this embedding.

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
        of_embedding, parameters = parted(options)
        if class_token and is_causal:
            raise OptionError(
                "a class token comes first and sees all that follows, which a causal model does "
                "not let it; make the model with is_causal=False, or without a class token.",
                "class_token",
                causal=False,
            )
        # A mechanism that learns something for each position has the class token's, too.
        slots = max_length + 1 if class_token and max_length is not None else max_length
        mechanisms = tuple(sized(m, slots) for m in layers.mechanisms)
        for mechanism in mechanisms:
            _check_direction(mechanism, is_causal)
        # Its name puts it behind the blocks: variables are ordered by name, and the norm of
        # gradients is summed in that order.
        self.input_embedding = as_embedding(
            embedding, layers, max_length, of_embedding, parameters, rngs
        )
        self.is_causal = is_causal
        self.layers = layers
        self.mechanisms = mechanisms
        self.max_length = max_length
        self.blocks = nnx.List(
            layers.block(mechanism, rngs, drop_path_rate=rate, **parameters)
            for mechanism, rate in zip(mechanisms, layers.drop_path_rates, strict=True)
        )
        self.param_dtype = parameters.get("param_dtype", jnp.float32)
        self.final_norm = (
            nn.LayerNorm(layers.features, param_dtype=self.param_dtype, rngs=rngs)
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
        """The arguments that make one like it, as ``save_model`` keeps them."""
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
        """Of one observation, see ``Embedding``."""
        return self.input_embedding.observation_shape

    @property
    def streams(self) -> bool:
        """Whether ``init_state`` and ``step`` are offered."""
        return (
            self.is_causal
            and self.input_embedding.streams
            and all(block.attention.streams for block in self.blocks)
        )

    @property
    def num_positions(self) -> int | None:
        """Most observations of a sequence that have a position; None = any number."""
        return self.input_embedding.max_length

    @property
    def constant_memory(self) -> bool:
        """Whether the state's size does not depend on the number of tokens."""
        return all(m.capabilities.constant_memory for m in self.mechanisms)

    @overload
    def __call__(
        self,
        x: Array,
        *,
        return_state: Literal[False] = False,
        **options: Unpack[BackboneOptions],
    ) -> Features: ...

    @overload
    def __call__(
        self, x: Array, *, return_state: Literal[True], **options: Unpack[BackboneOptions]
    ) -> tuple[Features, BackboneState]: ...

    @overload
    def __call__(
        self, x: Array, *, return_state: bool, **options: Unpack[BackboneOptions]
    ) -> Features | tuple[Features, BackboneState]: ...

    @automatic(2)
    def __call__(
        self,
        x: Array,
        *,
        mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        state: BackboneState | None = None,
        return_state: bool = False,
        dropout_key: Array | None = None,
        form: str = "auto",
    ) -> Features | tuple[Features, BackboneState]:
        """Maps whole sequences.

        Args:
            x: observations ``[B, T, *observation_shape]``, T >= 1.
            mask: bool [B, T], True = a real token.
            segment_ids: int [B, T], packed sequences.
            state: what an earlier call returned.
            return_state: return ``(h, state)``.
            dropout_key: a key turns dropout on (training); see ``nn.TransformerBlock``.
            form: see ``ops.Mechanism.attend``.

        Returns:
            h [B, T, C], and the state if asked for; with a class token h [B, 1 + T, C], its
            features first. At masked positions h means nothing.

        Raises:
            ValueError: wrong shapes, a state where the model cannot stream, or packed sequences of
                a model with a class token.
        """
        self._check_input(x, mask, segment_ids, state is not None or return_state)
        if state is not None:
            check_state(state, BackboneState, len(self.blocks), batch_size=x.shape[0])
        real = jnp.ones(x.shape[:2], bool) if mask is None else mask
        runs = packed_runs(segment_ids, mask, None if state is None else state.segment_id)
        offset = jnp.zeros(x.shape[0], jnp.int32) if state is None else state.position
        positions, position = nn.token_positions(real, runs, offset)

        key = dropout_key_of(self.dropout, dropout_key, self.layers.drop_path_rates[-1])
        keys = split_key(key, len(self.blocks) + 1)
        h, window = self.input_embedding(
            x,
            positions=positions,
            mask=mask,
            runs=runs,
            state=None if state is None else state.window,
        )
        if self.class_token is not None:
            h = _behind(jnp.broadcast_to(self.class_token[...], (x.shape[0], 1, h.shape[-1])), h)
            positions = _behind(jnp.zeros((x.shape[0], 1)), positions)
            mask = None if mask is None else _behind(jnp.ones((x.shape[0], 1)), mask)
        h = apply_dropout(self.dropout, h, keys[0])
        layers = []
        for i, block in enumerate(self.blocks):
            h, layer = self._call_of(block)(
                h,
                is_causal=self.is_causal,
                mask=mask,
                segment_ids=segment_ids,
                positions=positions if self.layers.rotary else None,
                state=None if state is None else state.layers[i],
                keep_state=return_state,
                dropout_key=keys[i + 1],
                form=form,
            )
            layers.append(layer)
        h = self._normed(h)
        if not return_state:
            return h
        segment_id = runs.last if runs is not None else state.segment_id if state else None
        return h, BackboneState(position, window, tuple(layers), segment_id)

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> BackboneState:
        """The state before the first observation.

        Args:
            batch_size: B.
            max_length: most observations, for mechanisms with a cache; default the model's.
            dtype: dtype of the inputs: float64 ones need a state of float64.

        Raises:
            ValueError: the model looks at the future, so it cannot stream.
        """
        self._check_streams()
        max_length = self.max_length if max_length is None else max_length
        return BackboneState(
            position=jnp.zeros(batch_size, jnp.int32),
            window=self.input_embedding.init_state(batch_size, dtype=dtype),
            layers=tuple(
                block.init_state(batch_size, max_length, dtype=dtype) for block in self.blocks
            ),
        )

    @automatic(1)
    def step(
        self, x: Array, state: BackboneState, *, mask: Array | None = None
    ) -> tuple[FeaturesStep, BackboneState]:
        """Takes in one observation a row, without dropout.

        Args:
            x: ``[B, *observation_shape]``.
            state: from ``init_state``, the call or ``step``.
            mask: bool [B]; where False the state stays as it is.

        Returns:
            h [B, C] and the new state.

        Raises:
            ValueError: shapes that do not fit.
        """
        check_state(state, BackboneState, len(self.blocks))
        expected = (state.position.shape[0], *self.observation_shape)
        if x.shape != expected:
            raise ValueError(
                f"expected an observation for each row of the state, {expected}, got {x.shape}."
            )
        h, window = self.input_embedding.step(x, state.window, positions=state.position, mask=mask)
        positions = state.position if self.layers.rotary else None
        layers = []
        for block, layer in zip(self.blocks, state.layers, strict=True):
            h, layer = block.step(h, layer, mask=mask, positions=positions)
            layers.append(layer)
        new = jnp.ones(x.shape[0], jnp.int32) if mask is None else mask.astype(jnp.int32)
        return self._normed(h), BackboneState(
            state.position + new, window, tuple(layers), state.segment_id
        )

    def _normed(self, h: Array) -> Array:
        return h if self.final_norm is None else self.final_norm(h)

    def _call_of(self, block: nn.TransformerBlock) -> Any:
        """A block's call, which keeps for its gradient what it is to keep."""
        if self.layers.remat == "none":
            return partial(_run, block)
        return partial(_recomputed, REMAT[self.layers.remat], block)

    def _check_input(
        self, x: Array, mask: Array | None, segment_ids: Array | None, streaming: bool
    ) -> None:
        check_observations(x, mask, segment_ids, self.input_embedding)
        if segment_ids is not None and self.class_token is not None:
            raise ValueError(
                "packed sequences would share the one class token of their row; give each a row of "
                "its own, or make the model without a class token."
            )
        if streaming:
            self._check_streams()

    def _check_streams(self) -> None:
        if self.class_token is not None:
            raise ValueError(
                "a class token sees the whole sequence, so this model has no state and cannot "
                "stream; make it without one and with is_causal=True."
            )
        for mechanism in self.mechanisms:
            if not mechanism.capabilities.recurrent:
                raise ValueError(no_state(mechanism.name))
        if not all(block.attention.streams for block in self.blocks):
            for block in self.blocks:
                block.attention.init_state(1)  # says so where heads are too large to have one
            raise ValueError(
                "each position of these layers has weights of its own, so that they cannot stream; "
                "step the model around them, which keeps its window."
            )
        if not self.streams:
            why = "is not causal" if not self.is_causal else "has an embedding that is not causal"
            raise ValueError(
                f"this model {why}, so it looks at the future and cannot stream; make it with "
                "is_causal=True and, on observations, embedding_padding='causal'."
            )


def check_observations(
    x: Array, mask: Mask | None, segment_ids: SegmentIds | None, embedding: Embedding
) -> None:
    """Refuses sequences that an embedding does not take, masks and ids of another shape.

    Raises:
        ValueError: other observations or none, more than have positions, or such a mask or ids.
        TypeError: they are no array.
    """
    shape, most = embedding.observation_shape, embedding.max_length
    axes = ", ".join(map(str, ("B", "T >= 1", *shape)))
    array(f"[{axes}]", observations=x)
    if x.ndim < 2 or x.shape[2:] != shape or x.shape[1] == 0:
        raise ValueError(f"expected observations [{axes}], got {x.shape}.")
    if mask is not None and (mask.dtype != bool or mask.shape != x.shape[:2]):
        raise ValueError(
            f"expected mask as bool {x.shape[:2]}, True = a real token, got {mask.dtype} "
            f"{mask.shape}."
        )
    if segment_ids is not None and segment_ids.shape != x.shape[:2]:
        raise ValueError(
            f"expected segment_ids as int {x.shape[:2]}, got shape {segment_ids.shape}."
        )
    # Rows with padding or several segments may be longer than any of their sequences.
    whole = mask is None and segment_ids is None
    if most is not None and whole and x.shape[1] > most:
        raise ValueError(
            f"the model has positions for {most} observations, got {x.shape[1]}; "
            "make it with a larger max_length or with position='sinusoidal'."
        )


def check_state(
    state: Any, kind: type, num_layers: int | None = None, *, batch_size: int | None = None
) -> None:
    """Refuses what is no state of this kind of model.

    Raises:
        ValueError: it is something else, or has another number of layers or rows.

    Example:
        >>> check_state((1, 2), BackboneState)
        Traceback (most recent call last):
        ...
        ValueError: expected a BackboneState, of init_state or an earlier call of this model, got \
tuple.
    """
    if not isinstance(state, kind):
        raise ValueError(
            f"expected a {kind.__name__}, of init_state or an earlier call of this model, got "
            f"{type(state).__name__}."
        )
    layers = getattr(state, "layers", ())
    if num_layers is not None and len(layers) != num_layers:
        raise ValueError(
            f"expected a state of {num_layers} layers, of this model, got {len(layers)}."
        )
    if batch_size is None:
        return
    rows = jax.tree.leaves(state)[0].shape[0]
    if rows != batch_size:
        raise ValueError(
            f"the state has {rows} rows, and observations of {batch_size} came; each row goes on "
            "from its own state: pass as many, or make one with init_state(batch_size)."
        )


CLASS_TOKEN_INIT = nnx.initializers.normal(1e-6)
"""Of class tokens, as timm's vision transformers have it."""


EMBEDDING_OPTIONS = {
    "kernel_size": "kernel_size",
    "embedding_padding": "padding",
    "position": "position",
}
"""Options of ``ObservationEmbedding`` by their names in a backbone's short call."""


def as_embedding(
    embedding: Embedding | int,
    layers: Layers,
    max_length: int | None,
    of_embedding: Mapping[str, Any],
    parameters: nn.ParameterOptions,
    rngs: nnx.Rngs,
) -> Embedding:
    """What leads into layers: the embedding given, or one of observations of so many channels.

    Args:
        embedding: the one, or the number.
        layers: those that it leads into.
        max_length: most tokens of a sequence.
        of_embedding: options of an embedding of observations, see ``parted``.
        parameters: how its parameters are made.
        rngs: holds the stream "params".

    Raises:
        OptionError: options of an embedding that is given, or another width than the layers have.
        TypeError: it is neither.
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
            **{EMBEDDING_OPTIONS[name]: value for name, value in of_embedding.items()},
        )
    elif of_embedding:
        raise OptionError(
            f"{', '.join(of_embedding)} belong to the embedding; give them to it.",
            *of_embedding,
        )
    elif not isinstance(embedding, Embedding):
        raise TypeError(
            "expected an embedding, with features, observation_shape, max_length, streams, "
            f"init_state and step, or a number of channels, got {type(embedding).__name__}."
        )
    else:
        made = embedding
    if made.features != layers.features:
        raise OptionError(
            f"the embedding has {made.features} features and the layers {layers.features}; make "
            "them equal.",
            "features",
        )
    return made


def parted(options: Mapping[str, Any]) -> tuple[dict[str, Any], nn.ParameterOptions]:
    """Options of an embedding on observations, and those of parameters.

    Raises:
        ValueError: one is neither.
    """
    of_parameters = nn.ParameterOptions.__annotations__
    names = [*(field.name for field in dataclasses.fields(Layers)), *EMBEDDING_OPTIONS]
    for name in options:
        choice([*names, *of_parameters], option=name)
    embedding = {name: value for name, value in options.items() if name in EMBEDDING_OPTIONS}
    parameters = {name: value for name, value in options.items() if name in of_parameters}
    return embedding, cast(nn.ParameterOptions, parameters)


HEAD_OPTIONS = ("param_dtype", "kernel_init", "bias_init")
"""Those of ``ParameterOptions`` that a head of one layer has."""


def as_backbone(
    backbone: Backbone | int,
    layers: Layers | None,
    default: Layers,
    *,
    reads_class_token: bool = False,
    rngs: nnx.Rngs,
    **options: Any,
) -> tuple[Backbone, dict[str, Any]]:
    """A head's backbone, the one given or one for so many channels, and the head's own options.

    Args:
        backbone: of the head.
        layers: of the backbone for so many channels; default ``default``.
        default: the layers of such a head unless others are given.
        reads_class_token: whether the head reads a class token, and nothing else.
        rngs: holds the stream "params".
        **options: of that backbone, and how the parameters of both are made.

    Raises:
        ValueError: a backbone is given, and options of one; or it has a class token where the head
            reads none, or none where it does.
    """
    of_head = {name: options[name] for name in HEAD_OPTIONS if name in options}
    if not isinstance(backbone, Backbone):
        if reads_class_token:
            options = {"class_token": True, **options}
        backbone = Backbone(backbone, layers or default, rngs=rngs, **options)
    else:
        given = {"layers": layers, **options}
        refused = [name for name, v in given.items() if v is not None and name not in of_head]
        if refused:
            raise OptionError(
                f"{', '.join(refused)} are options of a backbone, which is given; give them to it.",
                *refused,
            )
    check_class_token(backbone, reads_class_token)
    return backbone, of_head


def check_class_token(backbone: Backbone, needed: bool) -> None:
    """Refuses a backbone without the class token that a head reads, or with one it does not.

    Raises:
        OptionError: it is such a one.
    """
    if needed and backbone.class_token is None:
        raise OptionError(
            "the head reads a class token, which the backbone does not have; make it with "
            "class_token=True.",
            "class_token",
        )
    if not needed and backbone.class_token is not None:
        raise OptionError(
            "the backbone has a class token, which this head would take for an observation; make "
            'it without one, or a SequenceClassifier with pooling="class".',
            "class_token",
        )


def _behind(first: Array, others: Array) -> Array:
    """What stands for the class token, then what does for the observations, along time."""
    return jnp.concatenate([first.astype(others.dtype), others], axis=1)


def _check_direction(mechanism: ops.Mechanism, is_causal: bool) -> None:
    can = mechanism.capabilities
    if not (can.causal if is_causal else can.noncausal):
        raise OptionError(
            f"{mechanism.name!r} is not offered with is_causal={is_causal}; make the model with "
            f"is_causal={not is_causal} or with another mechanism.",
            "mechanism",
            causal=not is_causal,
        )


def _run(
    block: nn.TransformerBlock, h: Features, *, keep_state: bool, **how: Any
) -> tuple[Features, State]:
    """A block's output and its state, None where that is not kept."""
    if keep_state:
        return block(h, return_state=True, **how)
    return block(h, **how), None


def _recomputed(
    policy: Any,
    block: nn.TransformerBlock,
    h: Features,
    *,
    mask: Mask | None,
    segment_ids: SegmentIds | None,
    positions: Array | None,
    state: State | None,
    dropout_key: Array | None,
    **how: Any,
) -> tuple[Features, State]:
    """The same, whose gradient computes the block again, but for what the policy keeps."""
    graphdef, variables = nnx.split(block)

    def run(variables: nnx.State, h: Features, arrays: dict[str, Any]) -> tuple[Features, State]:
        return _run(nnx.merge(graphdef, variables), h, **arrays, **how)

    again = jax.checkpoint(run, policy=policy)
    arrays = {
        "mask": mask,
        "segment_ids": segment_ids,
        "positions": positions,
        "state": state,
        "dropout_key": dropout_key,
    }
    return again(variables, h, arrays)
