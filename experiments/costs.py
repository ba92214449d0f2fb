"""CPU time of the printed commands that recompute a stored row.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.costs

Runs the command of each page whose rows have no cost of their own, one after another.
"""

from __future__ import annotations

import dataclasses
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from experiments import again, report
from experiments.measured import Measured, Rows
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement of all commands.

    Attributes:
        max_seconds: wall-clock time after which a command is stopped.
    """

    max_seconds: float = 1200.0


def measure(size: Size, journal: Journal) -> None:
    for command in commands():
        journal.row({"command": command}, partial(run, size, command))


def commands() -> Iterator[str]:
    """The printed command of each page whose rows have no cost."""
    for experiment in report.all_experiments():
        if not isinstance(experiment, Measured) or experiment is EXPERIMENT:
            continue
        for scale in experiment.sizes:
            rows = experiment.rows(scale)
            if rows and not again.known_costs(rows):
                yield again.command_line(experiment.command(scale), rows)


def run(size: Size, command: str) -> dict[str, Any]:
    """Core seconds of a command, or why there are none."""
    words = [word for word in shlex.split(command) if "=FOLDER" not in word]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(
            [sys.executable, *words[1:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=size.max_seconds,
            cwd=Path(__file__).parents[1],
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"takes more than {size.max_seconds / 60:g} minutes"}
    if done.returncode:
        return {"failed": done.stderr.strip().rpartition("\n")[2]}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"core_seconds": round(seconds, 1)}


def table(rows: Rows, size: Size) -> str:
    """A line for each command."""
    lines = [
        [
            f"`{row['command']}`",
            f"{row['core_seconds'] / 60:.1f}" if "core_seconds" in row else row["failed"],
        ]
        for row in rows
    ]
    return markdown(["command", "core minutes"], lines)


EXPERIMENT = Measured(
    module="experiments.costs",
    needs_data=True,
    extras="",
    about="what it costs to recompute one row of a result",
    sizes={"": Size()},
    measure=measure,
    table=table,
    left_out={"": "pages whose rows were stored with their time; PyTorch, which is not installed"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
