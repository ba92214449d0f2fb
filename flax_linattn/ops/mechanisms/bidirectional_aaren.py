"""Bidirectional Aaren: some heads attend to earlier tokens, the others to later tokens.

Ours: Aaren (Feng et al., "Attention as an RNN", 2024) run in both directions, as Schuster and
Paliwal, "Bidirectional Recurrent Neural Networks", 1997, run recurrent networks. No paper has
measured it. Noncausal Aaren gives every position the same vector, because it has one learned query;
here each position has its own. Symbols are Aaren's, with

=========  ==================================================================
here       meaning
=========  ==================================================================
forward    the first (H + 1) // 2 heads: position i attends to the j <= i of
           its segment
backward   the other heads: position i attends to the j >= i
=========  ==================================================================

Both attend to the token itself. The backward heads need the end of the sequence, so there is
neither a causal form nor a state.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from flax_linattn.checks import check_integers
from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.averages import average_by_token
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.numerics import ScoreScale, exp_difference, scores
from flax_linattn.ops.engine import exponential
from flax_linattn.ops.engine.exponential_scan import exponential_scan
from flax_linattn.ops.engine.stateless import Sequences, StatelessMechanism
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible


@dataclasses.dataclass(frozen=True)
class BidirectionalAaren(ScoreScale, StatelessMechanism):
    """Bidirectional Aaren for whole sequences (module docstring: symbols).

    Attributes:
        chunk_size: Tokens per chunk in the chunked form.
        scale: Factor of the scores if a call passes none; None means K**-0.5.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> aaren, both = map(ops.get_mechanism, ("aaren", "bidirectional_aaren"))
        >>> q = jax.random.normal(jax.random.key(0), (4, 8))      # learned query: 4 heads of 8
        >>> k, v = jax.random.normal(jax.random.key(1), (2, 2, 10, 4, 8))
        >>> y = both.attend(q, k, v)
        >>> y.shape
        (2, 10, 4, 8)
        >>> prefixes = aaren.attend(q, k, v, is_causal=True)
        >>> bool(jnp.allclose(y[:, :, :2], prefixes[:, :, :2], atol=1e-6))
        True
        >>> both.attend(q[:1], k[:, :, :1], v[:, :, :1])
        Traceback (most recent call last):
        ...
        ValueError: 'bidirectional_aaren' reads forwards with half of its heads and backwards \
with the others: it needs at least 2, got 1.
    """

    name: ClassVar[str] = "bidirectional_aaren"
    about: ClassVar[str] = (
        "Aaren with forward and backward heads, for whole sequences only "
        "(ours, after Schuster and Paliwal, 1997)"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=False, causal=False, cross=False, learned_query=True, recurrent=False
    )
    parameters: ClassVar[tuple[str, ...]] = ("scale",)

    chunk_size: int = 128
    scale: float | None = None

    def __post_init__(self) -> None:
        check_integers(1, chunk_size=self.chunk_size)

    def check_heads(self, num_heads: int) -> None:
        if num_heads < 2:
            raise ValueError(
                f"{self.name!r} reads forwards with half of its heads and backwards with the "
                f"others: it needs at least 2, got {num_heads}."
            )

    def mix(self, whole: Sequences) -> Outputs:
        scaled = whole.q * self._scale(whole.q, whole.parameters)
        score = scores(scaled, whole.k, "hk,bthk->bth")
        heads = forward_heads(score.shape[2])
        starts = ends = None
        if whole.starts is not None:
            starts = whole.starts
            segment_index = jnp.cumsum(starts, axis=1, dtype=jnp.int32)
            ends = masks.find_segments(jnp.flip(segment_index, 1), jnp.flip(whole.mask, 1)).starts

        def scan(score: Array, v: Array, mask: Array, starts: Array | None) -> Array:
            outputs = (score.shape[0], score.shape[2])
            nothing = exponential.empty_state(outputs, (*outputs, v.shape[3]), v.dtype)
            return exponential_scan(
                score,
                v,
                nothing,
                mask=mask,
                starts=starts,
                form=whole.form,
                chunk_size=self.chunk_size,
            )[0].y

        before = scan(score[:, :, :heads], whole.v[:, :, :heads], whole.mask, starts)
        score, v, mask = (
            jnp.flip(x, 1) for x in (score[:, :, heads:], whole.v[:, :, heads:], whole.mask)
        )
        return jnp.concatenate([before, jnp.flip(scan(score, v, mask, ends), 1)], axis=2)

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        score = jnp.sum(q * self._scale(q, parameters) * k, axis=-1)  # [B, S, H]
        position, head = jnp.arange(k.shape[1]), jnp.arange(k.shape[2])
        before = (position <= position[:, None])[:, :, None]  # [T, S, 1]
        direction = jnp.where(head < forward_heads(len(head)), before, jnp.swapaxes(before, 0, 1))
        score = jnp.where(visible[..., None] & direction, score[:, None], -jnp.inf)
        weight = exp_difference(score, jnp.max(score, axis=2, keepdims=True))
        return average_by_token(weight, v)


def forward_heads(num_heads: int) -> int:
    """Returns the number of forward heads, which come first; the others run backward.

    Example:
        >>> forward_heads(4), forward_heads(5)
        (2, 3)
    """
    return (num_heads + 1) // 2
