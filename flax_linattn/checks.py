"""Checks of arguments that every part of the library makes."""

from __future__ import annotations

import numpy as np


def at_least(minimum: int, **numbers: int | None) -> None:
    """Refuses all but whole numbers from ``minimum`` on; None is another way to say "not given".

    Raises:
        TypeError: one is no whole number.
        ValueError: one is below.

    Example:
        >>> at_least(1, chunk_size=0)
        Traceback (most recent call last):
        ...
        ValueError: chunk_size must be at least 1, got 0.
    """
    for name, value in numbers.items():
        if value is None:
            continue
        if not isinstance(value, (int, np.integer)):
            raise TypeError(f"{name} must be a whole number, got {value!r}.")
        if value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}.")
