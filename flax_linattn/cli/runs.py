"""``flax-linattn evaluate RUN``, ``predict RUN`` and ``backtest RUN``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flax_linattn import training
from flax_linattn.checks import OptionError
from flax_linattn.cli import flags
from flax_linattn.tasks import Report
from flax_linattn.tasks.evaluate import evaluate_report
from flax_linattn.tasks.predict import predict_run
from flax_linattn.tasks.protocols import Backtesting
from flax_linattn.tasks.run import Checkpoint, read_task


def evaluate(run: Path, /, test_file: Path | None = None, checkpoint: Checkpoint = "best") -> None:
    """Tests a run, and compares its stream with the parallel model.

    Args:
        run: the run folder.
        test_file: other test data than the run's own: a .ts or .arff file for a run on sequences,
            a CSV file of which all rows but the first ones are forecast for one on a series,
            episodes for one that acts.
        checkpoint: best are the parameters that were selected, last those that training ended with.
    """
    print_report(evaluate_report(run, test_file, checkpoint=checkpoint))


def predict(
    run: Path,
    /,
    out: Path,
    input: Path | None = None,
    seed_index: int | None = None,
    checkpoint: Checkpoint = "best",
) -> None:
    """Writes what a run's model predicts to a file.

    Of a series these are the steps after its last row, in the units of the file; of sequences,
    texts and images their classes; of events when the next one comes; of symbols the next one; of
    episodes the next action.

    Args:
        run: the run folder.
        out: the file to write: .csv, .json, .jsonl, or .parquet.
        input: data to predict from: a table for a run on a series, a .ts or .arff file for one on
            sequences, images or a folder of them for one on images, a file of lines as "stream"
            reads them for one on tokens or symbols, events, or episodes. Labels in it do not
            count. Default the run's own: its series up to the last row, else what it was tested on.
        seed_index: index of the run in a folder of several seeds, from 0; default the run that
            validated best.
        checkpoint: best are the parameters that were selected, last those that training ended with.
    """
    table = predict_run(run, input, out, seed_index=seed_index, checkpoint=checkpoint)
    print(f"# {len(table):,} rows: {out}", file=sys.stderr)


def backtest_command(args: Sequence[str]) -> int:
    """Tests a run over folds of later times.

    Args:
        args: the command line.

    Returns:
        The exit status.
    """
    try:
        flags.call(_backtest, "backtest", args)
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
        context: most observations that the stream looks back on; default the run's context length,
            0 = all.
        epochs: of the trainings; default those of the run.
    """
    how = {"folds": folds, "refit": refit, "carry": carry, "context": context, "epochs": epochs}
    task = read_task(run)
    if not isinstance(task, Backtesting):
        raise OptionError(f"a run of {task.name} has no folds in time; evaluate it.", "run")
    print_report(task.backtest(run, **how))


def print_report(report: Report) -> None:
    """Prints what is a line a name, how the model compares, the tables; files hold the rest."""
    single = {name: v for name, v in report.values.items() if not isinstance(v, list | dict)}
    width = max(map(len, single), default=0)
    for name, value in single.items():
        print(f"{name:<{width}}  {f'{value:.6g}' if isinstance(value, float) else value}")
    if report.verdict:
        print(f"{'warning: ' if report.is_beaten else ''}{report.verdict}")
    for name in report.tables:
        _print_table(report.values[name])


def _print_table(rows: list[dict[str, Any]]) -> None:
    cells = [list(rows[0]), *(list(map(_cell, row.values())) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print()
    for line in cells:
        print("  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return str(float(f"{value:.6g}"))
    return "" if value is None else str(value)
