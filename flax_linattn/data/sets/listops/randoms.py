"""Whole numbers one by one, in loops that NumPy cannot take over."""

from __future__ import annotations

import numpy as np


class Randoms:
    """Draws whole numbers, from a buffer of a generator's: a call of it for each one is slow.

    Args:
        rng: The source of chance.

    Example:
        >>> Randoms(np.random.default_rng(0)).below(10) in range(10)
        True
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._left: list[float] = []

    def below(self, bound: int) -> int:
        """A number from 0 to ``bound - 1``, each as likely; to 53 bits."""
        if not self._left:
            self._left = self._rng.random(4096).tolist()
        return int(self._left.pop() * bound)
