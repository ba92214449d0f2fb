"""Orbax's threads, where a write fails: what they print beside the error that is raised."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 10.0
"""Seconds to wait for a thread that still writes when the save has failed."""

_THREAD = "_SignalingThread"
"""What Orbax calls the class of them."""

_lock = threading.Lock()
_inside = 0
"""Contexts that are open; several threads may save at once."""
_before: Any = None
"""The hook that the first of them found."""
_failed = False


@contextmanager
def quiet_threads() -> Iterator[None]:
    """Keeps Orbax's threads from printing hundreds of lines of traceback.

    Their errors reach whoever saves or reads. Those that still write when the save has failed find
    their event loop closed, and would show that as an error that nobody caught. Logger and hook are
    as before when the last context ends, unless somebody else has set another hook since. After a
    failure the hook stays: what writes without Python's knowledge may end at any time.
    """
    global _inside, _before, _failed
    with _lock:
        _inside += 1
        if _inside == 1:
            logging.getLogger("absl").addFilter(_is_not_of_a_thread)
            if sys.unraisablehook is not _but_closed_loops:
                _before, sys.unraisablehook = sys.unraisablehook, _but_closed_loops
    try:
        yield
    except BaseException:
        _failed = True
        for thread in threading.enumerate():
            if type(thread).__name__ == _THREAD:
                thread.join(PATIENCE)
        gc.collect()  # what the threads have left is found now, not after the hook is gone
        raise
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                logging.getLogger("absl").removeFilter(_is_not_of_a_thread)
                if sys.unraisablehook is _but_closed_loops and not _failed:
                    sys.unraisablehook = _before


def _is_not_of_a_thread(record: logging.LogRecord) -> bool:
    return _THREAD not in str(record.msg)


def _but_closed_loops(unraisable: Any) -> None:
    """Passes on what could not be raised, but for closed event loops."""
    if str(unraisable.exc_value) != "Event loop is closed":
        _before(unraisable)
