"""Transformers of the TaylorShift paper's sizes."""

from __future__ import annotations

from flax import nnx

from flax_linattn import models


def build(
    size: str, mechanism: str, num_heads: int, in_features: int, max_length: int
) -> models.SequenceClassifier:
    """An encoder that sees the whole sequence, pre-norm, with ten classes."""
    return models.SequenceClassifier(
        in_features,
        10,
        layers=models.get_size(size),
        num_heads=num_heads,
        mechanism=mechanism,
        max_length=max_length,
        is_causal=False,
        embedding_padding="circular",
        norm="pre",
        rngs=nnx.Rngs(0),
    )
