"""The lines that a stream reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def open_lines(path: Path | None) -> Iterator[tuple[IO[str], str]]:
    """Opens a file, or standard input, and gives it with its name for messages.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if path is None:
        yield sys.stdin, "standard input"
        return
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} to read observations from.")
    with path.open() as file:
        yield file, str(path)
