"""Sequence classification: backbone, pooling, linear head. Trains in parallel, streams."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Unpack, overload

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from flax_linattn.checks import OptionError, at_least, choice
from flax_linattn.models import pooling as poolings
from flax_linattn.models.backbone import (
    Backbone,
    BackboneOptions,
    BackboneState,
    as_backbone,
    check_observations,
    check_state,
)
from flax_linattn.models.layers import Layers
from flax_linattn.nn.dropout import apply_dropout, dropout_key_of, make_dropout, split_key
from flax_linattn.nn.feed_forward import ACTIVATIONS
from flax_linattn.nn.linear import UniformFanIn
from flax_linattn.nn.meshes import automatic
from flax_linattn.nn.position import token_positions
from flax_linattn.ops.contract.masks import packed_runs, zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.contract.state import exportable
from flax_linattn.ops.engine import prefix
from flax_linattn.typing import Array, Mask, SegmentIds, State

CLASSIFIER_LAYERS = Layers(hidden_features=256)
"""The layers of a classifier unless others are given: Time-Series-Library's for classification."""

HEAD_ACTIVATIONS = ("gelu", "none")

NO_STEPS = (
    "a class token sees the whole sequence, so there are no logits of prefixes or steps; make the "
    'model with is_causal=True and pooling "mean" or "last".'
)


@exportable
class ClassifierState(NamedTuple):
    """What a classifier carries from call to call.

    Attributes:
        backbone: the backbone's state.
        pool: the pooling's state.
    """

    backbone: BackboneState
    pool: State


class ClassifierOptions(BackboneOptions, total=False):
    """Options of a call of ``SequenceClassifier``, see there."""

    every_step: bool


