"""Atomic writes, appends that reach the disk, locks, and the folder of the user's caches."""

from __future__ import annotations

import contextlib
import datetime
import errno
import itertools
import json
import os
import re
import socket
import stat
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # on Windows, where nothing is held
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "LockedError",
    "append_text",
    "atomic_write",
    "check_json_size",
    "file_lock",
    "make_folder",
    "open_regular",
    "parse_json",
    "remove_unfinished",
    "sync_file",
    "sync_folder",
    "user_cache",
    "write_text",
]

MAX_JSON_BYTES = 2**25
"""Maximum size of a JSON file in bytes, enough for a history of 85,000 validations."""

_MAX_JSON_CONTAINERS = 2**20
"""Maximum number of lists and objects in a JSON file: each may take 200 bytes of memory."""

_UNFINISHED = re.compile(r"(.*)\.[0-9a-f]{8}\.tmp")
"""Names of unfinished files."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems that do not support locks."""

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
"""Flags of ``os.open``: refuse a symbolic link, and do not wait for the writer of a pipe."""

_HOLDER = b'{"host": '
"""First bytes of a lock file that names its holder."""


NOTICE_SECONDS = 1.0
"""Time after which a process that waits for a lock prints a note."""


class LockedError(ValueError):
    """Another process or context holds the lock."""


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a file that replaces the previous one when the context ends.

    A kill or a power loss leaves the previous file or the new one; an error leaves the previous
    file. Until then the new file has a name of its own in the same folder.

    Args:
        path: The file, whose folder is created.

    Raises:
        OSError: If the file cannot be written, for example because the disk is full; the error
            names the file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "sums.npz")
        >>> with atomic_write(path) as file:
        ...     _ = file.write(b"3")
        >>> path.read_bytes(), [p.name for p in path.parent.iterdir()]
        (b'3', ['sums.npz'])
    """
    path = Path(path)
    make_folder(path.parent)
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
            # Errors of writing name no file; errors of opening name the unfinished file.
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_file(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """Writes text as UTF-8; see ``atomic_write``.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "new folder", "note.txt")
        >>> write_text(path, "hello")
        >>> path.read_text()
        'hello'
    """
    with atomic_write(path) as file:
        file.write(text.encode())


def append_text(path: str | Path, text: str) -> None:
    r"""Appends text as UTF-8 to a file, and waits until it is on the disk.

    Raises:
        OSError: If the text cannot be written completely; the error names the file.

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
            is_new = file.tell() == 0
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        if is_new:  # syncing a file does not sync its entry in the folder
            sync_file(Path(path).parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def remove_unfinished(path: str | Path) -> None:
    """Removes files that ``atomic_write`` left unfinished when its process was killed.

    Args:
        path: Their folder, or the file that was to be written; no other process may write it.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "sums.npz.0a1b2c3d.tmp").touch()
        >>> remove_unfinished(folder)
        >>> list(folder.iterdir())
        []
    """
    path = Path(path)
    folder, name = (path, None) if path.is_dir() else (path.parent, path.name)
    for unfinished in folder.glob("*.tmp"):
        match = _UNFINISHED.fullmatch(unfinished.name)
        # A folder with this name is no unfinished file, and cannot be unlinked.
        if match and name in (None, match[1]) and not unfinished.is_dir():
            unfinished.unlink()


@contextmanager
def file_lock(path: str | Path, what: str = "", *, wait: bool = False) -> Iterator[None]:
    """Holds a lock, in this process and between processes, until the context ends.

    The lock is released when a process ends in any way. Between hosts it works on file systems that
    share locks, such as NFS, and Lustre mounted with ``flock``. On a file system without locks a
    note is printed; on Windows nothing is locked.

    Args:
        path: Lock file of its own, such as "state.npz.lock" for "state.npz". It is created, names
            the holder, and is not removed.
        what: What is locked, for the message.
        wait: Wait for the lock instead of raising, with a note after ``NOTICE_SECONDS``.

    Raises:
        LockedError: If the lock is held; the error names the holder.
        ValueError: If the file is not a lock file, or is a symbolic link; the file is not changed.
        OSError: If the file cannot be created.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "lock")
        >>> with file_lock(path):
        ...     sorted(json.loads(path.read_text()))
        ['host', 'process', 'since']
    """
    path = Path(path)
    make_folder(path.parent)
    # Not filelock: version 3 empties the file before it asks for the lock, so that a process that
    # is refused erases who holds it, and takes a file system that locks nothing for a held lock.
    descriptor = _open_lock(path)
    try:
        _lock(descriptor, path, what, wait)
        # After a kill the file may hold a part of our own text.
        if not _HOLDER.startswith(os.read(descriptor, len(_HOLDER))):
            raise ValueError(
                f"{path} is not a lock file, and would be overwritten; choose another path, "
                f"such as {path}.lock."
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


def _open_lock(path: Path) -> int:
    """Opens a lock file to read and write; it may stand in the run folder of a stranger."""
    flags = os.O_RDWR | os.O_CREAT | _NO_FOLLOW | _NO_WAIT
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(
            f"expected a lock file, but {path} is a symbolic link, whose target would be "
            "overwritten; remove the link."
        ) from None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise ValueError(f"expected a lock file, but {path} is a pipe or a device; remove it.")


def _lock(descriptor: int, path: Path, what: str, wait: bool) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if wait:

            def say() -> None:  # the holder may not have signed before
                note = f"note: waiting for {what or path}, which another process uses"
                print(note + _signed(path), file=sys.stderr)

            notice = threading.Timer(NOTICE_SECONDS, say)
            notice.start()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            finally:
                notice.cancel()
            return
        raise LockedError(
            f"another process uses {what or path}{_signed(path)}; wait until it ends, "
            "or choose another path."
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
    """Writes the holder into a lock file, for people."""
    with contextlib.suppress(OSError):  # on a full disk the lock works without it
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, text.encode())


def _signed(path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        return f" (process {holder['process']} on {holder['host']}, since {holder['since']})"
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def open_regular(path: str | Path) -> BinaryIO:
    """Opens a file to read, and refuses pipes and devices, which may block or have no end.

    Raises:
        OSError: If the file cannot be opened, or is not a regular file.

    Example:
        >>> open_regular("/dev/zero")
        Traceback (most recent call last):
        ...
        OSError: [Errno 22] Not a regular file: '/dev/zero'
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "Not a regular file", str(path))


def check_json_size(text: bytes) -> None:
    """Checks that JSON text is small enough for ``parse_json``.

    Raises:
        ValueError: If it has too many bytes, or too many lists and objects.

    Example:
        >>> check_json_size(b"[" * 2_000_000)
        Traceback (most recent call last):
        ...
        ValueError: expected at most 33,554,432 bytes and 1,048,576 lists and objects, got ...
    """
    count = text.count(b"[") + text.count(b"{")
    if len(text) > MAX_JSON_BYTES or count > _MAX_JSON_CONTAINERS:
        raise ValueError(
            f"expected at most {MAX_JSON_BYTES:,} bytes and {_MAX_JSON_CONTAINERS:,} lists and "
            f"objects, got {len(text):,} and {count:,}"
        )


def parse_json(text: bytes) -> Any:
    """Parses JSON text that may be hostile, in less than 1 GiB of memory.

    Raises:
        ValueError: If the text is not valid JSON in UTF-8, or too large.
        RecursionError: If its lists and objects are nested too deeply.

    Example:
        >>> parse_json(b'{"steps": [1, 2]}')
        {'steps': [1, 2]}
    """
    check_json_size(text)
    return json.loads(text.decode())


def make_folder(path: str | Path) -> None:
    """Creates a folder and its missing parents, and waits until they are on the disk.

    ``Path.mkdir`` alone leaves the new entries in memory: after a power loss the folder would be
    gone, with every file in it that was synced.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp(), "runs", "a")
        >>> make_folder(folder)
        >>> folder.is_dir()
        True
    """
    path = Path(path)
    missing = list(itertools.takewhile(lambda folder: not folder.exists(), [path, *path.parents]))
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_file(folder.parent)


def sync_file(path: str | Path) -> None:
    """Waits until a file, or the directory of a folder, is on the disk (``fsync``).

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
    """Waits until a folder and everything below it are on the disk.

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


def user_cache() -> Path:
    """The folder of the user's caches on this platform, or ``XDG_CACHE_HOME`` if it is set.

    Raises:
        RuntimeError: If the user has no home folder.
    """
    own = Path(os.environ.get("XDG_CACHE_HOME") or ".")
    if own.is_absolute():  # others are to be ignored
        return own
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
