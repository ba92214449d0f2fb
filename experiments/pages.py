"""Pages of results: tables, and the metadata of their runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from flax_linattn.bench.report import markdown


def write_page(path: Path, parts: Sequence[str], facts: Sequence[Sequence[str]] = ()) -> str:
    """Writes Markdown and returns it.

    Args:
        path: the file; its folder is made.
        parts: tables and text; empty ones are left out.
        facts: names and values for a last table.
    """
    last = markdown(["", ""], facts) if facts else ""
    page = "\n\n".join(filter(None, [*parts, last])) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)
    return page


def quoted(names: Iterable[str]) -> str:
    """Joins names by commas, each in backquotes."""
    return ", ".join(f"`{name}`" for name in names)