class SequenceClassifier(nnx.Module):
    """Class logits of sequences of observations.

    Poolings: "last" real token, "mean" over real tokens, or "flatten", Time-Series-Library's
    head, in which every position has its own weights (``max_length`` of them). All stream:
    flatten is a sum of what the positions contribute, so its running sum is its state. By "class"
    nothing is pooled: the features of a class token are classified (``Backbone``), as vision
    transformers do. It sees the whole sequence, so it neither streams nor packs.

    Args:
        backbone: a :class:`Backbone`; or a number of channels, for one on observations.
        num_classes: classes.
        pooling: "last", "mean" or "flatten"; or "class", which a backbone with a class token needs
            and which needs one. For a number of channels it is made, with ``is_causal=False``.
        max_length: most observations of a sequence; needed by "flatten". Default the backbone's.
        head_activation: of the features before they are pooled: "gelu", Time-Series-Library's, or
            "none".
        attends_to_padding: let attention see padding, whose observations are 0, as
            Time-Series-Library does; pooling leaves it out all the same.
        layers: of the backbone for so many channels.
        rngs: holds the stream "params", and perhaps "dropout".
        **options: further arguments of that :class:`Backbone` (num_layers, mechanism, is_causal,
            kernel_size, ...).

    Raises:
        ValueError: an option out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> model = models.SequenceClassifier(3, 5, features=16, num_layers=2, num_heads=4,
        ...                                   mechanism="aaren", rngs=nnx.Rngs(0))
        >>> x = jnp.linspace(0, 1, 60).reshape(2, 10, 3)
        >>> running = model(x, every_step=True)                   # logits after each prefix
        >>> state = model.init_state(2)
        >>> for t in range(10):
        ...     logits, state = model.step(x[:, t], state)
        >>> bool(jnp.allclose(running[:, -1], logits, atol=1e-5))
        True
    """

    def __init__(
        self,
        backbone: Backbone | int,
        num_classes: int,
        *,
        pooling: Literal["last", "mean", "flatten", "class"] = "mean",
        head_activation: Literal["gelu", "none"] = "gelu",
        max_length: int | None = None,
        attends_to_padding: bool = False,
        layers: Layers | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        choice((*poolings.POOLINGS, poolings.CLASS_TOKEN), pooling=pooling)
        choice(HEAD_ACTIVATIONS, head_activation=head_activation)
        at_least(1, num_classes=num_classes)
        if isinstance(backbone, Backbone):
            max_length = backbone.max_length if max_length is None else max_length
        else:
            options["max_length"] = max_length
            if pooling == poolings.CLASS_TOKEN:
                options.setdefault("is_causal", False)
        if pooling == "flatten" and max_length is None:
            raise OptionError(
                "flatten has weights for every position: it needs max_length.",
                "pooling",
                "max_length",
            )
        self.num_classes = num_classes
        self.max_length = max_length
        self.flatten = pooling == "flatten"
        self.attends_to_padding = attends_to_padding
        self.pooling_name = pooling
        by_class_token = pooling == poolings.CLASS_TOKEN
        self.pooling = None if by_class_token else poolings.POOLINGS[pooling]()
        self.head_activation = head_activation
        self.backbone, of_head = as_backbone(
            backbone,
            layers,
            CLASSIFIER_LAYERS,
            reads_class_token=by_class_token,
            rngs=rngs,
            **options,
        )
        features = self.backbone.layers.features
        self.pooled_features = num_classes if self.flatten else features
        self.dropout = make_dropout(self.backbone.layers.dropout_rate, rngs)
        positions = max_length if self.flatten and max_length is not None else 1
        init, dtype = UniformFanIn(positions * features), of_head.get("param_dtype", jnp.float32)
        # Not of kernel_init: it has an axis more than those of linear layers.
        kernel = init(rngs.params(), (positions, features, num_classes), dtype)
        self.kernel = nnx.Param(kernel)
        bias_init = of_head.get("bias_init") or init
        self.bias = nnx.Param(bias_init(rngs.params(), (num_classes,), dtype))

    @overload
    def __call__(
        self,
        x: Array,
        *,
        return_state: Literal[False] = False,
        **options: Unpack[ClassifierOptions],
    ) -> Array: ...

    @overload
    def __call__(
        self, x: Array, *, return_state: Literal[True], **options: Unpack[ClassifierOptions]
    ) -> tuple[Array, ClassifierState]: ...

    @overload
    def __call__(
        self, x: Array, *, return_state: bool, **options: Unpack[ClassifierOptions]
    ) -> Array | tuple[Array, ClassifierState]: ...

    @automatic(1)
    def __call__(
        self,
        x: Array,
        *,
        mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        state: ClassifierState | None = None,
        return_state: bool = False,
        every_step: bool = False,
        dropout_key: Array | None = None,
        form: str = "auto",
    ) -> Array | tuple[Array, ClassifierState]:
        """Classifies whole sequences.

        Args:
            x: observations ``[B, T, *observation_shape]``, T >= 1.
            mask: bool [B, T], True = a real token.
            segment_ids: int [B, T], packed sequences.
            state: what an earlier call returned; its observations come first.
            return_state: return ``(logits, state)``.
            every_step: the logits of every prefix instead of the whole.
            dropout_key: a key turns dropout on (training).
            form: see ``ops.Mechanism.attend``.

        Returns:
            Logits [B, classes]; [B, T, classes] with ``every_step``, and with
            ``segment_ids``, where each position has those of its own sequence. 0 input tokens
            give the bias, with pooling "class" what the class token alone gives.

        Raises:
            ValueError: wrong shapes, too long a sequence, or a state or every step of a model
                that looks at the future.
        """
        check_observations(x, mask, segment_ids, self.backbone.input_embedding)
        if every_step and self.pooling is None:
            raise ValueError(NO_STEPS)
        if every_step and not self.backbone.streams:
            raise ValueError(
                "every_step needs a model that streams: is_causal=True, "
                "embedding_padding='causal' and a mechanism that has a state."
            )
        if state is not None:
            check_state(state, ClassifierState)
        whole = mask is None and segment_ids is None
        if self.flatten and whole and x.shape[1] > (self.max_length or 0):
            raise ValueError(
                f"the flatten head has weights for {self.max_length} observations, got "
                f"{x.shape[1]}; make the model with a larger max_length or pooling='mean'."
            )
        key_backbone, key = split_key(dropout_key_of(self.dropout, dropout_key), 2)
        options: BackboneOptions = {
            "mask": None if self.attends_to_padding else mask,
            "segment_ids": segment_ids,
            "state": None if state is None else state.backbone,
            "dropout_key": key_backbone,
            "form": form,
        }
        after: BackboneState | None = None
        if return_state:
            h, after = self.backbone(zero_padding(x, mask), return_state=True, **options)
        else:
            h = self.backbone(zero_padding(x, mask), **options)
        if self.pooling is None:
            h = apply_dropout(self.dropout, self._activated(h[:, 0]), key)
            return self._head(h.astype(accumulation_dtype(h.dtype)))
        h = apply_dropout(self.dropout, self._activated(h), key)

        batch, length = x.shape[:2]
        real = jnp.ones((batch, length), bool) if mask is None else mask
        carried = None if state is None else state.backbone.segment_id
        runs = packed_runs(segment_ids, mask, carried)
        if self.flatten:
            offset = jnp.zeros(batch, jnp.int32) if state is None else state.backbone.position
            positions = token_positions(real, runs, offset)[0]
            if state is None and runs is None:
                h = self._contributions_of_rows(h, mask, positions)
            else:
                h = self._contributions(h, positions)
        h = h.astype(accumulation_dtype(h.dtype))
        h = zero_padding(h, mask)
        pooled, pool = prefix.attend(
            poolings.as_monoid(self.pooling, batch, h.shape[-1], h.dtype),
            None,
            h,
            is_causal=every_step,
            mask=mask,
            starts=None if runs is None else runs.starts,
            initial=None if state is None else state.pool,
            chunk_size=None,
        )
        logits = self._head(pooled if every_step or runs is not None else pooled[:, -1])
        return logits if after is None else (logits, ClassifierState(after, pool))

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that make one like it, as ``save_model`` keeps them."""
        return {
            "backbone": self.backbone,
            "num_classes": self.num_classes,
            "pooling": self.pooling_name,
            "head_activation": self.head_activation,
            "max_length": self.max_length,
            "attends_to_padding": self.attends_to_padding,
        }

    @property
    def streams(self) -> bool:
        """Whether ``init_state`` and ``step`` are offered."""
        return self.backbone.streams

    @property
    def num_positions(self) -> int | None:
        """Most observations of a sequence that have a position; None = any number."""
        ends = (self.backbone.num_positions, self.max_length if self.flatten else None)
        return min((end for end in ends if end is not None), default=None)

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> ClassifierState:
        """The state before the first observation; see ``Backbone.init_state``."""
        return ClassifierState(
            self.backbone.init_state(batch_size, max_length, dtype=dtype),
            poolings.identity(batch_size, self.pooled_features, accumulation_dtype(dtype)),
        )

    @automatic(1)
    def step(
        self, x: Array, state: ClassifierState, *, mask: Array | None = None
    ) -> tuple[Float[Array, "B classes"], ClassifierState]:
        """Takes in one observation a row: x [B, ...] -> logits [B, classes] and the new state.

        ``mask`` bool [B]: where False the state stays as it is. With pooling "flatten", logits
        beyond ``max_length`` observations are NaN: there are no weights for them.
        """
        if self.pooling is None:
            raise ValueError(NO_STEPS)
        check_state(state, ClassifierState)
        h, backbone = self.backbone.step(x, state.backbone, mask=mask)
        h = self._activated(h)
        if self.flatten:
            h = self._contributions(h, state.backbone.position)
        h = h.astype(accumulation_dtype(h.dtype))
        pool = self.pooling.merge(state.pool, self.pooling.lift(h))
        if mask is not None:
            pool = prefix.select(mask, pool, state.pool)
        return self._head(self.pooling.read(pool)), ClassifierState(backbone, pool)

    def _activated(self, h: Array) -> Array:
        return h if self.head_activation == "none" else ACTIVATIONS[self.head_activation](h)

    def _contributions(self, h: Array, positions: Array) -> Array:
        """What each position adds to the logits: h [..., C] -> [..., classes]."""
        kernel = jnp.take(
            self.kernel[...].astype(h.dtype), positions, axis=0, mode="fill", fill_value=jnp.nan
        )
        return jnp.einsum("...c,...cn->...n", h, kernel)

    def _contributions_of_rows(self, h: Array, mask: Mask | None, positions: Array) -> Array:
        """The same of rows [B, T, C] that hold a sequence each, from its start.

        Real tokens come first, so that all rows have the same weights: no copy of them is made for
        each, whose gradients would be added up one after another.
        """
        kernel = self.kernel[: h.shape[1]].astype(h.dtype)
        if mask is None:
            return jnp.einsum("btc,tcn->btn", h, kernel)
        front = jnp.argsort(~mask, axis=1, stable=True)[:, : kernel.shape[0], None]
        y = jnp.einsum("btc,tcn->btn", jnp.take_along_axis(h, front, axis=1), kernel)
        return jnp.take_along_axis(y, positions[..., None], axis=1, mode="fill", fill_value=jnp.nan)

    def _head(self, pooled: Array) -> Array:
        if not self.flatten:
            pooled = pooled @ self.kernel[0].astype(pooled.dtype)
        return pooled.astype(jnp.float32) + self.bias[...].astype(jnp.float32)
