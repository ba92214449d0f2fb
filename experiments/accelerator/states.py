"""Outcomes of a piece: done, more to do, skipped or failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from experiments.accelerator.pieces import Piece

DONE, MORE, SKIPPED, FAILED = "done", "more to do", "skipped", "failed"


class Outcome(NamedTuple):
    """What became of a piece, and why."""

    state: str
    why: str = ""


def read(path: Path) -> dict[str, Any]:
    """Reads stored results; without a file, results without rows."""
    try:
        results: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {"finished": False, "rows": []}
    return results


def outcome(one: Piece, path: Path) -> Outcome:
    """The state of a piece, from its stored results."""
    stored = read(path)
    rows = f"{len(stored['rows'])} rows"
    if not stored["finished"]:
        return Outcome(MORE, f"{rows} so far")
    failed = one.failures(stored["rows"])
    if failed:
        return Outcome(FAILED, f"{len(failed)} checks failed, the first: {failed[0]}")
    return Outcome(DONE, rows)
