"""Numbers of episodes as float32, where float32 can hold them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

LARGEST = float(np.finfo(np.float32).max)
"""That float32 can hold."""


def refuse_discrete(place: str, actions: NDArray, shape: str = "[N, A]") -> None:
    """Refuses actions that are choices.

    Args:
        place: Of the actions, for the message: ``file:key``.
        actions: As they came.
        shape: What was expected.

    Raises:
        ValueError: They are whole numbers, or True and False.

    Example:
        >>> refuse_discrete("toy:actions", np.zeros((4, 2)))
    """
    if actions.dtype.kind in "biu":
        raise ValueError(
            f"{place}: expected continuous actions {shape}, numbers with a point, got "
            f"{actions.dtype} {list(actions.shape)}; discrete actions are not handled: give data "
            "of an environment whose actions are continuous, or, where these numbers are sizes "
            "and no choices, save them as float32."
        )


def as_float32(place: str, values: ArrayLike, ndim: int) -> NDArray[np.float32]:
    """Numbers as float32, of so many axes, all finite.

    Args:
        place: Of the numbers, for messages: ``file:key``.
        values: [N, numbers] or [N].
        ndim: 2 or 1.

    Raises:
        ValueError: They are of another form, or one is not finite; the message names its row, from
            0, as ``file:key[row]``.

    Example:
        >>> as_float32("toy:rewards", [1, 2], 1)
        array([1., 2.], dtype=float32)
    """
    array = np.asarray(values)
    form = "[N, numbers]" if ndim == 2 else "[N]"
    if array.dtype.kind not in "fiu":
        raise ValueError(
            f"{place}: expected numbers {form}, got {array.dtype} {list(array.shape)}; save them "
            "as float32."
        )
    if array.ndim != ndim or not array.size:
        raise ValueError(
            f"{place}: expected {form} of at least one step, got {list(array.shape)}; save them so."
        )
    if array.dtype == np.float32:
        wrong = ~np.isfinite(array)
    else:  # what float32 would round to infinity is refused with what is infinite
        with np.errstate(all="ignore"):
            wrong = ~(np.abs(array.astype(np.float64)) <= LARGEST)
    if wrong.any():
        row = int(np.argmax(wrong.reshape(len(array), -1).any(1)))
        bad = array[row][wrong[row]] if ndim == 2 else array[row : row + 1]
        raise ValueError(
            f"{place}[{row}]: expected finite numbers that float32 can hold, got {bad[0]}; drop "
            "the episode, or correct it."
        )
    return np.ascontiguousarray(array, np.float32)
