"""A trace of a few training steps by ``jax.profiler``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

WARM_UP = 10
"""Steps before the trace: the first ones compile."""


class Profile:
    """Traces some steps into a folder for TensorBoard, XProf or Perfetto.

    Args:
        folder: The folder of the trace.
        step: Steps done already.
        count: Steps to trace; 0 = none.
    """

    def __init__(self, folder: Path, step: int, count: int) -> None:
        self._folder = folder
        self._first = step + WARM_UP
        self._end = self._first + count
        self._tracing = False

    def before(self, step: int) -> None:
        """Begins the trace where it is to begin."""
        if step == self._first < self._end:
            jax.profiler.start_trace(str(self._folder))
            self._tracing = True

    def after(self, step: int, state: Any) -> None:
        """Ends the trace where it is to end, once the state is computed."""
        if self._tracing and step == self._end:
            jax.block_until_ready(state)
            self.stop()

    def stop(self) -> None:
        """Ends the trace if it has begun."""
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
