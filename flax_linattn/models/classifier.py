"""Sequence classification: backbone, pooling, linear head. Trains in parallel, streams."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from flax_linattn.checks import at_least
from flax_linattn.models import pooling as poolings
from flax_linattn.models.backbone import Backbone, BackboneState
from flax_linattn.nn.block import ACTIVATIONS, apply_dropout, split_key
from flax_linattn.nn.linear import UniformFanIn
from flax_linattn.nn.position import token_positions
from flax_linattn.ops.contract.masks import segment_runs, zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.engine import prefix
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, SegmentIds, State


class ClassifierState(NamedTuple):
    """What a classifier carries from call to call.

    Attributes:
        backbone: the backbone's state.
        pool: the pooling's state.
    """

    backbone: BackboneState
    pool: State


class SequenceClassifier(nnx.Module):
    """Class logits of sequences of observations.

    Poolings: "last" real token, "mean" over real tokens, or "flatten", Time-Series-Library's
    head, in which every position has its own weights (``max_length`` of them). All stream:
    flatten is a sum of what the positions contribute, so its running sum is its state.

    Args:
        in_features: observed channels.
        num_classes: classes.
        features: C.
        num_layers: blocks.
        num_heads: heads of each block.
        hidden_features: width of the feed-forward layers, default 4 C.
        mechanism: a name or a mechanism.
        pooling: "last", "mean" or "flatten".
        max_length: most observations of a sequence; needed by "flatten".
        dropout_rate: share of features dropped in training.
        attends_to_padding: let attention see padding, whose observations are 0, as
            Time-Series-Library does; pooling leaves it out all the same.
        rngs: holds the stream "params".
        **backbone: further arguments of :class:`Backbone` (is_causal, norm, activation,
            kernel_size, embedding_padding, position, dtype, remat).

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
        in_features: int,
        num_classes: int,
        *,
        features: int = 128,
        num_layers: int = 3,
        num_heads: int = 8,
        hidden_features: int | None = None,
        mechanism: Any = "aaren",
        pooling: Literal["last", "mean", "flatten"] = "mean",
        max_length: int | None = None,
        dropout_rate: float = 0.0,
        attends_to_padding: bool = False,
        rngs: nnx.Rngs,
        **backbone: Any,
    ) -> None:
        if pooling not in poolings.POOLINGS:
            raise ValueError(
                f"unknown pooling {pooling!r}; choose one of: {', '.join(poolings.POOLINGS)}."
            )
        if pooling == "flatten" and max_length is None:
            raise ValueError("flatten has weights for every position: it needs max_length.")
        at_least(1, num_classes=num_classes)
        self.num_classes = num_classes
        self.max_length = max_length
        self.flatten = pooling == "flatten"
        self.attends_to_padding = attends_to_padding
        self.pooling = poolings.POOLINGS[pooling]()
        self.pooled_features = num_classes if self.flatten else features
        self.backbone = Backbone(
            in_features,
            features,
            num_layers=num_layers,
            num_heads=num_heads,
            hidden_features=hidden_features,
            mechanism=mechanism,
            dropout_rate=dropout_rate,
            max_length=max_length,
            rngs=rngs,
            **backbone,
        )
        self.dropout = nnx.Dropout(dropout_rate)
        positions = max_length if self.flatten and max_length is not None else 1
        init = UniformFanIn(positions * features)
        kernel = init(rngs.params(), (positions, features, num_classes), jnp.float32)
        self.kernel = nnx.Param(kernel)
        self.bias = nnx.Param(init(rngs.params(), (num_classes,), jnp.float32))

    def __call__(
        self,
        x: Features,
        *,
        mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        state: ClassifierState | None = None,
        return_state: bool = False,
        every_step: bool = False,
        dropout_key: Array | None = None,
        form: str = "auto",
    ) -> Any:
        """Classifies whole sequences.

        Args:
            x: observations [B, T, in_features], T >= 1.
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
            give the bias.

        Raises:
            ValueError: wrong shapes, too long a sequence, or a state or every step of a model
                that looks at the future.
        """
        if every_step and not self.backbone.streams:
            raise ValueError(
                "every_step needs a model that streams: is_causal=True and "
                "embedding_padding='causal'."
            )
        whole = mask is None and segment_ids is None
        if self.flatten and whole and x.shape[1] > (self.max_length or 0):
            raise ValueError(
                f"the flatten head has weights for {self.max_length} observations, got "
                f"{x.shape[1]}; make the model with a larger max_length or pooling='mean'."
            )
        key_backbone, key = split_key(dropout_key, 2)
        result: Any = self.backbone(
            zero_padding(x, mask),
            mask=None if self.attends_to_padding else mask,
            segment_ids=segment_ids,
            state=None if state is None else state.backbone,
            return_state=return_state,
            dropout_key=key_backbone,
            form=form,
        )
        backbone_state: Any
        h, backbone_state = result if return_state else (result, None)
        h = apply_dropout(self.dropout, ACTIVATIONS["gelu"](h), key)

        batch, length = x.shape[:2]
        real = jnp.ones((batch, length), bool) if mask is None else mask
        runs = None
        if segment_ids is not None:
            carried = None if state is None else state.backbone.segment_id
            runs = segment_runs(segment_ids, mask, carried)
        if self.flatten:
            offset = jnp.zeros(batch, jnp.int32) if state is None else state.backbone.position
            h = self._contributions(h, token_positions(real, runs, offset)[0])
        h = h.astype(accumulation_dtype(h.dtype))
        h = zero_padding(h, mask)
        pooled, pool = prefix.attend(
            poolings.as_monoid(self.pooling, batch, h.shape[-1], h.dtype),
            None,
            h,
            h,
            is_causal=every_step,
            mask=mask,
            starts=None if runs is None else runs.starts,
            initial=None if state is None else state.pool,
            chunk_size=None,
        )
        logits = self._head(pooled if every_step or runs is not None else pooled[:, -1])
        if return_state:
            return logits, ClassifierState(backbone_state, pool)
        return logits

    def init_state(self, batch_size: int, max_length: int | None = None) -> ClassifierState:
        """The state before the first observation; see ``Backbone.init_state``."""
        return ClassifierState(
            self.backbone.init_state(batch_size, max_length),
            poolings.identity(batch_size, self.pooled_features),
        )

    def step(
        self, x: FeaturesStep, state: ClassifierState, *, mask: Array | None = None
    ) -> tuple[Float[Array, "B classes"], ClassifierState]:
        """Takes in one observation a row: x [B, in_features] -> logits [B, classes], new state.

        ``mask`` bool [B]: where False the state stays as it is. With pooling "flatten", logits
        beyond ``max_length`` observations are NaN: there are no weights for them.
        """
        h, backbone = self.backbone.step(x, state.backbone, mask=mask)
        h = ACTIVATIONS["gelu"](h)
        if self.flatten:
            h = self._contributions(h, state.backbone.position)
        h = h.astype(accumulation_dtype(h.dtype))
        pool = self.pooling.merge(state.pool, self.pooling.lift(h))
        if mask is not None:
            pool = prefix.select(mask, pool, state.pool)
        return self._head(self.pooling.read(pool)), ClassifierState(backbone, pool)

    def _contributions(self, h: Array, positions: Array) -> Array:
        """What each position adds to the logits: h [..., C] -> [..., classes]."""
        kernel = jnp.take(
            self.kernel[...].astype(h.dtype), positions, axis=0, mode="fill", fill_value=jnp.nan
        )
        return jnp.einsum("...c,...cn->...n", h, kernel)

    def _head(self, pooled: Array) -> Array:
        if not self.flatten:
            pooled = pooled @ self.kernel[0].astype(pooled.dtype)
        return pooled.astype(jnp.float32) + self.bias[...]
