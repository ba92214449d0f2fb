"""Where a result came from."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """The short name of the commit that is checked out, empty outside a repository."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    ).stdout.strip()
