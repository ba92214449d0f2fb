"""Results on disk as they are measured, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from flax_linattn.storage import held, write_text


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes a file that is whole at any time: the old one until the new one is complete."""
    write_text(path, json.dumps(values, indent=1) + "\n")


def locked(path: Path) -> AbstractContextManager[None]:
    """Keeps other processes that ask for it from writing the file.

    The lock is a hidden file beside it, which stays.
    """
    return held(path.with_name(f".{path.name}.lock"), wait=True)


class Journal:
    """A JSON file of a head and rows, written anew after every row.

    A file that was not finished, and whose head is the same but for the date, is continued: its
    rows are not measured again, and several processes may share it. A finished one is replaced,
    and one of a changed ("-dirty") commit, whose rows may be of other code.

    Args:
        path: the JSON file; its folder is made.
        head: of ``provenance``, and the settings.
        progress: print a line for each row on standard error.

    Attributes:
        rows: those that this run asked for, in its order.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "results.json")
        >>> journal = Journal(path, {"command": "sum"}, progress=False)
        >>> journal.row({"n": 3}, lambda: {"sum": 6})
        {'n': 3, 'sum': 6}
        >>> Journal(path, {"command": "sum"}, progress=False).row({"n": 3}, lambda: 1 / 0)
        {'n': 3, 'sum': 6}
    """

    def __init__(self, path: Path, head: dict[str, Any], *, progress: bool = True) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._head = json.loads(json.dumps(head))
        self._progress = progress
        self._stored = self._unfinished_rows()

    def _unfinished_rows(self) -> list[dict[str, Any]]:
        try:
            stored = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return []
        if not isinstance(stored, dict) or stored.get("finished", True):
            return []
        if str(self._head.get("commit", "")).endswith("-dirty"):
            return []
        same = all(stored.get(k) == v for k, v in self._head.items() if k != "date")
        return stored["rows"] if same else []

    def row(self, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The row of that key: stored, or measured and written.

        Args:
            key: what tells the row from the others.
            measure: the rest of the row.
        """
        line = ", ".join(f"{k} {v}" for k, v in key.items())
        self._add(self._unfinished_rows())
        row = next((r for r in self._stored if key.items() <= r.items()), None)
        if row is None:
            begin = time.perf_counter()
            row = json.loads(json.dumps({**key, **measure()}))
            line = f"{line}: {time.perf_counter() - begin:.1f} s"
        else:
            line = f"{line}: done before"
        self.rows.append(row)
        with locked(self.path):
            self._add([*self._unfinished_rows(), row])  # another process may have written
            self._write(self._stored, finished=False)
        if self._progress:
            print(line, file=sys.stderr, flush=True)
        return row

    def finish(self) -> dict[str, Any]:
        """Marks the file as complete; returns what it holds."""
        with locked(self.path):
            return self._write(self.rows, finished=True)

    def _add(self, rows: list[dict[str, Any]]) -> None:
        self._stored += [row for row in rows if row not in self._stored]

    def _write(self, rows: list[dict[str, Any]], finished: bool) -> dict[str, Any]:
        results = {**self._head, "finished": finished, "rows": rows}
        write_json(self.path, results)
        return results
