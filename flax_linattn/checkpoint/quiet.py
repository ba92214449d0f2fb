"""Silences the tracebacks of Orbax's threads after a failed write, whose error is raised."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

JOIN_SECONDS = 10.0
"""Seconds to wait for a thread that still writes when the save has failed."""
_THREAD = "_SignalingThread"
"""Name of Orbax's class of threads."""

_lock = threading.Lock()
_num_open = 0
"""Number of open contexts; several threads may save at once."""
_previous_hook: Any = None
"""The hook before the first of them."""
_failed = False


@contextmanager
def quiet_threads() -> Iterator[None]:
    """Keeps Orbax's threads from printing hundreds of lines of traceback.

    The errors of the threads are raised in any case. A thread that still writes when the save has
    failed finds its event loop closed, which would be reported as an uncaught error. The last
    context restores logger and hook, unless another hook was set meanwhile. After a failure the
    hook stays, because native writes may end at any time.
    """
    global _num_open, _previous_hook, _failed
    with _lock:
        _num_open += 1
        if _num_open == 1:
            logging.getLogger("absl").addFilter(_is_not_from_orbax_thread)
            if sys.unraisablehook is not _ignore_closed_loops:
                _previous_hook, sys.unraisablehook = sys.unraisablehook, _ignore_closed_loops
    try:
        yield
    except BaseException:
        _failed = True
        for thread in threading.enumerate():
            if type(thread).__name__ == _THREAD:
                thread.join(JOIN_SECONDS)
        gc.collect()  # what the threads have left is found now, not after the hook is gone
        raise
    finally:
        with _lock:
            _num_open -= 1
            if _num_open == 0:
                logging.getLogger("absl").removeFilter(_is_not_from_orbax_thread)
                if sys.unraisablehook is _ignore_closed_loops and not _failed:
                    sys.unraisablehook = _previous_hook


def _is_not_from_orbax_thread(record: logging.LogRecord) -> bool:
    return _THREAD not in str(record.msg)


def _ignore_closed_loops(unraisable: Any) -> None:
    """Passes on what could not be raised, but for closed event loops."""
    if str(unraisable.exc_value) != "Event loop is closed":
        _previous_hook(unraisable)
