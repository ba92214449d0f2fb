"""Batches as a training takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

Batch = Mapping[str, np.ndarray]


class BatchSource(Protocol):
    """Batches as a pure function of the step, as ``flax_linattn.data.Batches`` gives them."""

    def __len__(self) -> int:
        """Returns the batches of one epoch."""

    def batch(self, step: int, rows: slice = ...) -> Batch:
        """Returns the batch of this step, counted from 0 over all epochs.

        Args:
            step: Its number.
            rows: Which of its rows to load; given to a process of several that needs no others.

        Returns:
            Arrays of as many rows in every batch. They are not written to afterwards: a device may
            still be reading them.
        """


class Splits(NamedTuple):
    """The batches of each part of the data.

    Attributes:
        train: Training batches, a pure function of the step (``data.Batches``).
        validation: One pass over them is used for each validation.
        test: For the task, once the training is over; ``fit`` does not use them.
    """

    train: BatchSource
    validation: BatchSource
    test: BatchSource | None = None
