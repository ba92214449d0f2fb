"""Sequence classifier: backbone, pooling and linear head, in parallel or by steps."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from flax_linattn.checks import OptionError, check_choice, check_integers
from flax_linattn.models import pooling as poolings
from flax_linattn.models.backbone import Backbone, BackboneState
from flax_linattn.models.head import Head, resolve_backbone
from flax_linattn.models.layers import CLASSIFIER_LAYERS, Layers
from flax_linattn.nn.call import Call
from flax_linattn.nn.dropout import apply_dropout, make_dropout, resolve_dropout_key, split_key
from flax_linattn.nn.feed_forward import ACTIVATIONS
from flax_linattn.nn.linear import UniformFanIn
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.contract.state import register_state
from flax_linattn.ops.engine import prefix
from flax_linattn.typing import Array, State

HEAD_ACTIVATIONS = ("gelu", "none")


@register_state
class ClassifierState(NamedTuple):
    """State that a classifier carries from call to call.

    Attributes:
        backbone: State of the backbone.
        pool: State of the pooling.
    """

    backbone: BackboneState
    pool: State


class SequenceClassifier(Head):
    """Computes class logits of sequences of observations.

    Poolings are the "last" valid token, the "mean" over valid tokens, or "flatten",
    Time-Series-Library's head, in which every position has its own weights (``max_length`` of
    them). All stream: "flatten" is a sum of contributions of the positions, whose running sum is
    its state. With "class" the head classifies the features of a class token (see ``Backbone``), as
    in vision transformers; the token attends to the whole sequence, so the model supports neither
    streaming nor packing.

    A call returns logits [B, classes]; with ``every_step``, logits of every prefix [B, T, classes].
    For packed sequences it returns [B, T, classes] without ``every_step``, too: each position holds
    the logits of its whole sequence. Without any valid token the logits are the bias, or with
    pooling "class" the logits of the class token alone.

    Args:
        backbone: A :class:`Backbone`; or a number of channels, to build one on observations.
        num_classes: Number of classes.
        pooling: "last", "mean", "flatten" or "class". A backbone with a class token requires
            "class", and "class" requires such a backbone; one built from a number of channels gets
            the token, and ``is_causal=False``.
        max_length: Maximum number of observations of a sequence; needed by "flatten". Default the
            backbone's.
        head_activation: Activation of the features before pooling: "gelu", as in
            Time-Series-Library, or "none".
        attends_to_padding: Whether attention includes padding, whose observations are 0, as in
            Time-Series-Library; pooling always excludes it.
        layers: Options of the layers of a new backbone.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **options: Further arguments of a new :class:`Backbone` (num_layers, mechanism, is_causal,
            kernel_size, ...).

    Raises:
        ValueError: If an option is out of range.

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

    state_type = ClassifierState
    output_axes = 1
    option_names = (
        *("backbone", "num_classes", "head_activation", "max_length", "attends_to_padding"),
    )

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
        check_choice((*poolings.POOLINGS, poolings.CLASS_TOKEN), pooling=pooling)
        check_choice(HEAD_ACTIVATIONS, head_activation=head_activation)
        check_integers(1, num_classes=num_classes)
        if isinstance(backbone, Backbone):
            max_length = backbone.max_length if max_length is None else max_length
        else:
            options["max_length"] = max_length
            if pooling == poolings.CLASS_TOKEN:
                options.setdefault("is_causal", False)
        if pooling == "flatten" and max_length is None:
            raise OptionError(
                "the pooling flatten has weights for every position; pass max_length, the maximum "
                "length of a sequence.",
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
        self.backbone, head_parameters = resolve_backbone(
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
        init, dtype = (
            UniformFanIn(positions * features),
            head_parameters.get("param_dtype", jnp.float32),
        )
        # Not of kernel_init: it has one axis more than the kernels of linear layers.
        kernel = init(rngs.params(), (positions, features, num_classes), dtype)
        self.kernel = nnx.Param(kernel)
        bias_init = head_parameters.get("bias_init") or init
        self.bias = nnx.Param(bias_init(rngs.params(), (num_classes,), dtype))

    def read(self, pooled: Array) -> Array:
        """Computes logits float32 [..., classes] from pooled features, or pooled logits."""
        if not self.flatten:
            pooled = pooled @ self.kernel[0].astype(pooled.dtype)
        return pooled.astype(jnp.float32) + self.bias[...].astype(jnp.float32)

    def _map(
        self, x: Array, call: Call, *, every_step: bool = False
    ) -> tuple[Array, ClassifierState | None]:
        """Logits [B, classes], or [B, T, classes] with ``every_step`` and packed sequences."""
        if every_step:
            self._check_streams()
        state: ClassifierState | None = call.state
        before = None if state is None else state.backbone
        call = call.with_positions(x, before)
        key_backbone, key = split_key(resolve_dropout_key(self.dropout, call.dropout_key), 2)
        backbone_call = call.replace(state=before, dropout_key=key_backbone)
        if self.attends_to_padding:
            backbone_call = backbone_call.replace(mask=None, positions=None)
        h, after = self.backbone._map(x, backbone_call)
        if self.pooling is None:
            h = apply_dropout(self.dropout, self._activate(h[:, 0]), key)
            return self.read(h.astype(accumulation_dtype(h.dtype))), None
        h = apply_dropout(self.dropout, self._activate(h), key)
        if self.flatten:
            h = self._sequence_contributions(h, call)
        h = h.astype(accumulation_dtype(h.dtype))
        pooled, pool = prefix.attend(
            poolings.pooling_monoid(self.pooling, h.shape[0], h.shape[-1], h.dtype),
            None,
            h,
            is_causal=every_step,
            mask=call.mask,
            starts=None if call.segments is None else call.segments.starts,
            initial=None if state is None else state.pool,
            chunk_size=None,
        )
        logits = self.read(pooled if every_step or call.segments is not None else pooled[:, -1])
        return logits, None if after is None else ClassifierState(after, pool)

    @property
    def options(self) -> dict[str, Any]:
        return super().options | {"pooling": self.pooling_name}

    @property
    def num_positions(self) -> int | None:
        ends = (self.backbone.num_positions, self.max_length if self.flatten else None)
        return min((end for end in ends if end is not None), default=None)

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> ClassifierState:
        """Returns the state before the first observation; see ``Backbone.init_state``."""
        return ClassifierState(
            self.backbone.init_state(batch_size, max_length, dtype=dtype),
            poolings.identity(batch_size, self.pooled_features, accumulation_dtype(dtype)),
        )

    def _map_step(
        self, x: Array, state: ClassifierState, mask: Array | None
    ) -> tuple[Float[Array, "B classes"], ClassifierState]:
        """Computes logits [B, classes] and the new state.

        With pooling "flatten", logits beyond ``max_length`` observations are NaN, as they have no
        weights.
        """
        h, backbone = self.backbone._map_step(x, state.backbone, mask)
        h = self._activate(h)
        if self.flatten:
            h = self._contributions(h, state.backbone.position)
        h = h.astype(accumulation_dtype(h.dtype))
        pooling = cast(poolings.Pooling, self.pooling)  # a class token has no steps
        pool = pooling.merge(state.pool, pooling.lift(h))
        if mask is not None:
            pool = prefix.select(mask, pool, state.pool)
        return self.read(pooling.read(pool)), ClassifierState(backbone, pool)

    def _activate(self, h: Array) -> Array:
        return h if self.head_activation == "none" else ACTIVATIONS[self.head_activation](h)

    def _contributions(self, h: Array, positions: Array) -> Array:
        """Contribution of each position to the logits: h [..., C] -> [..., classes]."""
        kernel = jnp.take(
            self.kernel[...].astype(h.dtype), positions, axis=0, mode="fill", fill_value=jnp.nan
        )
        return jnp.einsum("...c,...cn->...n", h, kernel)

    def _sequence_contributions(self, h: Array, call: Call) -> Array:
        """Contributions to the logits of observations [B, T, C] of sequences."""
        positions, mask = cast(Array, call.positions), call.mask
        if call.state is not None or call.segments is not None:
            return self._contributions(h, positions)
        # Each row holds one sequence, from its start. Valid tokens come first, so that all rows
        # have the same weights: no copy of them is made for each, whose gradients would be added up
        # one after another.
        kernel = self.kernel[: h.shape[1]].astype(h.dtype)
        if mask is None:
            return jnp.einsum("btc,tcn->btn", h, kernel)
        front = jnp.argsort(~mask, axis=1, stable=True)[:, : kernel.shape[0], None]
        y = jnp.einsum("btc,tcn->btn", jnp.take_along_axis(h, front, axis=1), kernel)
        return jnp.take_along_axis(y, positions[..., None], axis=1, mode="fill", fill_value=jnp.nan)
