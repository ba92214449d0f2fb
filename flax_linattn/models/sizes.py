"""Sizes of transformers by name, as the papers' experiments use them."""

from __future__ import annotations

from typing import TypedDict


class Size(TypedDict):
    """Keyword arguments of ``Backbone`` and the models on it."""

    features: int
    num_layers: int
    num_heads: int
    hidden_features: int


def _size(num_layers: int, features: int, num_heads: int, hidden_features: int) -> Size:
    return Size(
        features=features,
        num_layers=num_layers,
        num_heads=num_heads,
        hidden_features=hidden_features,
    )


SIZES: dict[str, Size] = {
    "bert-base": _size(12, 768, 12, 3072),
    "tslib-classification": _size(3, 128, 8, 256),
    "tslib-forecasting": _size(2, 512, 8, 2048),
    "decision-aaren": _size(4, 512, 4, 2048),
    "taylorshift-listops": _size(4, 512, 8, 1024),
    "taylorshift-text": _size(4, 256, 4, 1024),
    "taylorshift-pixel": _size(1, 256, 4, 256),
}
"""Layers, width, heads and hidden width of: the element-wise attention paper's cost runs
(bert-base), Time-Series-Library's scripts, the Aaren paper's offline RL (appendix E), and the
TaylorShift paper's tasks."""


def get_size(name: str) -> Size:
    """The size of that name, as keyword arguments of a model.

    Args:
        name: a key of ``SIZES``.

    Raises:
        ValueError: the name is unknown.

    Example:
        >>> get_size("bert-base")
        {'features': 768, 'num_layers': 12, 'num_heads': 12, 'hidden_features': 3072}
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> backbone = models.Backbone(12, **get_size("tslib-classification"), rngs=nnx.Rngs(0))
    """
    if name not in SIZES:
        raise ValueError(f"unknown size {name!r}; choose one of: {', '.join(SIZES)}.")
    return SIZES[name]
