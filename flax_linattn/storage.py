"""Files that outlive a kill, a power loss and other processes: written whole, on the disk, locked.

Everything in the package may use this module.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import re
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # on Windows, where nothing is held
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "HeldError",
    "append_text",
    "clear_unfinished",
    "held",
    "sync_file",
    "sync_folder",
    "write_text",
    "write_whole",
]

_UNFINISHED = re.compile(r"(.*)\.[0-9a-f]{8}\.tmp")
"""Names of files that are being written."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems answer that lock nothing."""

_HOLDER = b'{"host": '
"""How what a lock file says begins."""


class HeldError(ValueError):
    """Somebody else holds what was asked for."""


@contextmanager
def write_whole(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a file to write; it takes the place of the one before when the context ends.

    It is written beside it under a name that no other process uses. A kill or a power loss leaves
    the file before, or the new one; an error leaves the file before, and nothing else.

    Args:
        path: the file; its folder is made.

    Raises:
        OSError: it cannot be written, as on a full disk; names the file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "sums.npz")
        >>> with write_whole(path) as file:
        ...     _ = file.write(b"3")
        >>> path.read_bytes(), [p.name for p in path.parent.iterdir()]
        (b'3', ['sums.npz'])
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(unfinished, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(unfinished)):
            # Writing names no file, and opening one that is gone.
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_file(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """Writes a text as UTF-8; see ``write_whole``.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "new folder", "note.txt")
        >>> write_text(path, "hello")
        >>> path.read_text()
        'hello'
    """
    with write_whole(path) as file:
        file.write(text.encode())


def append_text(path: str | Path, text: str) -> None:
    r"""Adds a text as UTF-8 to the end of a file, and waits until it is on the disk.

    Raises:
        OSError: it cannot be written, of which a part may be there; names the file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "lines.txt")
        >>> append_text(path, "one\n")
        >>> append_text(path, "two\n")
        >>> path.read_text().splitlines()
        ['one', 'two']
    """
    try:
        with open(path, "ab") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def clear_unfinished(path: str | Path) -> None:
    """Removes what a kill has left of files that ``write_whole`` was writing.

    Args:
        path: their folder, or one such file; nobody else may be writing it.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "sums.npz.0a1b2c3d.tmp").touch()
        >>> clear_unfinished(folder)
        >>> list(folder.iterdir())
        []
    """
    path = Path(path)
    folder, name = (path, None) if path.is_dir() else (path.parent, path.name)
    for unfinished in folder.glob("*.tmp"):
        found = _UNFINISHED.fullmatch(unfinished.name)
        if found and name in (None, found[1]):
            unfinished.unlink()


@contextmanager
def held(path: str | Path, what: str = "", *, wait: bool = False) -> Iterator[None]:
    """Keeps out all others that ask for the same, in this process or another one.

    A process that ends, however it does, lets go. Processes on several hosts keep each other out
    where their file system carries locks from one to the other, as NFS does, and Lustre mounted
    with ``flock``. On one that locks nothing a note says so, and on Windows nothing is held.

    Args:
        path: a file for this alone, which is made, stays, and says who holds it: not the file that
            is worked on, but "state.npz.lock" beside "state.npz".
        what: is held, for the message.
        wait: until it is free, instead of refusing.

    Raises:
        HeldError: it is held already; says by whom.
        ValueError: the file holds something else than who holds it, and stays as it is.
        OSError: the file cannot be made.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "lock")
        >>> with held(path):
        ...     sorted(json.loads(path.read_text()))
        ['host', 'process', 'since']
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not filelock: version 3 empties the file before it asks for the lock, so that a process that
    # is refused erases who holds it, and takes a file system that locks nothing for a held lock.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(descriptor, path, what, wait)
        # What a kill has left of our own text is fine.
        if not _HOLDER.startswith(os.read(descriptor, len(_HOLDER))):
            raise ValueError(
                f"{path} is no lock file, and would be emptied; give a file for this alone, such "
                f"as {path}.lock."
            )
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        holder = {"host": socket.gethostname(), "process": os.getpid(), "since": now}
        _sign(descriptor, json.dumps(holder) + "\n")
        try:
            yield
        finally:
            _sign(descriptor, "")
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, what: str, wait: bool) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise HeldError(
            f"another process works with {what or path}{_signed(path)}; wait for its end, or give "
            "another one."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        print(
            f"note: the file system of {path} locks nothing ({error.strerror}); nothing keeps a "
            f"second process from {what or path}.",
            file=sys.stderr,
        )


def _sign(descriptor: int, text: str) -> None:
    """Says in a lock file who holds it: for people, and without it the lock is as good."""
    with contextlib.suppress(OSError):  # a full disk
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, text.encode())


def _signed(path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        return f" (process {holder['process']} on {holder['host']}, since {holder['since']})"
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def sync_file(path: str | Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk (``fsync``).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a").write_text("b")
        ...     sync_file(Path(folder, "a"))
    """
    if os.name == "nt" and Path(path).is_dir():
        return  # Windows opens no folders
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
