"""``flax-linattn state FILE``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from flax_linattn.checks import shown
from flax_linattn.inference.saved import FORMAT, describe_state

MOST = 100
"""Characters of a fact."""


def state_command(args: Sequence[str]) -> int:
    """Shows a state file.

    Args:
        args: the command line.

    Returns:
        The exit status.
    """
    tyro.cli(show_state, args=args, prog="flax-linattn state")
    return 0


def show_state(file: Path, /) -> None:
    """Shows what the state file of a stream holds: whose it is, its rows, its last time.

    It is read without the model, and checked as far as that goes.

    Args:
        file: what a stream was given as --state.
    """
    state = describe_state(file)
    lines = {
        "file": f"{file}, {file.stat().st_size:,} bytes, format {FORMAT}",
        "arrays": f"{len(state.arrays)}, {state.num_bytes:,} bytes",
        **{_plain(name): _plain(value) for name, value in state.facts.items()},
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:<{width}}  {value}")


def _plain(value: Any) -> str:
    """A fact as a person reads it; what would act on a terminal is escaped, or cut."""
    if isinstance(value, str) and value.isprintable() and len(value) < MOST:
        return value
    return shown(value, MOST)
