"""Sequences read by latents: constant memory, and layers that run once an output, not a token."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Unpack, overload

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from flax_linattn import nn, ops
from flax_linattn.checks import OptionError, at_least
from flax_linattn.models.backbone import (
    HEAD_OPTIONS,
    Backbone,
    BackboneOptions,
    as_embedding,
    check_observations,
    check_state,
    parted,
)
from flax_linattn.models.embedding import Embedding, FeatureEmbedding
from flax_linattn.models.layers import Layers
from flax_linattn.nn.dropout import apply_dropout, dropout_key_of, make_dropout, split_key
from flax_linattn.nn.linear import linear
from flax_linattn.nn.meshes import automatic
from flax_linattn.ops.contract.masks import packed_runs
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.contract.state import exportable
from flax_linattn.typing import Array, Mask, SegmentIds, State

PERCEIVER_LAYERS = Layers(num_layers=2, hidden_features=256, mechanism="softmax")
"""The layers among the latents unless others are given."""


@exportable
class PerceiverState(NamedTuple):
    """What a reader carries from call to call; its size does not depend on the number of tokens.

    Attributes:
        position: int32 [B], number of tokens of the current segment taken in.
        window: the embedding's state.
        latents: what the latents have read.
        segment_id: int [B], the segment in which the last call ended; None if not packed.
    """

    position: Int[Array, "B"]
    window: State
    latents: State
    segment_id: Array | None = None


class PerceiverOptions(BackboneOptions, total=False):
    """Options of a call of ``PerceiverReader``, see there."""

    every_step: bool


class PerceiverReader(nnx.Module):
    """Outputs of sequences that latents read: a Perceiver that also runs token by token.

    After Jaegle et al., "Perceiver", 2021: tokens are embedded, a few learned latents attend to
    them (``nn.LatentAttention``), attend to each other in layers, and their mean leads to the
    outputs. Departures: the latents read once, so that what they have read is a state of constant
    size (Feng et al., "Attention as an RNN", 2024, section 3.1); the layer that follows has the
    feed-forward part that a Perceiver's cross-attention has of its own.

    Tokens see nothing of each other but what the embedding's convolution covers: to read and to
    remember one costs the same at any depth. Each output runs the layers once over the latents: a
    call once a sequence, ``every_step`` and ``step`` once a token.

    Args:
        embedding: an :class:`Embedding`; or a number of channels, for an
            :class:`ObservationEmbedding`.
        num_outputs: outputs, such as classes.
        num_latents: L.
        reads_by: the mechanism of the latents that read, one with ``capabilities.given_queries``.
        layers: those among the latents, which are not causal; default ``PERCEIVER_LAYERS``.
        max_length: most tokens of a sequence, for learned positions.
        rngs: holds the stream "params", and perhaps "dropout".
        **options: options of ``layers`` by name; how parameters are made
            (``nn.ParameterOptions``); and with a number of channels, those of its embedding
            (kernel_size, embedding_padding, position).

    Raises:
        ValueError: an option that is unknown or out of range, or positions for latents, which have
            none (``rotary``).

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> model = models.PerceiverReader(3, 5, num_latents=4, features=16, num_heads=4,
        ...                                rngs=nnx.Rngs(0))
        >>> x = jnp.linspace(0, 1, 60).reshape(2, 10, 3)
        >>> logits, state = model(x), model.init_state(2)
        >>> for t in range(10):
        ...     logits_t, state = model.step(x[:, t], state)
        >>> bool(jnp.allclose(logits, logits_t, atol=1e-5))
        True
    """

    def __init__(
        self,
        embedding: Embedding | int,
        num_outputs: int,
        *,
        num_latents: int = 16,
        reads_by: str | ops.Mechanism = "aaren",
        layers: Layers | None = None,
        max_length: int | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        at_least(1, num_outputs=num_outputs, num_latents=num_latents)
        layers, options = (layers or PERCEIVER_LAYERS).take(options)
        if layers.rotary:
            raise OptionError("latents have no positions; leave rotary out.", "rotary")
        for mechanism in layers.mechanisms:
            if not mechanism.capabilities.noncausal:
                raise OptionError(
                    f"latents have no order, and {mechanism.name!r} is causal only; choose another "
                    "mechanism for the layers among them.",
                    "mechanism",
                )
        of_embedding, parameters = parted(options)
        self.input_embedding = as_embedding(
            embedding, layers, max_length, of_embedding, parameters, rngs
        )
        self.num_outputs = num_outputs
        self.num_latents = num_latents
        self.reads_by = reads_by
        self.max_length = max_length
        self.latent_attention = nn.LatentAttention(
            layers.features,
            layers.num_heads,
            num_latents,
            mechanism=reads_by,
            dtype=layers.compute_dtype,
            rngs=rngs,
            **parameters,
        )
        self.param_dtype = parameters.get("param_dtype", jnp.float32)
        self.read_norm = nn.LayerNorm(layers.features, param_dtype=self.param_dtype, rngs=rngs)
        self.backbone = Backbone(
            FeatureEmbedding(layers.features),
            layers,
            is_causal=False,
            max_length=num_latents,
            rngs=rngs,
            **parameters,
        )
        self.dropout = make_dropout(layers.dropout_rate, rngs)
        of_head: Any = {name: parameters[name] for name in HEAD_OPTIONS if name in parameters}  # type: ignore[literal-required]
        self.head = linear(layers.features, num_outputs, rngs=rngs, **of_head)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that make one like it, as ``save_model`` keeps them."""
        return {
            "embedding": self.input_embedding,
            "num_outputs": self.num_outputs,
            "num_latents": self.num_latents,
            "reads_by": self.reads_by,
            "layers": self.layers,
            "max_length": self.max_length,
            "param_dtype": self.param_dtype,
        }

    @property
    def layers(self) -> Layers:
        """Those among the latents."""
        return self.backbone.layers

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Of one observation, see ``Embedding``."""
        return self.input_embedding.observation_shape

    @property
    def streams(self) -> bool:
        """Whether ``init_state`` and ``step`` are offered: the embedding has to be causal."""
        return self.input_embedding.streams

    @property
    def num_positions(self) -> int | None:
        """Most observations of a sequence that have a position; None = any number."""
        return self.input_embedding.max_length

    @overload
    def __call__(
        self,
        x: Array,
        *,
        return_state: Literal[False] = False,
        **options: Unpack[PerceiverOptions],
    ) -> Array: ...

    @overload
    def __call__(
        self, x: Array, *, return_state: Literal[True], **options: Unpack[PerceiverOptions]
    ) -> tuple[Array, PerceiverState]: ...

    @overload
    def __call__(
        self, x: Array, *, return_state: bool, **options: Unpack[PerceiverOptions]
    ) -> Array | tuple[Array, PerceiverState]: ...

    @automatic(1)
    def __call__(
        self,
        x: Array,
        *,
        mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        state: PerceiverState | None = None,
        return_state: bool = False,
        every_step: bool = False,
        dropout_key: Array | None = None,
        form: str = "auto",
    ) -> Array | tuple[Array, PerceiverState]:
        """Reads whole sequences.

        Args:
            x: observations ``[B, T, *observation_shape]``, T >= 1.
            mask: bool [B, T], True = a real token.
            segment_ids: int [B, T], packed sequences; needs ``every_step``.
            state: what an earlier call returned; its observations come first.
            return_state: return ``(outputs, state)``.
            every_step: the outputs of every prefix instead of the whole.
            dropout_key: a key turns dropout on (training).
            form: see ``ops.Mechanism.attend``.

        Returns:
            Outputs [B, num_outputs], or [B, T, num_outputs] with ``every_step``, which mean nothing
            at masked positions.

        Raises:
            ValueError: wrong shapes, too long a sequence, packed sequences that are read as one, or
                a state or every step of a model whose embedding looks at the future.
        """
        if every_step or return_state or state is not None:
            self._check_streams()
        if segment_ids is not None and not every_step:
            raise ValueError(
                "latents would read the packed sequences of a row as one; give each a row of its "
                "own, or pass every_step=True and take the outputs at their last tokens."
            )
        check_observations(x, mask, segment_ids, self.input_embedding)
        if state is not None:
            check_state(state, PerceiverState, batch_size=x.shape[0])
        real = jnp.ones(x.shape[:2], bool) if mask is None else mask
        runs = packed_runs(segment_ids, mask, None if state is None else state.segment_id)
        offset = jnp.zeros(x.shape[0], jnp.int32) if state is None else state.position
        positions, position = nn.token_positions(real, runs, offset)
        keys = split_key(dropout_key_of(self.dropout, dropout_key), 3)
        h, window = self.input_embedding(
            x,
            positions=positions,
            mask=mask,
            runs=runs,
            state=None if state is None else state.window,
        )
        attended = self.latent_attention(
            self._before(apply_dropout(self.dropout, h, keys[0])),
            is_causal=every_step,
            mask=mask,
            segment_ids=segment_ids,
            state=None if state is None else state.latents,
            return_state=return_state,
            form=form,
        )
        read, latents = attended if isinstance(attended, tuple) else (attended, None)
        y = self._outputs(apply_dropout(self.dropout, read, keys[1]), keys[2])
        if not return_state:
            return y
        segment_id = runs.last if runs is not None else state.segment_id if state else None
        return y, PerceiverState(position, window, latents, segment_id)

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> PerceiverState:
        """The state before the first observation.

        Args:
            batch_size: B.
            max_length: not needed: the state does not grow.
            dtype: dtype of the inputs: float64 ones need a state of float64.

        Raises:
            ValueError: the model looks at the future, so it cannot stream.
        """
        self._check_streams()
        return PerceiverState(
            position=jnp.zeros(batch_size, jnp.int32),
            window=self.input_embedding.init_state(batch_size, dtype=dtype),
            latents=self.latent_attention.init_state(batch_size, dtype=dtype),
        )

    @automatic(1)
    def step(
        self, x: Array, state: PerceiverState, *, mask: Array | None = None
    ) -> tuple[Float[Array, "B outputs"], PerceiverState]:
        """Takes in one observation a row, without dropout.

        Args:
            x: ``[B, *observation_shape]``.
            state: from ``init_state``, the call or ``step``.
            mask: bool [B]; where False the state stays as it is, and the outputs mean nothing.

        Returns:
            Outputs [B, num_outputs] and the new state.

        Raises:
            ValueError: shapes that do not fit.
        """
        check_state(state, PerceiverState)
        expected = (state.position.shape[0], *self.observation_shape)
        if x.shape != expected:
            raise ValueError(
                f"expected an observation for each row of the state, {expected}, got {x.shape}."
            )
        h, window = self.input_embedding.step(x, state.window, positions=state.position, mask=mask)
        read, latents = self.latent_attention.step(self._before(h), state.latents, mask=mask)
        new = jnp.ones(x.shape[0], jnp.int32) if mask is None else mask.astype(jnp.int32)
        state = PerceiverState(state.position + new, window, latents, state.segment_id)
        return self._outputs(read, None), state

    def _before(self, h: Array) -> Array:
        return self.read_norm(h) if self.layers.norm == "pre" else h

    def _outputs(self, read: Array, key: Array | None) -> Array:
        """What latents have read [..., L, C] -> outputs [..., num_outputs]."""
        z = self.latent_attention.latents.astype(read.dtype) + read
        z = z if self.layers.norm == "pre" else self.read_norm(z)
        rows = z.reshape(-1, *z.shape[-2:])
        mean = jnp.mean(self.backbone(rows, dropout_key=key), axis=1)
        y = self.head(mean.astype(accumulation_dtype(mean.dtype)))
        return y.astype(jnp.float32).reshape(*z.shape[:-2], self.num_outputs)

    def _check_streams(self) -> None:
        if not self.streams:
            raise ValueError(
                "this model has an embedding that is not causal, so it looks at the future and "
                "cannot stream; make it with embedding_padding='causal'."
            )
