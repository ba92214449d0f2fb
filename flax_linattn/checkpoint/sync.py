"""Making sure that what was written is on the disk, and not only in the system's memory."""

from __future__ import annotations

import os
from pathlib import Path


def sync_file(path: str | Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk (``fsync``).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a").write_text("b")
        ...     sync_file(Path(folder, "a"))
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: str | Path) -> None:
    """Waits until a folder and all that lies below it are on the disk.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a").write_text("b")
        ...     sync_folder(folder)
    """
    for folder, _, files in os.walk(path):
        for name in files:
            sync_file(Path(folder, name))
        sync_file(folder)
