"""A journal that starts no row that would exceed the time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flax_linattn.bench import Journal


class OutOfTimeError(Exception):
    """The time is over; what is left is for the next call."""


class TimedJournal(Journal):
    """A ``Journal`` that stops between rows.

    Args:
        path: see ``Journal``.
        head: see ``Journal``.
        seconds: no row begins after so long, nor one if the longest row so far would not fit.
        progress: see ``Journal``.
        clock: returns the time in seconds.

    Raises:
        OutOfTimeError: by ``row``, instead of measuring it.
    """

    def __init__(
        self,
        path: Path,
        head: dict[str, Any],
        seconds: float,
        *,
        progress: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(path, head, progress=progress)
        self._clock, self._end, self._longest = clock, clock() + seconds, 0.0

    def row(self, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        def timed() -> dict[str, Any]:
            begin = self._clock()
            if begin >= self._end or begin + self._longest > self._end:
                raise OutOfTimeError
            results = measure()
            self._longest = max(self._longest, self._clock() - begin)
            return results

        return super().row(key, timed)
