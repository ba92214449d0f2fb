"""Batches of a training run, and how they are loaded onto its devices."""

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
        """Returns the number of batches in one epoch."""

    def batch(self, step: int, rows: slice = ...) -> Batch:
        """Returns the batch of a training step.

        Args:
            step: The training step, counted from 0 over all epochs.
            rows: The examples to load; passed only where one of several processes needs a part.

        Returns:
            Arrays with the examples as their first axis, of the same size in every batch. They must
            not be modified afterwards: a device may still be reading them.
        """


class Splits(NamedTuple):
    """The batches of each part of the data.

    Attributes:
        train: Training batches, a pure function of the step (``data.Batches``).
        validation: Validation batches; each validation is one pass over them.
        test: Test batches, used by tasks after training; ``fit`` does not use them.
    """

    train: BatchSource
    validation: BatchSource
    test: BatchSource | None = None


def check_batches(splits: Splits) -> None:
    """Raises if a source has no ``len``, no ``batch`` or no batches."""
    sources = splits.train, splits.validation
    for source in sources:
        if not hasattr(source, "batch") or not hasattr(source, "__len__"):
            raise TypeError(
                "expected batches with len() and batch(step), such as data.Batches, got "
                f"{type(source).__name__}; wrap a generator in data.IteratorBatches."
            )
    if not all(map(len, sources)):
        raise ValueError(
            "expected at least one training batch and one validation batch, got "
            f"{len(splits.train)} and {len(splits.validation)}; check the data set and its split."
        )


class StackedBatches:
    """The batches of several runs in one: arrays ``[R, B, ...]`` with an axis of runs in front."""

    def __init__(self, sources: Sequence[BatchSource]) -> None:
        if len(set(map(len, sources))) > 1:
            raise ValueError(
                "expected the same number of batches per epoch for each run, got "
                f"{', '.join(str(len(source)) for source in sources)}; give all runs data of one "
                "size."
            )
        self._sources = tuple(sources)

    def __len__(self) -> int:
        return len(self._sources[0])

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """The batches of a training step, for the runs in ``rows``."""
        sources = self._sources[rows]
        loaded = {id(source): source.batch(step) for source in sources}  # once where runs share it
        batches = [loaded[id(source)] for source in sources]
        names = set(batches[0])
        shapes = [{name: np.shape(x) for name, x in batch.items()} for batch in batches]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(
                f"expected batches of the same shapes for each run, got {shapes[0]} and "
                f"{next(shape for shape in shapes if shape != shapes[0])} in step {step}; pad or "
                "crop the batches to one shape."
            )
        return {name: np.stack([np.asarray(b[name]) for b in batches]) for name in sorted(names)}


@dataclasses.dataclass(frozen=True)
class Loader:
    """Loads batches, or this process's part of them, and places them on the devices.

    Args:
        source: The batches.
        placement: The devices.
        batch_size: Number of examples in a batch; for several runs, the number of runs.
        whole: Whether to keep batches whole, as for validation, instead of splitting them for
            gradient accumulation.
    """

    source: BatchSource
    placement: Placement
    batch_size: int
    whole: bool = False

    def __len__(self) -> int:
        return len(self.source)

    def load(self, step: int) -> tuple[Batch, Any]:
        """The part of a batch that this process loads, and the batch on the devices."""
        rows = self.placement.rows(self.batch_size)
        is_all = rows == slice(0, self.batch_size)
        batch = self.source.batch(step) if is_all else self.source.batch(step, rows)
        return batch, self.placement.batch(batch, self.batch_size, whole=self.whole)

    @property
    def local_fraction(self) -> float:
        """Fraction of a batch that this process loads."""
        rows = self.placement.rows(self.batch_size)
        return (rows.stop - rows.start) / self.batch_size
