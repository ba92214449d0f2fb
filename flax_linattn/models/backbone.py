"""The backbone that all models share: value and position embedding, transformer blocks."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Int

from flax_linattn import nn, ops
from flax_linattn.checks import at_least, rate
from flax_linattn.nn.block import LayerNorm, apply_dropout, split_key
from flax_linattn.ops.contract.checks import no_state
from flax_linattn.ops.contract.masks import segment_runs
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, SegmentIds, State

REMAT: dict[str, Any] = {
    "dots": jax.checkpoint_policies.dots_saveable,
    "blocks": jax.checkpoint_policies.nothing_saveable,
}
"""What ``jax.checkpoint`` keeps of a block, by the value of ``remat`` beside "none"."""


class BackboneState(NamedTuple):
    """What a backbone carries from call to call.

    Attributes:
        position: int32 [B], number of tokens of the current segment taken in.
        window: the value embedding's state.
        layers: the blocks' states.
        segment_id: int [B], the segment in which the last call ended; None if not packed.
    """

    position: Int[Array, "B"]
    window: State
    layers: tuple[State, ...]
    segment_id: Array | None = None


class Backbone(nnx.Module):
    """Observations to features: embedding, N blocks, a final LayerNorm.

    After Time-Series-Library's Transformer encoder (convolution over values plus positions,
    dropout, post-LN layers, final norm). Positions count real tokens only, so padding
    anywhere changes nothing.

    Args:
        in_features: observed channels.
        features: C.
        num_layers: blocks.
        num_heads: heads of each block.
        hidden_features: width of the feed-forward layers, default 4 C.
        mechanism: a name or a mechanism.
        is_causal: each position sees itself and the past; needed to stream.
        norm: "pre" or "post".
        activation: "gelu" or "relu".
        dropout_rate: share of features dropped in training.
        kernel_size: taps of the value embedding.
        embedding_padding: "causal" (streams) or "circular" (Time-Series-Library's).
        position: "sinusoidal", or "learned" for positions below ``max_length``.
        max_length: most tokens of a sequence; needed for learned positions, as the default
            size of caches, and by mechanisms that learn something for each position.
        dtype: dtype of the computation, such as bfloat16; parameters stay float32, and sums in
            attention, norms and losses are float32.
        remat: what training keeps of a block for its gradient: "none" recomputes nothing and keeps
            all, "dots" keeps the results of matrix products, "blocks" only the block's input.
        rngs: holds the stream "params".

    Raises:
        ValueError: an option out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> backbone = models.Backbone(3, 16, num_layers=2, num_heads=4, mechanism="aaren",
        ...                            rngs=nnx.Rngs(0))
        >>> backbone(jnp.ones((2, 5, 3))).shape
        (2, 5, 16)
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        num_layers: int,
        num_heads: int,
        hidden_features: int | None = None,
        mechanism: str | ops.Mechanism = "aaren",
        is_causal: bool = True,
        norm: Literal["pre", "post"] = "post",
        activation: str = "gelu",
        dropout_rate: float = 0.0,
        kernel_size: int = 3,
        embedding_padding: Literal["causal", "circular"] = "causal",
        position: Literal["sinusoidal", "learned"] = "sinusoidal",
        max_length: int | None = None,
        dtype: DTypeLike | None = None,
        remat: Literal["none", "dots", "blocks"] = "none",
        rngs: nnx.Rngs,
    ) -> None:
        at_least(1, features=features, num_layers=num_layers)
        rate(dropout_rate=dropout_rate)
        if remat not in ("none", *REMAT):
            raise ValueError(f"remat must be one of none, {', '.join(REMAT)}, got {remat!r}.")
        if position not in ("sinusoidal", "learned"):
            raise ValueError(f"position must be 'sinusoidal' or 'learned', got {position!r}.")
        if position == "learned" and max_length is None:
            raise ValueError("learned positions need max_length, the number of positions.")
        mechanism = _sized(nn.resolve_mechanism(mechanism), max_length)
        _check_direction(mechanism, is_causal)
        self.is_causal = is_causal
        self.remat = remat
        self.mechanism = mechanism
        self.max_length = max_length
        self.learned_position = position == "learned"
        self.values = nn.ValueEmbedding(
            in_features,
            features,
            kernel_size=kernel_size,
            padding=embedding_padding,
            dtype=dtype,
            rngs=rngs,
        )
        self.positions = (
            nn.LearnedPosition(max_length, features, rngs=rngs)
            if position == "learned" and max_length is not None
            else nn.SinusoidalPosition(features)
        )
        self.blocks = nnx.List(
            nn.TransformerBlock(
                features,
                num_heads,
                hidden_features=hidden_features,
                mechanism=mechanism,
                norm=norm,
                activation=activation,
                dropout_rate=dropout_rate,
                dtype=dtype,
                rngs=rngs,
            )
            for _ in range(num_layers)
        )
        self.final_norm = LayerNorm(features, rngs=rngs)
        self.dropout = nnx.Dropout(dropout_rate)

    @property
    def streams(self) -> bool:
        """Whether ``init_state`` and ``step`` are offered."""
        return (
            self.is_causal
            and self.values.padding == "causal"
            and self.mechanism.capabilities.recurrent
        )

    def __call__(
        self,
        x: Features,
        *,
        mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        state: BackboneState | None = None,
        return_state: bool = False,
        dropout_key: Array | None = None,
        form: str = "auto",
    ) -> Any:
        """Maps whole sequences.

        Args:
            x: observations [B, T, in_features], T >= 1.
            mask: bool [B, T], True = a real token.
            segment_ids: int [B, T], packed sequences.
            state: what an earlier call returned.
            return_state: return ``(h, state)``.
            dropout_key: a key turns dropout on (training).
            form: see ``ops.Mechanism.attend``.

        Returns:
            h [B, T, C], and the state if asked for. At masked positions h means nothing.

        Raises:
            ValueError: wrong shapes, or a state where the model cannot stream.
        """
        self._check_input(x, mask, segment_ids, state is not None or return_state)
        real = jnp.ones(x.shape[:2], bool) if mask is None else mask
        runs = None
        if segment_ids is not None:
            runs = segment_runs(segment_ids, mask, None if state is None else state.segment_id)
        offset = jnp.zeros(x.shape[0], jnp.int32) if state is None else state.position
        positions, position = nn.token_positions(real, runs, offset)

        keep_state = return_state or state is not None
        embedded = self.values(
            x,
            mask=mask,
            runs=runs,
            state=None if state is None else state.window,
            return_state=keep_state,
        )
        h, window = embedded if keep_state else (embedded, None)
        keys = split_key(dropout_key, len(self.blocks) + 1)
        h = h + self.positions(positions).astype(h.dtype)
        h = apply_dropout(self.dropout, h, keys[0])
        layers = []
        for i, block in enumerate(self.blocks):
            run = block if self.remat == "none" else partial(_recomputed, self.remat, block)
            y = run(
                h,
                is_causal=self.is_causal,
                mask=mask,
                segment_ids=segment_ids,
                state=None if state is None else state.layers[i],
                return_state=return_state,
                dropout_key=keys[i + 1],
                form=form,
            )
            h, layer = y if return_state else (y, None)
            layers.append(layer)
        h = self.final_norm(h)
        if not return_state:
            return h
        segment_id = runs.last if runs is not None else state.segment_id if state else None
        return h, BackboneState(position, window, tuple(layers), segment_id)

    def init_state(self, batch_size: int, max_length: int | None = None) -> BackboneState:
        """The state before the first observation.

        Args:
            batch_size: B.
            max_length: most observations, for mechanisms with a cache; default the model's.

        Raises:
            ValueError: the model looks at the future, so it cannot stream.
        """
        self._check_streams()
        max_length = self.max_length if max_length is None else max_length
        return BackboneState(
            position=jnp.zeros(batch_size, jnp.int32),
            window=self.values.init_state(batch_size),
            layers=tuple(block.init_state(batch_size, max_length) for block in self.blocks),
        )

    def step(
        self, x: FeaturesStep, state: BackboneState, *, mask: Array | None = None
    ) -> tuple[FeaturesStep, BackboneState]:
        """Takes in one observation a row: x [B, in_features] -> h [B, C] and the new state.

        ``mask`` bool [B]: where False the state stays as it is.
        """
        expected = (state.position.shape[0], self.values.in_features)
        if x.shape != expected:
            raise ValueError(
                f"expected an observation for each row of the state, {expected}, got {x.shape}."
            )
        h, window = self.values.step(x, state.window, mask=mask)
        h = h + self.positions(state.position).astype(h.dtype)
        layers = []
        for block, layer in zip(self.blocks, state.layers, strict=True):
            h, layer = block.step(h, layer, mask=mask)
            layers.append(layer)
        new = jnp.ones(x.shape[0], jnp.int32) if mask is None else mask.astype(jnp.int32)
        return self.final_norm(h), BackboneState(
            state.position + new, window, tuple(layers), state.segment_id
        )

    def _check_input(
        self, x: Array, mask: Array | None, segment_ids: Array | None, streaming: bool
    ) -> None:
        if x.ndim != 3 or x.shape[2] != self.values.in_features or x.shape[1] == 0:
            raise ValueError(
                f"expected observations [B, T >= 1, {self.values.in_features}], got {x.shape}."
            )
        if mask is not None and (mask.dtype != bool or mask.shape != x.shape[:2]):
            raise ValueError(
                f"expected mask as bool {x.shape[:2]}, True = a real token, got {mask.dtype} "
                f"{mask.shape}."
            )
        # Rows with padding or several segments may be longer than any of their sequences.
        whole = mask is None and segment_ids is None
        if self.learned_position and whole and x.shape[1] > (self.max_length or 0):
            raise ValueError(
                f"the model has positions for {self.max_length} observations, got {x.shape[1]}; "
                "make it with a larger max_length or with position='sinusoidal'."
            )
        if segment_ids is not None and segment_ids.shape != x.shape[:2]:
            raise ValueError(
                f"expected segment_ids as int {x.shape[:2]}, got shape {segment_ids.shape}."
            )
        if streaming:
            self._check_streams()

    def _check_streams(self) -> None:
        if not self.mechanism.capabilities.recurrent:
            raise ValueError(no_state(self.mechanism.name))
        if not self.streams:
            why = "is not causal" if not self.is_causal else "has a circular value embedding"
            raise ValueError(
                f"this model {why}, so it looks at the future and cannot stream; make it with "
                "is_causal=True and embedding_padding='causal'."
            )


