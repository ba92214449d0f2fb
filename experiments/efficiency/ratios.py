"""Time and memory of the papers' formulations, softmax and our engine relative to our forms.

    python -m experiments.efficiency.ratios

The published suite, and whether it meets its requirements (``bars``). It takes the options of
``flax-linattn bench``, which measures the part that needs no paper's formulation. ``--output``
names another folder for the results.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import tyro

from experiments import command
from experiments.efficiency.bars import BARS, bars_table
from experiments.efficiency.suite import comparisons
from flax_linattn import bench
from flax_linattn.bench.ratio import Rows
from flax_linattn.bench.run import write_page

COMMAND = "python -m experiments.efficiency.ratios"
FOLDER = Path(__file__).parent


def render(folder: Path = FOLDER) -> str:
    """Writes page and figures of what is stored; returns the page."""
    platform = json.loads((folder / "ratios.json").read_text())["platform"]
    return write_page(folder, partial(_summary, platform))


def _summary(platform: str, rows: Rows) -> str:
    """A table of the bars, which apply to a CPU."""
    return bars_table(rows, BARS if platform == "cpu" else ())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status, 1 if a ratio fell."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = tyro.cli(
        bench.BenchOptions,
        args=arguments,
        default=bench.BenchOptions(output=FOLDER),
        prog=COMMAND,
        description=(__doc__ or "").splitlines()[0],
    )
    with command.resumable():
        return bench.run_bench(
            suite=comparisons(),
            summary=partial(_summary, jax.default_backend()),
            command=shlex.join([*COMMAND.split(), *arguments]),
            **vars(options),
        )


if __name__ == "__main__":
    sys.exit(main())
