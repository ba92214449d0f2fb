"""Named sizes of transformers, from the papers' experiments, and sizes of MiniRocket."""

from __future__ import annotations

from flax_linattn.checks import check_choice
from flax_linattn.models.layers import Layers

MINIROCKET_KERNELS = 84
"""Number of kernels of MiniRocket: of ways to choose the three weights of 2 among nine."""
MINIROCKET_FEATURES = 2500
"""Default number of features: as accurate as 10,000 on training data of ten data sets."""


def _size(num_layers: int, features: int, heads: int, hidden: int) -> Layers:
    return Layers(features, num_layers, heads, hidden)


SIZES: dict[str, Layers] = {
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


def get_size(name: str) -> Layers:
    """Returns the layers of a named size, for a model.

    Args:
        name: Key of ``SIZES``.

    Raises:
        ValueError: If the name is unknown.

    Example:
        >>> size = get_size("bert-base")
        >>> size.num_layers, size.features, size.num_heads, size.hidden_features
        (12, 768, 12, 3072)
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> backbone = models.Backbone(12, get_size("tslib-classification"), rngs=nnx.Rngs(0))
    """
    check_choice(SIZES, size=name)
    return SIZES[name]
