"""Orbax's threads, where a write fails: what they print beside the error that is raised."""

from __future__ import annotations

import logging
import sys
from typing import Any


def hush_threads() -> None:
    """Keeps Orbax's threads from printing hundreds of lines of traceback; may be called again.

    Their errors reach whoever saves or reads. Those that still write when the save has failed find
    their event loop closed, and would show that as an error that nobody caught.
    """
    logging.getLogger("absl").addFilter(_is_not_of_a_thread)  # it knows those that it has
    if not isinstance(sys.unraisablehook, _ButClosedLoops):
        sys.unraisablehook = _ButClosedLoops()


def _is_not_of_a_thread(record: logging.LogRecord) -> bool:
    return "_SignalingThread" not in str(record.msg)


class _ButClosedLoops:
    """Passes on what could not be raised, but for closed event loops."""

    def __init__(self) -> None:
        self._before = sys.unraisablehook

    def __call__(self, unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self._before(unraisable)
