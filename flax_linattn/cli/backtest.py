"""``flax-linattn backtest RUN``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from flax_linattn import training
from flax_linattn.checks import OptionError
from flax_linattn.cli import flags
from flax_linattn.cli.report import print_report
from flax_linattn.tasks.protocols import Backtesting
from flax_linattn.tasks.run import read_task


def backtest_command(args: Sequence[str]) -> int:
    """Tests a run over folds of later times.

    Args:
        args: the command line.

    Returns:
        The exit status.
    """
    try:
        with flags.only(flags.own(_backtest)):
            tyro.cli(_backtest, args=args, prog="flax-linattn backtest")
    except (KeyboardInterrupt, training.Interrupted):
        command = shlex.join(["flax-linattn", "backtest", *args])
        print(f"finished folds are kept; go on by: {command}", file=sys.stderr)
        raise
    return 0


def _backtest(
    run: Path,
    /,
    folds: int = 4,
    refit: bool = False,
    carry: bool = False,
    context: int | None = None,
    epochs: int | None = None,
) -> None:
    """Tests a run over folds of equal length: the rows after those it was trained on.

    Args:
        run: the run folder.
        folds: how many.
        refit: train anew on all rows before each fold, with the options of the run.
        carry: forecast by one stream over all rows, instead of from windows.
        context: most observations that the stream looks back on; default the run's input length,
            0 = all.
        epochs: of the trainings; default those of the run.
    """
    how = {"folds": folds, "refit": refit, "carry": carry, "context": context, "epochs": epochs}
    task = read_task(run)
    if not isinstance(task, Backtesting):
        raise OptionError(f"a run of {task.name} has no folds in time; evaluate it.", "run")
    print_report(task.backtest(run, **how))
