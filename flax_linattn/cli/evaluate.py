"""``flax-linattn evaluate RUN``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tyro

from flax_linattn.cli import flags
from flax_linattn.cli.report import print_report
from flax_linattn.tasks.evaluate import evaluate_report
from flax_linattn.tasks.run import Checkpoint


def evaluate_command(args: Sequence[str]) -> int:
    """Tests a run.

    Args:
        args: the command line.

    Returns:
        The exit status.
    """
    with flags.only(flags.own(_evaluate)):
        tyro.cli(_evaluate, args=args, prog="flax-linattn evaluate")
    return 0


def _evaluate(run: Path, /, test_file: Path | None = None, checkpoint: Checkpoint = "best") -> None:
    """Tests a run, and compares its stream with the parallel model.

    Args:
        run: the run folder.
        test_file: other test data than the run's own: a .ts or .arff file for a run on sequences,
            a CSV file of which all rows but the first ones are forecast for one on a series,
            episodes for one that acts.
        checkpoint: best are the parameters that were selected, last those that training ended with.
    """
    print_report(evaluate_report(run, test_file, checkpoint=checkpoint))