def _sized(mechanism: ops.Mechanism, max_length: int | None) -> ops.Mechanism:
    """Tells a mechanism that learns something for each position how many there are."""
    if max_length is None or not hasattr(mechanism, "max_length"):
        return mechanism
    if mechanism.max_length is not None:
        if mechanism.max_length < max_length:
            raise ValueError(
                f"{mechanism.name!r} is to have {mechanism.max_length} positions and the model "
                f"{max_length}; leave out the mechanism's max_length, or make it as large."
            )
        return mechanism
    return dataclasses.replace(mechanism, max_length=max_length)  # type: ignore[call-arg]


def _check_direction(mechanism: ops.Mechanism, is_causal: bool) -> None:
    can = mechanism.capabilities
    if not (can.causal if is_causal else can.noncausal):
        raise ValueError(
            f"{mechanism.name!r} is not offered with is_causal={is_causal}; make the model with "
            f"is_causal={not is_causal} (on the command line "
            f"{'--no-causal' if is_causal else '--causal'}) or with another mechanism."
        )


def _recomputed(
    remat: str,
    block: nn.TransformerBlock,
    h: Features,
    *,
    mask: Mask | None,
    segment_ids: SegmentIds | None,
    state: State | None,
    dropout_key: Array | None,
    **how: Any,
) -> Any:
    """A block whose gradient computes it again, but for what the policy keeps."""
    graphdef, variables = nnx.split(block)

    def run(variables: nnx.State, h: Features, *arrays: Any) -> Any:
        names = ("mask", "segment_ids", "state", "dropout_key")
        arguments = dict(zip(names, arrays, strict=True))
        return nnx.merge(graphdef, variables)(h, **arguments, **how)

    again = jax.checkpoint(run, policy=REMAT[remat])
    return again(variables, h, mask, segment_ids, state, dropout_key)
