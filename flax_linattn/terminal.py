"""Standard output and error of a command without control characters, and its end by Ctrl-C.

Names, cells and messages of files may hold escape sequences, which a terminal would obey: they can
clear the screen, change its title or write to the clipboard. Whatever a command prints goes through
one stream that escapes them, so that no caller has to remember it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130
"""The exit status after Ctrl-C."""

_CONTROL = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
"""Control characters except newlines and tabs, and characters that reorder or break lines."""
_CONTROLS = re.compile(_CONTROL)
_CONTROLS_BUT_COLORS = re.compile(rf"(\x1b\[[0-9;]*m)|{_CONTROL}")


def escape_controls(text: str, *, keep_colors: bool = False) -> str:
    r"""Escapes control characters except newlines and tabs, as Python writes them in strings.

    Args:
        text: Any text.
        keep_colors: Keep the escape sequences of colors and bold text.

    Example:
        >>> print(escape_controls("title\x1b]0;x\x07 and \x1b[1mbold\x1b[0m", keep_colors=False))
        title\x1b]0;x\x07 and \x1b[1mbold\x1b[0m
    """
    if keep_colors:
        return _CONTROLS_BUT_COLORS.sub(lambda match: match[1] or ascii(match[0])[1:-1], text)
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


class EscapedStream:
    """A text stream whose ``write`` escapes control characters; all else is that of the stream.

    Args:
        stream: The stream to write to, such as ``sys.stdout``.
        keep_colors: As in ``escape_controls``.

    Attributes:
        keep_colors: As in ``escape_controls``.
        rich_proxied_file: The stream itself. A console of rich writes to it, since its progress
            bars need control characters.
    """

    def __init__(self, stream: Any, *, keep_colors: bool = False) -> None:
        self.rich_proxied_file = stream
        self.keep_colors = keep_colors

    def write(self, text: str) -> int:
        """Writes text with escaped control characters; returns the length of the given text."""
        self.rich_proxied_file.write(escape_controls(text, keep_colors=self.keep_colors))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def escaped_output(*, keep_colors: bool = False) -> Iterator[None]:
    """A context in which standard output and error escape control characters.

    Characters that the encoding lacks, as with ``LANG=C``, are escaped too, instead of raising
    ``UnicodeEncodeError``.
    """
    streams: list[Any] = []
    for stream in (sys.stdout, sys.stderr):
        stream = stream.rich_proxied_file if isinstance(stream, EscapedStream) else stream
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        # Without a console, as under pythonw, there is no stream to wrap.
        streams.append(stream and EscapedStream(stream, keep_colors=keep_colors))
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        yield


def exit_on_interrupt() -> None:
    """Makes Ctrl-C end the process at once, with status 130 and no traceback.

    This is for the time of imports and of Python's shutdown. A ``KeyboardInterrupt`` would not do:
    modules in C turn it into other errors while they are imported, and ``atexit`` prints it. A
    process whose SIGINT is ignored or handled otherwise is left as it is.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


@contextmanager
def interruptible() -> Iterator[None]:
    """A context in which Ctrl-C raises ``KeyboardInterrupt`` despite ``exit_on_interrupt``."""
    is_ours = signal.getsignal(signal.SIGINT) is _exit
    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, _exit)


def _exit(signum: int, frame: FrameType | None) -> NoReturn:
    # Not print(): the signal may have interrupted another print().
    with suppress(OSError):
        os.write(2, b"interrupted.\n")
    os._exit(INTERRUPTED)
