"""Batches of a training, and how they are loaded onto its devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from flax_linattn.training.placement import Placement

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


def check_batches(splits: Splits) -> None:
    """Refuses a source that has no ``len`` or no ``batch``, or no batches."""
    sources = splits.train, splits.validation
    for source in sources:
        if not hasattr(source, "batch") or not hasattr(source, "__len__"):
            raise TypeError(
                "expected batches with len() and batch(step), such as data.Batches, got "
                f"{type(source).__name__}; data.IteratorBatches makes them of a generator."
            )
    if not all(map(len, sources)):
        raise ValueError(
            f"There are {len(splits.train)} training and {len(splits.validation)} validation "
            "batches; both must have at least one. Check the data set and its split."
        )


class StackedBatches:
    """The batches of several runs as one: arrays ``[R, B, ...]``, whose rows are runs."""

    def __init__(self, sources: Sequence[BatchSource]) -> None:
        if len(set(map(len, sources))) > 1:
            raise ValueError(
                "the runs need equally many batches an epoch, got "
                f"{', '.join(str(len(source)) for source in sources)}."
            )
        self._sources = tuple(sources)

    def __len__(self) -> int:
        return len(self._sources[0])

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """The batches of a step, of the runs that ``rows`` names."""
        sources = self._sources[rows]
        loaded = {id(source): source.batch(step) for source in sources}  # once where runs share it
        batches = [loaded[id(source)] for source in sources]
        names = set(batches[0])
        shapes = [{name: np.shape(x) for name, x in batch.items()} for batch in batches]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(
                f"the runs need batches of one shape in a step, got {shapes[0]} and "
                f"{next(shape for shape in shapes if shape != shapes[0])} in step {step}."
            )
        return {name: np.stack([np.asarray(b[name]) for b in batches]) for name in sorted(names)}


@dataclasses.dataclass(frozen=True)
class Loader:
    """Loads batches, or this process's part of them, and places them.

    A batch has ``batch_size`` rows, which of several runs is their number; ``whole`` batches are
    not taken in parts, as for validation.
    """

    source: BatchSource
    placement: Placement
    batch_size: int
    whole: bool = False

    def __len__(self) -> int:
        return len(self.source)

    def load(self, step: int) -> tuple[Batch, Any]:
        """The rows of a batch that this process needs, and the batch on its devices."""
        rows = self.placement.rows(self.batch_size)
        every = rows == slice(0, self.batch_size)
        batch = self.source.batch(step) if every else self.source.batch(step, rows)
        return batch, self.placement.batch(batch, self.batch_size, whole=self.whole)

    @property
    def share(self) -> float:
        """Fraction of a batch's rows that this process loads."""
        rows = self.placement.rows(self.batch_size)
        return (rows.stop - rows.start) / self.batch_size
