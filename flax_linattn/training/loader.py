"""A source of batches on the devices of a training."""

from __future__ import annotations

import dataclasses
from typing import Any

from flax_linattn.training.batches import Batch, BatchSource
from flax_linattn.training.placement import Placement


@dataclasses.dataclass(frozen=True)
class Loader:
    """Loads batches, or this process's part of them, and places them.

    Args:
        source: The batches.
        placement: The devices.
        batch_size: Rows of a whole batch.
        whole: They are not taken in parts, as for validation.
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
        """Rows of a batch that this process loads, by all of them."""
        rows = self.placement.rows(self.batch_size)
        return (rows.stop - rows.start) / self.batch_size
