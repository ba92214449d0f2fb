"""Models of the element-wise attention paper's efficiency runs, with the shape of BERT-base."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from flax import nnx

from flax_linattn import models


class Kind(NamedTuple):
    """A mechanism and the form of it that a model computes by."""

    mechanism: str
    form: str = "auto"


KINDS = {
    "EA-2": Kind("elementwise_series:order=2"),
    "EA-6": Kind("elementwise_series:order=6"),
    "SA": Kind("softmax", "parallel"),
    "SA, in blocks": Kind("softmax", "chunked"),
}
"""SA as the paper has it materialises its weights; in blocks it is ours, with linear memory."""


def build(kind: Kind, num_layers: int, features: int) -> models.Backbone:
    """A causal transformer: BERT-base's with 12 layers of 768 features."""
    heads = max(1, features // 64)
    layers = dataclasses.replace(
        models.get_size("bert-base"),
        num_layers=num_layers,
        features=features,
        num_heads=heads,
        hidden_features=4 * features,
    )
    return models.Backbone(16, layers, mechanism=kind.mechanism, rngs=nnx.Rngs(0))
