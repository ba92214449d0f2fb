"""Checks of labels and classes that collections of examples share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import listed, shown
from flax_linattn.data.dataset import in_order


def check_labels(labels: NDArray[np.int32], num_examples: int, classes: Sequence[str]) -> None:
    """Refuses labels that are not one index into the classes for each example.

    Raises:
        ValueError: They are of another shape or dtype, or out of range.
    """
    if labels.dtype != np.int32 or labels.shape != (num_examples,):
        raise ValueError(
            f"expected labels int32 [{num_examples}], one for each example, got {labels.dtype} "
            f"{list(labels.shape)}; make them one index an example"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < len(classes):
        raise ValueError(
            f"expected labels in 0..{len(classes) - 1}, the indices of the classes, got "
            f"{labels.min()}..{labels.max()}; index the labels into classes"
        )


def check_classes(classes: Sequence[str]) -> None:
    """Refuses classes that are not distinct and sorted, as numbers or as text.

    Raises:
        ValueError: They are not.
    """
    if tuple(classes) not in (in_order(set(classes)), tuple(sorted(set(classes)))):
        names = listed([shown(name) for name in classes])
        raise ValueError(
            f"expected distinct classes in sorted order, got ({names}); sort them and index the "
            "labels again"
        )
