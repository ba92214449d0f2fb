"""The first page of a device's results: finished pieces, the device and the versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.accelerator.pieces import Piece
from experiments.accelerator.states import DONE, Outcome, read
from experiments.pages import write_page
from flax_linattn.bench.report import markdown, source_line


def write(folder: Path, pieces: Sequence[Piece], scale: str, outcomes: dict[str, Outcome]) -> str:
    """Writes summary.md and returns its text."""
    lines, last = [], None
    for one in pieces:
        path = one.stored(folder, scale)
        stored, page = read(path), path.with_suffix(".md")
        result = outcomes.get(one.name, Outcome("not run"))
        name = f"[{one.name}]({page.name})" if page.is_file() else one.name
        why = "" if result.state == DONE else result.why.replace("\n", " ")
        at = "-"
        if stored["rows"]:
            at, last = f"{stored['commit'] or stored['version']}, {stored['date']}", stored
        lines.append([name, result.state, why, str(len(stored["rows"])), at])
    table = markdown(["piece", "state", "why", "rows", "measured"], lines)
    if last is None:
        return write_page(folder / "summary.md", [table])
    versions = [[name, version] for name, version in last["libraries"].items()]
    return write_page(folder / "summary.md", [source_line(last), table], versions)
