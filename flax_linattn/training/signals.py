"""Handlers of SIGINT (Ctrl-C) and SIGTERM that let a run save itself before it stops."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

_STOP_NOTE = b"\nStopping after this step to save a checkpoint. A second signal stops at once.\n"


class Interrupted(SystemExit):
    """Raised when a signal stopped a run, after the run was saved.

    As a ``SystemExit`` it ends the program with the customary status unless it is caught, and
    passes through ``except Exception`` as ``KeyboardInterrupt`` does.

    Args:
        signum: The signal received.
        message: The checkpoint that was saved, and how to continue.
    """

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(128 + signum)
        self.exit_code = 128 + signum
        self.message = message

    def __str__(self) -> str:
        return self.message


class _Handlers:
    """A context with its own handlers of SIGINT and SIGTERM; it restores the previous ones.

    Python can handle signals in the main thread only; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        raise NotImplementedError

    def _restore(self) -> None:
        for signum, handler in self._before.items():
            # None stands for a handler that was not installed from Python.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        self._before.clear()


class StopRequest(_Handlers):
    """A context in which the first SIGINT or SIGTERM only sets ``signum``.

    A second one stops at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signum: int | None = None

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is None:
            self.signum = signum
            # Not print(): the signal may have interrupted another print().
            with contextlib.suppress(OSError):
                os.write(2, _STOP_NOTE)
            return
        self._restore()
        _end(signum)


class InterruptBetweenBlocks(_Handlers):
    """A context in which SIGINT and SIGTERM end the program between blocks, never within one."""

    def __init__(self) -> None:
        super().__init__()
        self._inside = False
        self._signum: int | None = None

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """A context that finishes before a signal takes effect."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
        if self._signum is not None:
            _end(self._signum)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._inside:
            self._signum = signum
        else:
            _end(signum)


def _end(signum: int) -> NoReturn:
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + signum)
