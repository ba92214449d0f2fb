"""``flax-linattn evaluate RUN``, ``predict RUN`` and ``backtest RUN``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flax_linattn.checks import OptionError, format_count
from flax_linattn.cli import flags
from flax_linattn.tasks.options import Checkpoint

if TYPE_CHECKING:
    from flax_linattn.tasks import Report


def evaluate(run: Path, /, test_file: Path | None = None, checkpoint: Checkpoint = "best") -> None:
    """Evaluates a run on test data, and checks its stream against the parallel model.

    Args:
        run: Run folder.
        test_file: Other test data, in the format of the run's data: for example, a .ts or .arff
            file for classify, a CSV file for forecast (the first rows are the context, all later
            rows are forecast), or a file of episodes for offline-rl. Default: the test data of the
            run.
        checkpoint: Parameters to use: "best" (those with the best validation) or "last" (those at
            the end of training).
    """
    from flax_linattn.tasks.evaluate import evaluate_report

    print_report(evaluate_report(run, test_file, checkpoint=checkpoint))


def predict(
    run: Path,
    /,
    out: Path,
    input: Path | None = None,
    seed_index: int | None = None,
    checkpoint: Checkpoint = "best",
) -> None:
    """Writes the predictions of a run to a file.

    Predictions are the next steps of a series, in the units of the file (forecast); classes
    (classify, image, sequence); the time of the next event (events); the next symbol (synthetic);
    or the next action (offline-rl).

    Args:
        run: Run folder.
        out: Output file: .csv, .json, .jsonl or .parquet.
        input: Data to predict from; labels in the file are ignored. forecast: a table; classify: a
            .ts or .arff file; image: images or a folder of images; sequence and synthetic: a file
            of lines, as "flax-linattn stream" reads them; events: an event file; offline-rl: a file
            of episodes. Default: the series of the run up to its last row, or the test data of the
            run for tasks other than forecast.
        seed_index: Index of the run in a folder of several seeds, from 0. Default: the run with the
            best validation.
        checkpoint: Parameters to use: "best" (those with the best validation) or "last" (those at
            the end of training).
    """
    from flax_linattn.tasks import predict_run

    table = predict_run(run, input, out, seed_index=seed_index, checkpoint=checkpoint)
    print(f"# {format_count(len(table), 'row')}: {out}", file=sys.stderr)


def backtest_command(args: Sequence[str]) -> Callable[[], None]:
    """Parses the command line of ``flax-linattn backtest`` and returns a function that tests."""
    backtest = flags.bind(_backtest, "backtest", args)

    def run() -> None:
        from flax_linattn.training import Interrupted

        try:
            backtest()
        except (KeyboardInterrupt, Interrupted):
            command = shlex.join(["flax-linattn", "backtest", *args])
            print(f"finished folds are saved; continue with: {command}", file=sys.stderr)
            raise

    return run


def _backtest(
    run: Path,
    /,
    folds: int = 4,
    refit: bool = False,
    carry: bool = False,
    context: int | None = None,
    epochs: int | None = None,
) -> None:
    """Backtests a forecaster on the rows after its training rows, in folds of equal length.

    Args:
        run: Run folder.
        folds: Number of folds.
        refit: Retrain the model before each fold, on all previous rows and with the options of the
            run.
        carry: Forecast with one stream over all rows instead of from separate windows.
        context: Maximum number of past observations that the stream of ``carry`` uses; 0 uses all.
            Default: the context length of the run.
        epochs: Maximum number of epochs of each retraining. Default: the value of the run.
    """
    from flax_linattn.tasks.protocols import Backtesting
    from flax_linattn.tasks.run import read_task

    how = {"folds": folds, "refit": refit, "carry": carry, "context": context, "epochs": epochs}
    task = read_task(run)
    if not isinstance(task, Backtesting):
        raise OptionError(
            f"'backtest' needs a forecasting run, but {run} is a run of {task.name}.", "run"
        )
    print_report(task.backtest(run, **how))


def print_report(report: Report) -> None:
    """Prints the values of a report, the comparison with the baselines, and the tables."""
    single = {name: v for name, v in report.values.items() if not isinstance(v, list | dict)}
    width = max(map(len, single), default=0)
    for name, value in single.items():
        print(f"{name:<{width}}  {f'{value:.6g}' if isinstance(value, float) else value}")
    if report.verdict:
        print(f"{'warning: ' if report.is_beaten else ''}{report.verdict}")
    for name in report.tables:
        if rows := report.values[name]:
            _print_table(rows)


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
