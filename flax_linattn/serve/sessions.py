"""``SessionStore``: sessions in SQLite, so that answered observations survive a crash."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from flax_linattn.storage import make_folder


class SessionStore:
    """Stores the bytes of sessions by id, in transactions that are synced to the disk.

    Args:
        path: SQLite file, which is created, and locked until ``close``; None stores sessions in
            memory.
        owner: Fingerprint of the bundle; a file of another bundle is refused.

    Raises:
        ValueError: If the file is damaged, belongs to another bundle, or is in use.

    Example:
        >>> store = SessionStore(None, "bundle")
        >>> store.write([("a", b"state")])
        >>> store.read("a"), store.read("b"), store.count()
        (b'state', None, 1)
    """

    def __init__(self, path: Path | None, owner: str) -> None:
        if path is not None:
            make_folder(path.parent)
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(
                ":memory:" if path is None else path, check_same_thread=False, isolation_level=None
            )
        except sqlite3.Error as error:
            raise _unusable(path, error) from error
        weakref.finalize(self, self._database.close)  # if the store is never closed
        try:
            known = self._prepare(owner)
        except sqlite3.Error as error:
            self.close()
            raise _unusable(path, error) from error
        if known != owner:
            self.close()
            raise ValueError(f"{path} holds sessions of another bundle; choose another file.")

    def _prepare(self, owner: str) -> str:
        """Makes the tables of a new file, and returns the owner of the file."""
        # Two servers would step a session from the same state, and lose an observation.
        self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS sessions "
            "(id TEXT PRIMARY KEY, content BLOB NOT NULL, used REAL NOT NULL) WITHOUT ROWID"
        )
        # Counting sessions reads this index rather than the contents of all sessions.
        self._database.execute("CREATE INDEX IF NOT EXISTS sessions_used ON sessions (used)")
        self._database.execute("CREATE TABLE IF NOT EXISTS owner (bundle TEXT NOT NULL)")
        (known,) = self._database.execute("SELECT max(bundle) FROM owner").fetchone()
        if known is None:
            self._database.execute("INSERT INTO owner VALUES (?)", (owner,))
        return owner if known is None else str(known)

    @contextlib.contextmanager
    def _connection(self, action: str) -> Iterator[sqlite3.Connection]:
        """Locks the connection for one thread; errors of SQLite become ``OSError``."""
        with self._lock:
            try:
                yield self._database
            except sqlite3.Error as error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise OSError(f"sessions could not be {action}: {error}") from error

    def read(self, name: str) -> bytes | None:
        """Returns the bytes of a session; None if there is none."""
        query = "SELECT content FROM sessions WHERE id = ?"
        with self._connection("read") as database:
            row = database.execute(query, (name,)).fetchone()
        return None if row is None else row[0]

    def write(self, sessions: Sequence[tuple[str, bytes | None]]) -> None:
        """Writes sessions in one transaction; None removes a session.

        Raises:
            OSError: If the disk is full, for example; then no session is written.
        """
        now = time.time()
        with self._connection("written") as database:
            database.execute("BEGIN IMMEDIATE")
            for name, content in sessions:
                if content is None:
                    database.execute("DELETE FROM sessions WHERE id = ?", (name,))
                else:
                    database.execute(
                        "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)", (name, content, now)
                    )
            database.execute("COMMIT")

    def count(self) -> int:
        """Counts the sessions of the file."""
        with self._connection("counted") as database:
            (count,) = database.execute("SELECT count(*) FROM sessions").fetchone()
        return int(count)

    def remove_idle(self, seconds: float) -> int:
        """Removes sessions without a request for ``seconds``; returns their number."""
        query = "DELETE FROM sessions WHERE used < ?"
        with self._connection("removed") as database:
            return database.execute(query, (time.time() - seconds,)).rowcount

    def close(self) -> None:
        """Closes the file of sessions."""
        with self._lock:
            self._database.close()


def _unusable(path: Path | None, error: sqlite3.Error) -> ValueError:
    """Explains why a file of sessions cannot be opened."""
    if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
        return ValueError(f"{path} is in use by another server; choose another file.")
    return ValueError(
        f"{path} is no file of sessions, or is damaged ({error}); choose another file."
    )
