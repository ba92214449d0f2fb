"""The lines that a stream reads."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flax_linattn.data.files import LineReader


@contextmanager
def open_lines(path: Path | None) -> Iterator[tuple[Iterable[str], str]]:
    """Opens a file, or standard input, and gives its lines with its name for messages.

    A byte that is not UTF-8 becomes a backslash escape, which the parsers name.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no text, or damaged.
    """
    if path is None:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="backslashreplace")
        yield sys.stdin, "standard input"
        return
    with LineReader(path) as lines:
        yield lines, str(path)
