"""The time that a training takes, without what is none of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from flax_linattn.training.record import RunRecord


class Timer:
    """Adds up times in a record."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self.restart()

    def restart(self) -> None:
        """Leaves out the time since the last call of a method."""
        self._since = time.perf_counter()

    def tick(self) -> None:
        """Counts that time as training."""
        now = time.perf_counter()
        self._record.seconds += now - self._since
        self._since = now

    @contextmanager
    def loading(self) -> Iterator[None]:
        """The part of the training time that goes into batches."""
        begin = time.perf_counter()
        yield
        self._record.data_seconds += time.perf_counter() - begin

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Counts as training what was before, and as saving what is done within."""
        self.tick()
        yield
        now = time.perf_counter()
        self._record.saving_seconds += now - self._since
        self._since = now
