"""The classifier of the TaylorShift paper: linear embedding, CLS token, pre-norm blocks."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn import models, nn
from flax_linattn.models.layers import sized

DEPARTURES = "LayerScale, which multiplies each sublayer's output by a learned vector"
"""What its models have and these have not."""


class Kind(NamedTuple):
    """A mechanism, with how many heads, and the form of it that a model computes by."""

    mechanism: str
    num_heads: int
    form: str = "auto"


def softmaxes(num_heads: int) -> dict[str, Kind]:
    """Softmax attention with all its weights at once, as in the paper, and its best forms here."""
    return {
        "all weights": Kind("softmax", num_heads, "parallel"),
        "in blocks": Kind("softmax", num_heads, "chunked"),
        "XLA's": Kind("softmax:implementation=xla", num_heads, "parallel"),
    }


class Classifier(nnx.Module):
    """An encoder over tokens as one-hot vectors, classified by its first token.

    A linear embedding with bias plus fixed sinusoids; before them the CLS token, which has no
    position; pre-norm blocks; a final norm; a linear head on the CLS token (sections 5.2 and C.1,
    and the authors' code).

    Args:
        size: a key of ``models.SIZES``.
        kind: its attention; the form is the call's.
        in_features: symbols.
        length: tokens of a sequence, without the CLS token.
        num_classes: classes.
    """

    def __init__(
        self, size: str, kind: Kind, in_features: int, length: int, num_classes: int = 10
    ) -> None:
        rngs = nnx.Rngs(0)
        layers = dataclasses.replace(
            models.get_size(size),
            num_heads=kind.num_heads,
            mechanism=kind.mechanism,
            norm="pre",
            dropout_rate=0.0,
        )
        self.embedding = nnx.Linear(in_features, layers.features, rngs=rngs)
        self.cls = nnx.Param(1e-6 * jax.random.normal(rngs.params(), (1, 1, layers.features)))
        mechanisms = (sized(mechanism, length + 1) for mechanism in layers.mechanisms)
        self.blocks = nnx.List(layers.block(mechanism, rngs) for mechanism in mechanisms)
        self.norm = nn.LayerNorm(layers.features, rngs=rngs)
        self.head = nnx.Linear(layers.features, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array, *, form: str = "auto") -> jax.Array:
        """Logits [B, classes] of sequences x [B, T, symbols]."""
        h = self.embedding(x)
        h = h + nn.sinusoid(jnp.arange(h.shape[1]), h.shape[2]).astype(h.dtype)
        h = jnp.concatenate([jnp.broadcast_to(self.cls[...], (len(h), 1, h.shape[2])), h], axis=1)
        for block in self.blocks:
            h = block(h, is_causal=False, form=form)
        return self.head(self.norm(h)[:, 0])
