"""Perceiver: latents read a sequence in constant memory, and the layers run only on the latents."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from flax_linattn import nn, ops
from flax_linattn.checks import OptionError, check_integers
from flax_linattn.models.backbone import Backbone, resolve_embedding, split_embedding_options
from flax_linattn.models.embedding import Embedding, FeatureEmbedding
from flax_linattn.models.head import head_options
from flax_linattn.models.layers import OPTIONS_OF_ORDER, Layers
from flax_linattn.models.sequence_model import SequenceModel
from flax_linattn.nn.call import Call
from flax_linattn.nn.dropout import apply_dropout, make_dropout, resolve_dropout_key, split_key
from flax_linattn.nn.linear import linear
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array, State

PERCEIVER_LAYERS = Layers(num_layers=2, hidden_features=256, mechanism="softmax")
"""Default options of the blocks between the latents."""


@register_state
class PerceiverState(NamedTuple):
    """State of a :class:`PerceiverReader`, whose size does not depend on the number of tokens.

    Attributes:
        position: Number of tokens of the current segment so far, int32 [B].
        window: State of the embedding.
        latents: State of ``nn.LatentAttention``, a summary of the tokens so far.
        segment_id: Segment in which the last call ended, int [B]; None if not packed.
    """

    position: Int[Array, "B"]
    window: State
    latents: State
    segment_id: Array | None = None


class PerceiverReader(SequenceModel):
    """Classifies or regresses sequences with a Perceiver that also runs token by token.

    After Jaegle et al., "Perceiver", 2021: tokens are embedded, a few learned latents attend to
    them (``nn.LatentAttention``), blocks of self-attention process the latents, and a linear head
    maps their mean to the outputs. Departures: the latents attend to the tokens once, so that the
    result is a state of constant size (Feng et al., "Attention as an RNN", 2024, section 3.1); and
    the feed-forward part of the cross-attention is that of the block that follows.

    Tokens interact only through the latents, and the embedding's convolution: the cost of a token
    does not depend on the number of blocks. The blocks run once for each output: once a sequence in
    a call, once a token with ``every_step`` and in ``step``.

    A call returns outputs [B, num_outputs], or [B, T, num_outputs] with ``every_step=True``, which
    packed sequences need.

    Args:
        embedding: An :class:`Embedding`, or the number of channels of an
            :class:`ObservationEmbedding`.
        num_outputs: Number of outputs, such as classes.
        num_latents: Number L of latents.
        reads_by: Mechanism by which the latents attend to the tokens; its ``capabilities.latents``
            must be True.
        layers: Options of the blocks between the latents, which are non-causal; default
            ``PERCEIVER_LAYERS``.
        max_length: Maximum number of tokens of a sequence, for learned positions.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **options: Options of ``layers`` by name; initialization and dtype of the parameters
            (``nn.ParameterOptions``); and with a number of channels, options of its embedding
            (kernel_size, embedding_padding, position).

    Raises:
        ValueError: If an option is unknown or out of range, or ``rotary``, ``short_conv`` or
            ``position_bias`` is set, since latents have no positions.

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

    state_type = PerceiverState
    option_names = (
        *("num_outputs", "num_latents", "reads_by", "layers", "max_length", "param_dtype"),
    )

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
        check_integers(1, num_outputs=num_outputs, num_latents=num_latents)
        layers, options = (layers or PERCEIVER_LAYERS).take(options)
        for name in OPTIONS_OF_ORDER:
            if getattr(layers, name):
                raise OptionError(f"latents have no positions; remove {name}.", name)
        for mechanism in layers.mechanisms:
            if not mechanism.capabilities.noncausal:
                raise OptionError(
                    f"mechanism must be non-causal, since latents have no order, but "
                    f"{mechanism.name!r} is causal only; choose another mechanism.",
                    "mechanism",
                )
        embedding_options, parameters = split_embedding_options(options)
        self.input_embedding = resolve_embedding(
            embedding, layers, max_length, embedding_options, parameters, rngs
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
        self.read_norm = nn.make_norm(
            layers.norm_type, layers.features, param_dtype=self.param_dtype, rngs=rngs
        )
        self.backbone = Backbone(
            FeatureEmbedding(layers.features),
            layers,
            is_causal=False,
            max_length=num_latents,
            rngs=rngs,
            **parameters,
        )
        self.dropout = make_dropout(layers.dropout_rate, rngs)
        self.head = linear(layers.features, num_outputs, rngs=rngs, **head_options(parameters))

    @property
    def options(self) -> dict[str, Any]:
        """Constructor arguments of an equal model, as ``save_model`` stores them."""
        return super().options | {"embedding": self.input_embedding}

    @property
    def layers(self) -> Layers:
        """Options of the blocks between the latents."""
        return self.backbone.layers

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation, see ``Embedding``."""
        return self.input_embedding.observation_shape

    @property
    def streams(self) -> bool:
        """Whether ``init_state`` and ``step`` are available: the embedding must be causal."""
        return self.input_embedding.streams

    @property
    def num_positions(self) -> int | None:
        """Maximum length of a sequence imposed by positions; None if unlimited."""
        return self.input_embedding.max_length

    def _map(
        self, x: Array, call: Call, *, every_step: bool = False
    ) -> tuple[Array, PerceiverState | None]:
        """Computes outputs from the latents, for whole sequences or for every prefix."""
        if every_step:
            self._check_streams()
        elif call.segment_ids is not None:
            raise ValueError(
                "latents would read the packed sequences of a row as one sequence; pass each in "
                "its own row, or pass every_step=True and use the outputs at the last tokens."
            )
        state: PerceiverState | None = call.state
        call = call.with_positions(x, state)
        keys = split_key(resolve_dropout_key(self.dropout, call.dropout_key), 3)
        h, window = self.input_embedding(
            x,
            positions=cast(Array, call.positions),
            mask=call.mask,
            segments=call.segments,
            state=None if state is None else state.window,
        )
        read, latents = self.latent_attention._map(
            self._before(apply_dropout(self.dropout, h, keys[0])),
            call.replace(
                state=None if state is None else state.latents,
                is_causal=every_step,
            ),
        )
        y = self.read(apply_dropout(self.dropout, read, keys[1]), keys[2])
        if not call.return_state:
            return y, None
        return y, PerceiverState(
            cast(Array, call.num_tokens), window, latents, call.last_segment(state)
        )

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> PerceiverState:
        """Returns the state before the first observation, whose size ignores ``max_length``."""
        self._check_streams()
        return PerceiverState(
            position=jnp.zeros(batch_size, jnp.int32),
            window=self.input_embedding.init_state(batch_size, dtype=dtype),
            latents=self.latent_attention.init_state(batch_size, dtype=dtype),
        )

    def _map_step(
        self, x: Array, state: PerceiverState, mask: Array | None
    ) -> tuple[Float[Array, "B outputs"], PerceiverState]:
        """Outputs [B, num_outputs] and the new state."""
        h, window = self.input_embedding.step(x, state.window, positions=state.position, mask=mask)
        read, latents = self.latent_attention.step(self._before(h), state.latents, mask=mask)
        new = jnp.ones(x.shape[0], jnp.int32) if mask is None else mask.astype(jnp.int32)
        return self.read(read), PerceiverState(
            state.position + new, window, latents, state.segment_id
        )

    def _before(self, h: Array) -> Array:
        return self.read_norm(h) if self.layers.norm == "pre" else h

    def read(self, read: Array, dropout_key: Array | None = None) -> Array:
        """Computes outputs float32 [..., num_outputs] from latents [..., L, C]."""
        z = self.latent_attention.latents.astype(read.dtype) + read
        z = z if self.layers.norm == "pre" else self.read_norm(z)
        rows = z.reshape(-1, *z.shape[-2:])
        mean = jnp.mean(self.backbone(rows, dropout_key=dropout_key), axis=1)
        y = self.head(mean.astype(accumulation_dtype(mean.dtype)))
        return y.astype(jnp.float32).reshape(*z.shape[:-2], self.num_outputs)

    def _check_streams(self) -> None:
        """Raises a ValueError if the embedding is not causal."""
        if not self.streams:
            raise ValueError(
                "this model has a non-causal embedding, so it depends on later observations and "
                "cannot stream; make it with embedding_padding='causal'."
            )
