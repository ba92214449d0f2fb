"""What both rules that draw expressions share."""

from __future__ import annotations

import abc

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.sets.listops.expressions import DIGITS, LISTOPS_TOKENS


class DrawnListOps(abc.ABC):
    """Expressions that are drawn, see ``data.DrawnBatches``."""

    @property
    def num_tokens(self) -> int:
        """Different tokens, 17, whether all of them come or not."""
        return len(LISTOPS_TOKENS)

    @property
    def num_classes(self) -> int:
        """Values, 10."""
        return DIGITS

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        """Draws expressions.

        Args:
            rng: The source of chance.
            rows: How many.

        Returns:
            "tokens", int32 ``[rows, T]``; "mask", bool ``[rows, T]``, False at the padding behind;
            "labels", int32 ``[rows]``, the values.
        """
