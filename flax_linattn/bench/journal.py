"""Results that are written row by row, so that an interrupted run can be continued."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from flax_linattn.storage import file_lock, write_text


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes results atomically as a JSON document with one row per line.

    Args:
        path: The file, whose folder is created.
        values: JSON values by name. Rows are the entries of a list or dict that holds only dicts.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "results.json")
        >>> write_json(path, {"size": {"n": 2}, "rows": [{"n": 1}, {"n": 2}]})
        >>> print(path.read_text(), end="")
        {
        "size": {"n": 2},
        "rows": [
        {"n": 1},
        {"n": 2}
        ]
        }
    """
    lines = (f"{json.dumps(name)}: {_rows_as_lines(value)}" for name, value in values.items())
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _rows_as_lines(value: Any) -> str:
    """The JSON text of a value, with one row per line."""
    rows = list(value.values()) if isinstance(value, dict) else value
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        return json.dumps(value)
    if isinstance(value, dict):
        lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in value.items()]
        return "{\n" + ",\n".join(lines) + "\n}"
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"


def lock_results(path: Path) -> AbstractContextManager[None]:
    """Locks the file for writing; the hidden lock file next to it is not removed."""
    return file_lock(path.with_name(f".{path.name}.lock"), wait=True)


class Journal:
    """A JSON file of a head and rows that is written after every row.

    An unfinished file with the same head, except for the date, is continued: its rows are not
    measured again, and several processes may share it. An unfinished file with another head is
    renamed (``results.unfinished-1.json``) and continued if it gets its old name again. Finished
    files are replaced, and so are files of a changed ("-dirty") commit, whose code is not known.

    Args:
        path: The JSON file, whose folder is created.
        head: Result of ``provenance``, and settings.
        progress: Print a line for each row on standard error.

    Attributes:
        rows: Rows that this run requested, in its order.

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

    def _unfinished(self) -> dict[str, Any] | None:
        """The content of an unfinished file."""
        try:
            stored = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return None
        is_unfinished = isinstance(stored, dict) and not stored.get("finished", True)
        return stored if is_unfinished else None

    def _differing(self, stored: dict[str, Any]) -> list[str]:
        """Names of the settings in which the head of a file differs."""
        return [k for k, v in self._head.items() if k != "date" and stored.get(k) != v]

    def _unfinished_rows(self) -> list[dict[str, Any]]:
        stored = self._unfinished()
        if stored is None or _is_dirty(self._head) or self._differing(stored):
            return []
        rows: list[dict[str, Any]] = stored["rows"]
        return rows

    def _set_aside(self) -> None:
        """Renames an unfinished file with another head, whose rows may have taken hours."""
        stored = self._unfinished()
        if stored is None or _is_dirty(stored) or not stored.get("rows"):
            return
        if differing := self._differing(stored):
            names = (self.path.with_suffix(f".unfinished-{n}.json") for n in itertools.count(1))
            new_path = next(name for name in names if not name.exists() or _same(name, stored))
            self.path.replace(new_path)
            print(
                f"note: {self.path.name} has rows with another {', '.join(differing)}; it was "
                f"renamed to {new_path.name}",
                file=sys.stderr,
            )

    def row(self, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns the row of a key: the stored row, or a measured row, which is stored."""
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
        with lock_results(self.path):
            self._set_aside()
            self._add([*self._unfinished_rows(), row])  # another process may have written
            self._write(self._stored, finished=False)
        if self._progress:
            print(line, file=sys.stderr, flush=True)
        return row

    def finish(self) -> dict[str, Any]:
        """Marks the file as complete; returns its content."""
        with lock_results(self.path):
            self._set_aside()
            return self._write(self.rows, finished=True)

    def _add(self, rows: list[dict[str, Any]]) -> None:
        self._stored += [row for row in rows if row not in self._stored]

    def _write(self, rows: list[dict[str, Any]], finished: bool) -> dict[str, Any]:
        results = {**self._head, "finished": finished, "rows": rows}
        write_json(self.path, results)
        return results


def _is_dirty(head: dict[str, Any]) -> bool:
    return str(head.get("commit", "")).endswith("-dirty")


def _same(path: Path, stored: dict[str, Any]) -> bool:
    """Whether a file holds the first of these rows with the same head, as after a renaming."""
    try:
        earlier = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return {**earlier, "rows": []} == {**stored, "rows": []} and all(
        row in stored["rows"] for row in earlier["rows"]
    )
