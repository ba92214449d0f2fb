"""What both rules that generate expressions share."""

from __future__ import annotations

import abc

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.sets.listops.expressions import DIGITS, LISTOPS_TOKENS


class GeneratedListOps(abc.ABC):
    """Expressions that are generated, see ``data.DrawnBatches``."""

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


class RandomIntegers:
    """Integers one by one, for loops that NumPy cannot take over.

    They come from a buffer of a generator's: a call of it for each one is slow.

    Args:
        rng: The generator.

    Example:
        >>> RandomIntegers(np.random.default_rng(0)).below(10) in range(10)
        True
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._left: list[float] = []

    def below(self, bound: int) -> int:
        """An integer from 0 to ``bound - 1``, each as likely; to 53 bits."""
        if not self._left:
            self._left = self._rng.random(4096).tolist()
        return int(self._left.pop() * bound)
